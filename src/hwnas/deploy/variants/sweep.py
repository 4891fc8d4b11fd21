"""Sweep over variants and devices: each variant is checked, evaluated and timed, and one is chosen.

The choice is by measured latency, with the timing of all variants interleaved in one session. It is
among the variants whose loss on real images was measured, too, in the runtime that they ship for.
The effect of eight bits on the speed of a network is not known beforehand: some networks become
faster and some slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.export.comparison import TOLERANCE, relative_error
from hwnas.deploy.io import OutputMeaning
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement, TimedNetwork
from hwnas.deploy.measurement.timing import measure_together
from hwnas.deploy.onnx.graph import model_bytes
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.targets.number_format import number_format, onnxruntime_target
from hwnas.deploy.targets.target import RUNTIMES, Device, Target
from hwnas.deploy.variants import ConvertedNetwork, Variant, VariantInputs
from hwnas.deploy.variants.prediction_agreement import PredictionAgreement, compare_answers
from hwnas.deploy.variants.quality import OutputEvaluator, Quality
from hwnas.errors import ArtifactError, ConfigError, DataError

__all__ = ["Sweep", "VariantResult", "outputs_of", "sweep"]

SCHEMA = 1
_UNJUDGED = (
    "its quality is unknown: its outputs differ from those in fp32, and there are no images with "
    "targets to evaluate it on"
)


@dataclass(frozen=True)
class VariantResult:
    """Result of a variant on a target.

    Attributes:
        variant: Name of the variant.
        target: Name of the target.
        made: File of the variant; None if it could not be made.
        bytes: Size of that file in bytes.
        difference: Largest difference of an output from the network in fp32, as a share of the
            largest output; None if the variant does not run there.
        answers: Agreement with the predictions of the network in fp32; None if `difference` is
            None, or if the meaning of the outputs is not known.
        quality: Metric and loss of the variant; None if there are no images to evaluate it on.
        measurement: Latency measurement; None if the variant does not run.
        refusal: Reason why the variant cannot be chosen; empty if it can.
    """

    variant: str
    target: str
    made: ConvertedNetwork | None = None
    bytes: int = 0
    difference: float | None = None
    answers: PredictionAgreement | None = None
    quality: Quality | None = None
    measurement: Measurement | None = None
    refusal: str = ""

    @property
    def runs(self) -> bool:
        """True if the variant gives outputs."""
        return self.difference is not None

    @property
    def latency_ms(self) -> float:
        """Measured latency of a batch in milliseconds; infinite if the variant does not run."""
        return math.inf if self.measurement is None else self.measurement.latency_ms

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, whose numbers state their kind."""
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
    """Results of all variants on all devices.

    Attributes:
        results: Results in the order of variants and devices.
        max_loss: Largest allowed loss of a variant in the first metric, in its unit.
        tested: Quality of the chosen variant on images that had no part in the choice, if there are
            any.
    """

    results: tuple[VariantResult, ...]
    max_loss: float
    tested: Quality | None = None

    @property
    def able(self) -> list[VariantResult]:
        """Variants that can be chosen, the fastest first."""
        able = [each for each in self.results if not each.refusal]
        return sorted(able, key=lambda each: each.latency_ms)

    @property
    def chosen(self) -> VariantResult:
        """Fastest variant that can be chosen.

        Raises:
            ArtifactError: No variant can be chosen; the message gives the reason for each.
        """
        if not self.able:
            reasons = "; ".join(f"{c.variant} on {c.target}: {c.refusal}" for c in self.results)
            raise ArtifactError(f"no variant can be chosen: {reasons or 'none was made'}")
        return self.able[0]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, whose numbers state their kind."""
        return {
            "schema": SCHEMA,
            "max_loss": self.max_loss,
            "chosen": [self.chosen.variant, self.chosen.target],
            "tested": None if self.tested is None else self.tested.to_json(),
            "contenders": [each.to_json() for each in self.results],
        }


def sweep(
    material: VariantInputs,
    variants: Sequence[Variant],
    devices: Sequence[Device],
    folder: Path,
    *,
    meaning: OutputMeaning | None = None,
    evaluator: OutputEvaluator | None = None,
    settings: TimingSettings | None = None,
    progress: Callable[[float, str], None] = lambda share, doing: None,
) -> Sweep:
    """Make all variants, evaluate each on every device that has its format, and time them.

    Args:
        material: Network, calibration images and other inputs from which variants are made.
        variants: Variants to make.
        devices: Devices on which to run them. All have the same hardware, batch and number of
            threads, because only then can their latencies be compared.
        folder: Folder for the files of the variants.
        meaning: Meaning of the outputs, if it is known.
        evaluator: Evaluator of the loss of variants, if there are images with targets.
        settings: Timing settings.
        progress: Function that is called with the completed share, from 0 to 1, and the next task.

    Raises:
        ConfigError: There are no variants or devices, the devices cannot be compared, or the
            network is not in single precision.
        ArtifactError: The network itself is damaged.
        DeviceError: A device cannot be used on this machine.
    """
    _check(material, variants, devices)
    trial = _Trial.of(material, meaning, evaluator)
    results = []
    for done, variant in enumerate(variants):
        progress(0.6 * done / len(variants), f"making {variant.name}")
        results += trial.results_of(variant, devices, folder / f"{variant.name}.onnx")
    subjects = {
        f"{index}": TimedNetwork(each.made.model, Target.parse(each.target))
        for index, each in enumerate(results)
        if each.made is not None and each.runs
    }
    measured = measure_together(
        subjects, settings, lambda share: progress(0.6 + 0.4 * share, "timing")
    )
    timed = [
        replace(each, measurement=measured.get(f"{index}")) for index, each in enumerate(results)
    ]
    return Sweep(tuple(timed), material.max_loss)


def _check(material: VariantInputs, variants: Sequence[Variant], devices: Sequence[Device]) -> None:
    found = number_format(material.model)
    if found != "fp32":
        raise ConfigError(
            f"{material.model} computes in {found} already, but variants are made from a network "
            "in fp32 and compared with it; give the fp32 file that it was made from"
        )
    for variant in variants:
        if lacks := variant.lacks(material):
            raise ConfigError(f"variant {variant.name} cannot be made: {lacks}")
    if not variants or not devices:
        raise ConfigError("a sweep needs at least one variant and one target")
    if len({(each.hardware, each.batch, each.threads) for each in devices}) > 1:
        raise ConfigError(
            f"the latencies of {', '.join(each.name for each in devices)} cannot be compared; "
            "sweep targets of the same hardware, batch and threads together"
        )


@dataclass(frozen=True)
class _Trial:
    """Evaluation of variants on the same inputs as the network in fp32."""

    material: VariantInputs
    inputs: Callable[[], Iterable[NDArray[np.float32]]]
    expected: NDArray[Any]
    meaning: OutputMeaning | None
    evaluator: OutputEvaluator | None

    @classmethod
    def of(
        cls,
        material: VariantInputs,
        meaning: OutputMeaning | None,
        evaluator: OutputEvaluator | None,
    ) -> _Trial:
        inputs = (lambda: material.calibration) if evaluator is None else evaluator.inputs
        expected = outputs_of(material.model, inputs())
        if meaning is not None and not meaning.fits(expected.shape):
            raise DataError(
                f"{material.model.name} gives outputs of shape {expected.shape[1:]} for an image, "
                f"but the {len(meaning.labels)} classes of the images need {meaning.shape}"
            )
        return cls(material, inputs, expected, meaning, evaluator)

    def results_of(
        self, variant: Variant, devices: Sequence[Device], path: Path
    ) -> list[VariantResult]:
        """Return the results of a variant on each of the devices that has its format."""
        targets = [
            Target(device, variant.format)
            for device in devices
            if variant.format in RUNTIMES[device.runtime].formats
        ]
        if not targets:
            return []
        try:
            made = variant.make(self.material, path)
        except ArtifactError as error:
            return [VariantResult(variant.name, t.name, refusal=str(error)) for t in targets]
        return [self._result(variant.name, made, target) for target in targets]

    def _result(self, variant: str, made: ConvertedNetwork, target: Target) -> VariantResult:
        result = VariantResult(variant, target.name, made, model_bytes(made.model))
        try:
            outputs = outputs_of(made.model, self.inputs(), target)
        except ArtifactError as error:
            return replace(result, refusal=str(error))
        if not np.isfinite(outputs).all():
            return replace(result, refusal="some of its outputs are NaN or infinite")
        return self._judged(result, outputs)

    def _judged(self, result: VariantResult, outputs: NDArray[Any]) -> VariantResult:
        difference = relative_error(outputs, self.expected)
        agreed = None
        if self.meaning is not None:
            agreed = compare_answers(self.meaning, outputs, self.expected)
        quality = None
        refusal = "" if difference <= TOLERANCE else _UNJUDGED
        if self.evaluator is not None:
            quality = self.evaluator.judge(outputs, self.expected)
            refusal = self._too_large(quality)
        return replace(
            result, difference=difference, answers=agreed, quality=quality, refusal=refusal
        )

    def _too_large(self, quality: Quality) -> str:
        limit = self.material.max_loss
        if quality.loss <= limit:
            return ""
        return f"it loses {quality.loss:.4g} in {quality.metric}; at most {limit:g} is allowed"


def outputs_of(
    model: Path, inputs: Iterable[NDArray[np.float32]], target: Target | None = None
) -> NDArray[Any]:
    """Return the outputs of a file for batches (N, ...), in ONNX Runtime if no target is given.

    Remote devices only time. For a target on such a device, the outputs are computed on this
    machine, in the same runtime.
    """
    batches = iter(inputs)
    first = next(batches)
    if target is None:
        target = onnxruntime_target(model, len(first))
    if not target.device.is_here:
        device = target.device
        target = replace(target, device=Device.here(device.runtime, device.batch))
    session = open_session(model, target)
    return np.concatenate([session.run(batch) for batch in (first, *batches)])
