"""Sweep over variants of the network in a run, a bundle or an ONNX file, to choose one to ship."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.repacking import write_variants
from hwnas.deploy.onnx.early_exit import refuse_early_exit
from hwnas.deploy.quantization.quantize import random_batches
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.target import Device, Target
from hwnas.deploy.variants import VARIANTS, Variant, VariantInputs
from hwnas.deploy.variants.named import variant_named
from hwnas.deploy.variants.quality import Quality
from hwnas.deploy.variants.sweep import Sweep, outputs_of, sweep
from hwnas.deploy.variants.variant import Retrain
from hwnas.errors import ConfigError, StorageError
from hwnas.progress import ProgressCallback, Reporter, make_reporter
from hwnas.recipe import Recipe
from hwnas.run_folder import RunFolder
from hwnas.search.evaluation.converted import calibration_batches
from hwnas.search.evaluation.scoring import SplitName
from hwnas.search.training import TrainConfig
from hwnas.stages.deployment.model_source import ModelSource, opened
from hwnas.stages.finalists.variant_tuning import retraining
from hwnas.stages.split_evaluator import SplitEvaluator

__all__ = ["SweepOptions", "sweep_network"]

_SPLITS: tuple[SplitName, ...] = ("validation", "test")  # to choose by, to report


@dataclass(frozen=True)
class SweepOptions:
    """Variants to try, and the allowed loss.

    Attributes:
        variants: Names of variants; if empty, all that the network and its images allow.
        max_loss: Largest loss of the first metric on validation images, in the metric's unit.
        data: Images to calibrate and evaluate on, as ``data.source`` of a recipe; those of the run
            if None.
        pick: Network of a run to use.
        finetune_minutes: Fine-tuning time of each variant that is fine-tuned; as for the run's
            finalists if None.
    """

    variants: tuple[str, ...] = ()
    max_loss: float = 0.01
    data: str | None = None
    pick: str | None = None
    finetune_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in self.variants:
            variant_named(name)
        if not self.max_loss >= 0:
            raise ConfigError(f"max_loss is {self.max_loss}; expected 0 or more")
        if self.finetune_minutes is not None and not self.finetune_minutes > 0:
            raise ConfigError(f"finetune_minutes is {self.finetune_minutes}; expected more than 0")


def sweep_network(
    source: str | Path | RunFolder,
    targets: Sequence[str],
    options: SweepOptions | None = None,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Sweep:
    """Make the variants of a network, evaluate and time each, and choose the fastest allowed one.

    Args:
        source: Run, folder of a run, folder of a bundle, or ONNX file.
        targets: Names of targets or of devices, e.g. ``"cpu-onnxruntime-b1-t1"``. The sweep chooses
            the number format, so the format of a target is ignored.
        options: Variants to try, and the allowed loss.
        out: Folder to make: a bundle with the chosen variant as its first artifact and all others
            that may be shipped; for an ONNX file, the chosen file.
        reporter: Reporter of progress to the user.

    Raises:
        ConfigError: A target or a variant is unknown, or a variant lacks what it needs.
        DataError: The images do not fit the network.
        ArtifactError: The network is damaged.
        DeviceError: A target cannot be used on this machine.
        StorageError: ``out`` exists already or cannot be written.
    """
    options, reporter = options or SweepOptions(), reporter or make_reporter()
    devices = list(dict.fromkeys(map(Device.parse, targets)))
    if out is not None and Path(out).exists():
        raise StorageError(f"{out} exists already; choose another --out")
    place = source if isinstance(source, RunFolder) else Path(source)
    with (
        opened(place, options.data, options.pick) as network,
        tempfile.TemporaryDirectory() as folder,
    ):
        refuse_early_exit(
            network.model,
            "a sweep makes variants that compute the whole network",
            "sweep a network with exit_share 0",
        )
        if network.bundle is not None and out is not None:
            network.bundle.verify()  # else a damaged file would get a new checksum
        if network.images is None:
            reporter.note(
                "no images for the evaluation: variants with other outputs are timed but not chosen"
            )
        with reporter.stage("sweep") as advance:
            found = _swept(network, devices, options, Path(folder), advance)
        if out is not None:
            write_variants(network.bundle or network.model, found, Path(out))
    return found


def _retrain(network: ModelSource, minutes: float | None) -> Retrain | None:
    """Return the function that fine-tunes variants; None without a run that fine-tunes."""
    if network.run_inputs is None or network.bundle is None:
        return None
    config, bundle = _fine_tuning(network.run_inputs.recipe, minutes), network.bundle
    if config is None:
        return None
    return retraining(network.run_inputs, bundle.architecture, bundle.weights(), config)


def _fine_tuning(recipe: Recipe, minutes: float | None) -> TrainConfig | None:
    if minutes is None:
        return recipe.fine_tuning
    deploy = replace(recipe.deploy, finetune_epochs=None, finetune_minutes=minutes)
    return deploy.fine_tuning(recipe.train)


def _swept(
    network: ModelSource,
    devices: Sequence[Device],
    options: SweepOptions,
    folder: Path,
    advance: ProgressCallback,
) -> Sweep:
    images, batch = network.images, devices[0].batch
    validation, test = (network.evaluator(split, batch) for split in _SPLITS)
    if images is None or validation is None or test is None:
        shape = RUNTIMES["onnxruntime"].load(network.model, Target(devices[0])).input_shape
        material = VariantInputs(network.model, random_batches(shape, batch))
        return sweep(material, _variants(options, material), devices, folder, progress=advance)
    material = VariantInputs(
        network.model,
        calibration_batches(images.data.train, images.preprocessing, network.at_once(batch)),
        _loss(network.model, validation),
        options.max_loss,
        _retrain(network, options.finetune_minutes),
    )
    found = sweep(
        material,
        _variants(options, material),
        devices,
        folder,
        meaning=images.task.meaning,
        evaluator=validation,
        progress=advance,
    )
    return replace(found, tested=_tested(network.model, found, test))


def _variants(options: SweepOptions, material: VariantInputs) -> list[Variant]:
    """Return the requested variants, or all that can be made."""
    if options.variants:
        named = map(variant_named, options.variants)
        return list({variant.name: variant for variant in named}.values())
    return [variant for variant in VARIANTS.values() if not variant.lacks(material)]


def _loss(model: Path, evaluator: SplitEvaluator) -> Callable[[Path], float]:
    @cache
    def expected() -> NDArray[Any]:
        return outputs_of(model, evaluator.inputs())

    def loss(path: Path) -> float:
        outputs = outputs_of(path, evaluator.inputs())
        if not np.isfinite(outputs).all():
            return math.inf
        return evaluator.judge(outputs, expected()).loss

    return loss


def _tested(model: Path, found: Sweep, evaluator: SplitEvaluator) -> Quality | None:
    """Return the quality of the chosen variant on test images; None if no variant is allowed."""
    if not found.able:
        return None
    made, target = found.chosen.made, Target.parse(found.chosen.target)
    assert made is not None
    outputs = outputs_of(made.model, evaluator.inputs(), target)
    return evaluator.judge(outputs, outputs_of(model, evaluator.inputs()))
