"""Contents of a report as plain values.

They are collected from a run folder whenever a report is written, so they have no file format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hwnas.deploy.measurement.measurement import Measurement
from hwnas.interval import Interval, is_proportion, metric_interval

if TYPE_CHECKING:
    from hwnas.search.strategies.learning import LearnedDistribution

__all__ = [
    "BlockPicture",
    "CalibrationRow",
    "Finalist",
    "Hypervolume",
    "ObjectiveInfo",
    "ReportData",
    "Score",
    "StagePicture",
    "StageTime",
    "TargetLatency",
    "TrainingCurveRow",
    "TrialRow",
]

Kind = Literal["measured", "predicted", "evaluated", "counted"]
Role = Literal["left out in turn", "finalist"]


@dataclass(frozen=True)
class ObjectiveInfo:
    """Objective of the search.

    Attributes:
        label: Unique label, e.g. ``"accuracy"`` or ``"latency_ms@cpu-onnxruntime-fp32-b1-t1"``.
        metric: Part of the label before the ``@``.
        direction: Direction in which values are better.
        unit: Unit, e.g. ``"ms"``; empty for a plain number.
        kind: Way in which the search obtained the values.
        limit: Worst feasible value; None for no limit.
        target: Device and format, if the metric depends on them; several targets in words.
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
    """Candidate that the search evaluated.

    Attributes:
        number: Number of the trial, from 0.
        id: Id of the candidate.
        values: Values by the label of the objective.
        standard_error: Standard errors by the label of the objective, where known.
        architecture: Options by the name of the choice, e.g. ``{"stage0.depth": 2}``.
        on_front: True if the candidate is feasible and no feasible candidate dominates it.
        feasible: True if the candidate meets every limit.
        sampler: Name of the sampler that proposed the candidate.
        images: Number of images of the evaluation; None if not recorded.
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
        """Return the 95 % interval of a value; None if its standard error is not known."""
        error = self.standard_error.get(objective.label)
        if error is None:
            return None
        proportion = is_proportion(objective.unit or None, objective.metric)
        value = self.values[objective.label]
        return metric_interval(value, error, self.images, proportion=proportion)


@dataclass(frozen=True)
class BlockPicture:
    """Block to draw: its depthwise kernel size, and hidden channels over its input channels."""

    kernel_size: int
    expand_ratio: float


@dataclass(frozen=True)
class StagePicture:
    """Stage to draw: blocks with the same output channels; the first block has the stride."""

    channels: int
    stride: int
    blocks: tuple[BlockPicture, ...]


@dataclass(frozen=True)
class Score:
    """Mean of a metric over ``n`` examples, with its standard error and the metric's unit.

    If the network was fine-tuned several times, `of_seeds` has the means of all fine-tunings.
    """

    mean: float
    standard_error: float
    n: int
    unit: str = "fraction"
    of_seeds: tuple[float, ...] = ()

    @property
    def interval(self) -> Interval:
        """95 % interval of the mean."""
        proportion = is_proportion(self.unit)
        return metric_interval(self.mean, self.standard_error, self.n, proportion=proportion)


@dataclass(frozen=True)
class TargetLatency:
    """Latency of a finalist on one target: predicted with a standard deviation, and measured."""

    target: str
    predicted_ms: float | None
    predicted_std_ms: float | None
    measurement: Measurement


@dataclass(frozen=True)
class Finalist:
    """Network that was extracted, fine-tuned, tested, exported and measured.

    Attributes:
        id: Id of the candidate.
        architecture: Options by the name of the choice.
        stages: Stages to draw; empty if the space has no such picture.
        validation: Score on the validation split, which the search used.
        test: Score on the test split, which was not used before.
        metric: Metric of the scores, e.g. ``"accuracy"``.
        predicted_latency_ms: Latency predicted before the measurement; None without a prediction.
        predicted_std_ms: Standard deviation of that prediction.
        measurement: Measurement on the first target; None if not measured.
        macs: Multiply-accumulates for one example.
        params: Number of parameters.
        size_bytes: Size of the deployable file.
        max_relative_error: Largest deviation of the exported outputs, relative to their scale.
        bundle: Path of the bundle, relative to the report.
        picks: Names that ``hwnas export --pick`` accepts for it, e.g. ``("knee",)``.
        further: Latencies on further targets.
        delivered: Measured values of the objectives on devices, by their labels.
        missed_limits: One line for each limit that it misses, as measured.
        limit_state: State of the limits, as measured; None if there are no limits.
        path_macs: Multiply-accumulates of the path of each task, by its name; empty unless the
            network does several tasks.
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
    further: tuple[TargetLatency, ...] = ()
    delivered: Mapping[str, float] = field(default_factory=dict)
    missed_limits: tuple[str, ...] = ()
    limit_state: Literal["kept", "within noise", "broken"] | None = None
    path_macs: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Names of the picks, or the id if there are none."""
        return ", ".join(self.picks) or self.id


@dataclass(frozen=True)
class CalibrationRow:
    """Network with a predicted cost, its interval and a measured cost.

    Attributes:
        id: Id of the architecture.
        predicted: Predicted cost.
        lower: Lower end of the 90 % interval.
        upper: Upper end of the 90 % interval.
        measured: Measured cost.
        role: Whether the predictor knew the network, or not.
        noun: Name of the metric, in words.
        unit: Unit of all costs.
    """

    id: str
    predicted: float
    lower: float
    upper: float
    measured: float
    role: Role
    noun: str = "latency"
    unit: str = "ms"


@dataclass(frozen=True)
class TrainingCurveRow:
    """Logged step of a supernet's training; ``epoch`` is fractional, ``seconds`` start at 0."""

    step: int
    epoch: float
    seconds: float
    loss_largest: float
    loss_smallest: float
    learning_rate: float


@dataclass(frozen=True)
class StageTime:
    """Durations of a stage of the run, in seconds; ``gpu_s`` is None if it used no GPU."""

    name: str
    wall_s: float
    cpu_s: float
    gpu_s: float | None
    state: str


@dataclass(frozen=True)
class Hypervolume:
    """Hypervolume that a sampler reached, by the number of trials."""

    sampler: str
    trials: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class ReportData:
    """Contents of a report.

    The report replaces a part without data by the reason.

    Attributes:
        name: Name of the run.
        created: Start of the run, in words.
        seed: Seed of the run.
        target: Device and format of the finalists.
        task: Task in words, e.g. ``"classification of 10 classes"``.
        space: Name of the search space.
        space_size: Number of different networks in the space.
        objectives: Objectives, at least one.
        trials: Trials of the search.
        baseline_trials: Trials of random search; empty unless it ran.
        finalists: Finalists in display order.
        references: Reference network of the comparison, a plain network that was trained alone or a
            given model; and conversions of that model. Empty without one.
        verdict: Comparison of the finalists with the reference, in a sentence.
        calibration: Costs that were both predicted and measured.
        training: Training log of the supernet.
        learned: Distributions that a strategy has learned; empty without one.
        stage_times: Durations of the stages, in the order of the run.
        hypervolume: Hypervolume curves, one for each sampler.
        reference_point: Reference point of the hypervolume, by the label of the objective.
        break_even: Sentence with the number of targets from which one supernet costs less.
        warnings: Warnings, one sentence each.
        versions: Versions by package.
        hardware: Hardware by property.
        recipe_toml: Recipe of the run.
        next_commands: Suggested commands, one shell line each.
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
    references: tuple[Finalist, ...] = ()
    verdict: str | None = None
    calibration: tuple[CalibrationRow, ...] = ()
    training: tuple[TrainingCurveRow, ...] = ()
    learned: tuple[LearnedDistribution, ...] = ()
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
        """Objective on the vertical axis: the first to maximise, or else the first one."""
        wanted = [o for o in self.objectives if o.direction == "maximize"]
        return (wanted or self.objectives)[0]

    @property
    def other_objectives(self) -> tuple[ObjectiveInfo, ...]:
        """Objectives other than the main one."""
        return tuple(o for o in self.objectives if o is not self.main_objective)
