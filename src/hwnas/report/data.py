"""What a report says, as plain values.

They are gathered anew from a run folder whenever a report is written, so they have no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hwnas.deploy.measurement import Measurement
from hwnas.interval import Interval, is_proportion, metric_interval

__all__ = [
    "BlockPicture",
    "CalibrationRow",
    "Finalist",
    "Hypervolume",
    "ObjectiveInfo",
    "OnTarget",
    "ReportData",
    "Score",
    "StagePicture",
    "StageTime",
    "TrainingRow",
    "TrialRow",
]

Kind = Literal["measured", "predicted", "evaluated", "counted"]
Role = Literal["left out in turn", "finalist"]


@dataclass(frozen=True)
class ObjectiveInfo:
    """What the search wanted.

    Attributes:
        label: Unique, e.g. ``"accuracy"`` or ``"latency_ms@cpu-onnxruntime-fp32-b1-t1"``.
        metric: The part before the ``@``.
        direction: Whether more or less is better.
        unit: E.g. ``"ms"``; empty for a plain number.
        kind: How the search came by its values.
        limit: The worst value that is feasible, if there is one.
        target: The device and format, where the metric depends on them; or several in words.
    """

    label: str
    metric: str
    direction: Literal["maximize", "minimize"]
    unit: str
    kind: Kind
    limit: float | None = None
    target: str | None = None


@dataclass(frozen=True)
class TrialRow:
    """One candidate that the search scored.

    Attributes:
        number: Of the trial, from 0.
        id: Of the candidate.
        values: By the label of the objective.
        standard_error: By the label of the objective, where it is known.
        architecture: Option by the name of the choice, e.g. ``{"stage0.depth": 2}``.
        on_front: Whether no feasible candidate is better in every objective.
        feasible: Whether it keeps every limit.
        sampler: What proposed it.
        images: How many images it was scored on; None where that was not recorded.
    """

    number: int
    id: str
    values: Mapping[str, float]
    standard_error: Mapping[str, float]
    architecture: Mapping[str, int | float | str]
    on_front: bool
    feasible: bool
    sampler: str
    images: int | None = None

    def interval(self, objective: ObjectiveInfo) -> Interval | None:
        """The 95 % interval of a value; None where its error is not known."""
        error = self.standard_error.get(objective.label)
        if error is None:
            return None
        proportion = is_proportion(objective.unit or None, objective.metric)
        value = self.values[objective.label]
        return metric_interval(value, error, self.images, proportion=proportion)


@dataclass(frozen=True)
class BlockPicture:
    """One block: its depthwise kernel, and hidden channels as a multiple of its input's."""

    kernel_size: int
    expand_ratio: float


@dataclass(frozen=True)
class StagePicture:
    """A row of blocks with the same output channels; the first block has the stride."""

    channels: int
    stride: int
    blocks: tuple[BlockPicture, ...]


@dataclass(frozen=True)
class Score:
    """A mean over ``n`` examples with its standard error; ``unit`` is that of the metric."""

    mean: float
    standard_error: float
    n: int
    unit: str = "fraction"

    @property
    def interval(self) -> Interval:
        """The 95 % interval."""
        proportion = is_proportion(self.unit)
        return metric_interval(self.mean, self.standard_error, self.n, proportion=proportion)


@dataclass(frozen=True)
class OnTarget:
    """What a finalist takes on one target: predicted with a standard deviation, and measured."""

    target: str
    predicted_ms: float | None
    predicted_std_ms: float | None
    measurement: Measurement


@dataclass(frozen=True)
class Finalist:
    """A network that was extracted, fine-tuned, tested, exported and measured.

    Attributes:
        id: Of the candidate.
        architecture: Option by the name of the choice.
        stages: What to draw; empty where the space has no such picture.
        validation: Score on the split that the search saw.
        test: Score on the split that nothing saw before.
        metric: What the scores are, e.g. ``"accuracy"``.
        predicted_latency_ms: Before it was measured, if anything predicted it.
        predicted_std_ms: Standard deviation of that prediction.
        measurement: On the first target; None if it was not measured.
        macs: Multiply-accumulates for one example.
        params: Parameters.
        size_bytes: Of the deployable file.
        max_relative_error: Largest deviation of the exported outputs, as part of their scale.
        bundle: Path of the bundle, relative to the report.
        picks: Names under which ``hwnas export --pick`` finds it, e.g. ``("knee",)``.
        further: Other targets that it was measured on.
        delivered_ms: Latency objectives as measured, by their labels.
        missed_limits: A line for each limit that it does not keep, as measured.
        limit_state: Whether it keeps the limits, as measured; None where there are none.
    """

    id: str
    architecture: Mapping[str, int | float | str]
    stages: tuple[StagePicture, ...]
    validation: Score
    test: Score
    metric: str
    predicted_latency_ms: float | None
    predicted_std_ms: float | None
    measurement: Measurement | None
    macs: int
    params: int
    size_bytes: int
    max_relative_error: float
    bundle: str
    picks: tuple[str, ...] = ()
    further: tuple[OnTarget, ...] = ()
    delivered_ms: Mapping[str, float] = field(default_factory=dict)
    missed_limits: tuple[str, ...] = ()
    limit_state: Literal["kept", "within noise", "broken"] | None = None

    @property
    def name(self) -> str:
        """The picks, or the id where it is nobody's pick."""
        return ", ".join(self.picks) or self.id


@dataclass(frozen=True)
class CalibrationRow:
    """A network whose latency was predicted, with an interval, and measured; milliseconds."""

    id: str
    predicted_ms: float
    lower_ms: float
    upper_ms: float
    measured_ms: float
    role: Role


@dataclass(frozen=True)
class TrainingRow:
    """A logged step of supernet training; ``epoch`` has fractions, ``seconds`` count from 0."""

    step: int
    epoch: float
    seconds: float
    loss_largest: float
    loss_smallest: float
    learning_rate: float


@dataclass(frozen=True)
class StageTime:
    """What a stage of the run took, in seconds; ``gpu_s`` is None where it used no GPU."""

    name: str
    wall_s: float
    cpu_s: float
    gpu_s: float | None
    state: str


@dataclass(frozen=True)
class Hypervolume:
    """The hypervolume that a sampler had reached after each of some numbers of trials."""

    sampler: str
    trials: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows. An empty part is left out with its reason.

    Attributes:
        name: Of the run.
        created: When it was started, in words.
        seed: Of the run.
        target: Device and format that the finalists are for.
        task: In words, e.g. ``"classification of 10 classes"``.
        space: Name of the search space.
        space_size: Number of different networks in it.
        objectives: At least one.
        trials: Of the search itself.
        baseline_trials: Of random search; empty unless it really ran.
        finalists: In the order to show.
        reference: What they are compared with: a plain network that was trained alone.
        verdict: How they compare with it, in a sentence.
        calibration: Latencies that were both predicted and measured.
        training: The supernet's training log.
        stage_times: In the order of the run.
        hypervolume: One curve a sampler.
        reference_point: Of the hypervolume, by the label of the objective.
        break_even: A sentence: from how many targets on one supernet costs less.
        warnings: A sentence each.
        versions: By package.
        hardware: By property.
        recipe_toml: The recipe, as it ran.
        next_commands: To try next, a shell line each.
    """

    name: str
    created: str
    seed: int
    target: str
    task: str
    space: str
    space_size: int
    objectives: tuple[ObjectiveInfo, ...]
    trials: tuple[TrialRow, ...]
    baseline_trials: tuple[TrialRow, ...] = ()
    finalists: tuple[Finalist, ...] = ()
    reference: Finalist | None = None
    verdict: str | None = None
    calibration: tuple[CalibrationRow, ...] = ()
    training: tuple[TrainingRow, ...] = ()
    stage_times: tuple[StageTime, ...] = ()
    hypervolume: tuple[Hypervolume, ...] = ()
    reference_point: Mapping[str, float] = field(default_factory=dict)
    break_even: str = ""
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    recipe_toml: str = ""
    next_commands: tuple[str, ...] = ()

    @property
    def main_objective(self) -> ObjectiveInfo:
        """The first objective to maximise, or else the first: the vertical axis."""
        wanted = [o for o in self.objectives if o.direction == "maximize"]
        return (wanted or self.objectives)[0]

    @property
    def other_objectives(self) -> tuple[ObjectiveInfo, ...]:
        """The objectives that the main one is traded against."""
        return tuple(o for o in self.objectives if o is not self.main_objective)
