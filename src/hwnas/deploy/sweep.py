"""Every variant of a network on every device in question: checked, judged, timed, and one chosen.

The choice goes by latency that was measured, all variants taking turns in one session, among those
whose loss on real images was measured, too, in the runtime that they ship for. What eight bits do
to the speed of a network is not known beforehand: some it makes faster and some slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.agreement import TOLERANCE, relative_error
from hwnas.deploy.answers import Answers, compare_answers
from hwnas.deploy.device import FORMATS, Device, Target
from hwnas.deploy.io import OutputMeaning
from hwnas.deploy.measurement import Measurement
from hwnas.deploy.number_format import number_format
from hwnas.deploy.onnx_graph import model_bytes
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.stopwatch import TimingSettings
from hwnas.deploy.timing import Subject, measure_together
from hwnas.deploy.variants import Made, Material, Variant
from hwnas.errors import ArtifactError, ConfigError, DataError
from hwnas.interval import (
    Interval,
    is_proportion,
    metric_interval,
    paired_difference_interval,
)

__all__ = ["Contender", "Examiner", "Quality", "Sweep", "outputs_of", "sweep"]

SCHEMA = 1
_UNJUDGED = (
    "its quality is not known: it computes something else than fp32 does, and there are no images "
    "with targets to judge it by"
)


@dataclass(frozen=True)
class Quality:
    """What a file is worth in its runtime, on images that it did not learn from.

    Attributes:
        metric: Name of the first metric of the task.
        direction: Whether more or less of it is better.
        value: Of this file.
        standard_error: Of that value.
        loss: How much worse than the network in single precision, on the same images; negative if
            better.
        loss_standard_error: Of that difference.
        unit: Of all four.
        n: How many images.
        split: Which images.
    """

    metric: str
    direction: Literal["maximize", "minimize"]
    value: float
    standard_error: float
    loss: float
    loss_standard_error: float
    unit: str
    n: int
    split: str

    @property
    def interval(self) -> Interval:
        """The 95 % interval of the value."""
        proportion = is_proportion(self.unit)
        return metric_interval(self.value, self.standard_error, self.n, proportion=proportion)

    @property
    def loss_interval(self) -> Interval:
        """The 95 % interval of the loss, which is between the same images."""
        error, proportion = self.loss_standard_error, is_proportion(self.unit)
        return paired_difference_interval(self.loss, error, self.n, proportion=proportion)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; both intervals at 95 %."""
        ends = {"interval": self.interval.ends, "loss_interval": self.loss_interval.ends}
        return {"kind": "evaluated", **asdict(self), **ends}


class Examiner(Protocol):
    """Judges outputs by the targets of images."""

    def inputs(self) -> Iterable[NDArray[np.float32]]:
        """Batches (N, ...) of prepared images, the same at every call."""

    def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
        """What the outputs for all inputs are worth beside those of the network in fp32."""


@dataclass(frozen=True)
class Contender:
    """A variant on a target.

    Attributes:
        variant: Name of the variant.
        target: Name of the target.
        made: The file; None if it could not be made.
        bytes: Size of that file.
        difference: Largest difference of an output from the network in fp32, as a share of the
            largest output; None if it does not run there.
        answers: Beside those of the network in fp32; None where `difference` is, or where
            nothing is known of what the outputs mean.
        quality: What it is worth; None if there are no images to tell by.
        measurement: How long it takes; None if it does not run.
        refusal: Why it cannot be chosen; empty if it can.
    """

    variant: str
    target: str
    made: Made | None = None
    bytes: int = 0
    difference: float | None = None
    answers: Answers | None = None
    quality: Quality | None = None
    measurement: Measurement | None = None
    refusal: str = ""

    @property
    def runs(self) -> bool:
        """Whether it gives outputs at all."""
        return self.difference is not None

    @property
    def latency_ms(self) -> float:
        """As measured, for a batch; infinite if it does not run."""
        return math.inf if self.measurement is None else self.measurement.latency_ms

    def to_json(self) -> dict[str, Any]:
        """A JSON object; numbers say their kind."""
        quality, measured = self.quality, self.measurement
        return {
            "variant": self.variant,
            "target": self.target,
            "bytes": self.bytes,
            "made": {} if self.made is None else dict(self.made.about),
            "difference": self.difference,
            "answers": None if self.answers is None else self.answers.to_json(),
            "quality": None if quality is None else quality.to_json(),
            "measurement": None if measured is None else measured.to_json(),
            "refusal": self.refusal,
        }


@dataclass(frozen=True)
class Sweep:
    """What became of all variants on all devices.

    Attributes:
        contenders: In the order of variants and devices.
        max_loss: What a variant may lose in the first metric, in its unit.
        tested: What the chosen one is worth on images that chose nothing, if there are any.
    """

    contenders: tuple[Contender, ...]
    max_loss: float
    tested: Quality | None = None

    @property
    def able(self) -> list[Contender]:
        """Those that can be chosen, the fastest first."""
        able = [each for each in self.contenders if not each.refusal]
        return sorted(able, key=lambda each: each.latency_ms)

    @property
    def chosen(self) -> Contender:
        """The fastest that can be chosen.

        Raises:
            ArtifactError: There is none; the message says why of each.
        """
        if not self.able:
            reasons = "; ".join(f"{c.variant} on {c.target}: {c.refusal}" for c in self.contenders)
            raise ArtifactError(f"no variant can be chosen: {reasons or 'none was made'}")
        return self.able[0]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; numbers say their kind."""
        return {
            "schema": SCHEMA,
            "max_loss": self.max_loss,
            "chosen": [self.chosen.variant, self.chosen.target],
            "tested": None if self.tested is None else self.tested.to_json(),
            "contenders": [each.to_json() for each in self.contenders],
        }


def sweep(
    material: Material,
    variants: Sequence[Variant],
    devices: Sequence[Device],
    folder: Path,
    *,
    meaning: OutputMeaning | None = None,
    examiner: Examiner | None = None,
    settings: TimingSettings | None = None,
    progress: Callable[[float, str], None] = lambda share, doing: None,
) -> Sweep:
    """Make all variants, run and judge each on every device that has its format, and time them.

    Args:
        material: Of the network.
        variants: Which to make.
        devices: Where they shall run: of one hardware, batch and number of threads, for only the
            latencies of such can be compared.
        folder: For the files of the variants.
        meaning: What the outputs stand for, if that is known.
        examiner: Judges what variants lose, if there are images with targets.
        settings: How much to time.
        progress: Called with the share that is done, from 0 to 1, and what is done next.

    Raises:
        ConfigError: There are no variants or devices, these cannot be compared, or the network is
            not in single precision.
        ArtifactError: The network itself is damaged.
        DeviceError: A device cannot be used on this machine.
    """
    _check(material, variants, devices)
    trial = _Trial.of(material, meaning, examiner)
    contenders = []
    for done, variant in enumerate(variants):
        progress(0.6 * done / len(variants), f"making {variant.name}")
        contenders += trial.contenders(variant, devices, folder / f"{variant.name}.onnx")
    subjects = {
        f"{index}": Subject(each.made.model, Target.parse(each.target))
        for index, each in enumerate(contenders)
        if each.made is not None and each.runs
    }
    measured = measure_together(
        subjects, settings, lambda share: progress(0.6 + 0.4 * share, "timing")
    )
    timed = [
        replace(each, measurement=measured.get(f"{index}")) for index, each in enumerate(contenders)
    ]
    return Sweep(tuple(timed), material.max_loss)


def _check(material: Material, variants: Sequence[Variant], devices: Sequence[Device]) -> None:
    found = number_format(material.model)
    if found != "fp32":
        raise ConfigError(
            f"{material.model} computes in {found} already, and variants are made of a network in "
            "fp32 and compared with it; give the file that it was made of"
        )
    for variant in variants:
        if lacks := variant.lacks(material):
            raise ConfigError(f"variant {variant.name} cannot be made: {lacks}")
    if not variants or not devices:
        raise ConfigError("a sweep needs a variant and a target at least")
    if len({(each.hardware, each.batch, each.threads) for each in devices}) > 1:
        raise ConfigError(
            f"the latencies of {', '.join(each.name for each in devices)} cannot be compared; "
            "sweep targets of the same hardware, batch and threads together"
        )


@dataclass(frozen=True)
class _Trial:
    """Runs variants on the same inputs as the network in fp32."""

    material: Material
    inputs: Callable[[], Iterable[NDArray[np.float32]]]
    expected: NDArray[Any]
    meaning: OutputMeaning | None
    examiner: Examiner | None

    @classmethod
    def of(
        cls, material: Material, meaning: OutputMeaning | None, examiner: Examiner | None
    ) -> _Trial:
        inputs = (lambda: material.calibration) if examiner is None else examiner.inputs
        expected = outputs_of(material.model, inputs())
        if meaning is not None and not meaning.fits(expected.shape):
            raise DataError(
                f"{material.model.name} gives outputs of shape {expected.shape[1:]} for an image, "
                f"and the {len(meaning.labels)} classes of the images need {meaning.shape}"
            )
        return cls(material, inputs, expected, meaning, examiner)

    def contenders(
        self, variant: Variant, devices: Sequence[Device], path: Path
    ) -> list[Contender]:
        """The variant on each of the devices that has its format."""
        targets = [
            Target(device, variant.format)
            for device in devices
            if variant.format in FORMATS[device.runtime]
        ]
        if not targets:
            return []
        try:
            made = variant.make(self.material, path)
        except ArtifactError as error:
            return [Contender(variant.name, t.name, refusal=str(error)) for t in targets]
        return [self._contender(variant.name, made, target) for target in targets]

    def _contender(self, variant: str, made: Made, target: Target) -> Contender:
        contender = Contender(variant, target.name, made, model_bytes(made.model))
        try:
            outputs = outputs_of(made.model, self.inputs(), target)
        except ArtifactError as error:
            return replace(contender, refusal=str(error))
        if not np.isfinite(outputs).all():
            return replace(contender, refusal="some of its outputs are no numbers")
        return self._judged(contender, outputs)

    def _judged(self, contender: Contender, outputs: NDArray[Any]) -> Contender:
        difference = relative_error(outputs, self.expected)
        agreed = None
        if self.meaning is not None:
            agreed = compare_answers(self.meaning, outputs, self.expected)
        quality = None
        refusal = "" if difference <= TOLERANCE else _UNJUDGED
        if self.examiner is not None:
            quality = self.examiner.judge(outputs, self.expected)
            refusal = self._too_large(quality)
        return replace(
            contender, difference=difference, answers=agreed, quality=quality, refusal=refusal
        )

    def _too_large(self, quality: Quality) -> str:
        limit = self.material.max_loss
        if quality.loss <= limit:
            return ""
        return f"it loses {quality.loss:.4g} of {quality.metric}; at most {limit:g} is allowed"


def outputs_of(
    model: Path, inputs: Iterable[NDArray[np.float32]], target: Target | None = None
) -> NDArray[Any]:
    """What a file says of batches (N, ...), on ONNX Runtime if no target is given.

    Devices elsewhere only time: what a file says there is found out here, in the same runtime.
    """
    batches = iter(inputs)
    first = next(batches)
    if target is None:
        target = Target(Device("cpu", "onnxruntime", len(first)), number_format(model))
    if not target.device.is_here:
        device = target.device
        target = replace(target, device=Device.here(device.runtime, device.batch))
    session = open_session(model, target)
    return np.concatenate([session.run(batch) for batch in (first, *batches)])
