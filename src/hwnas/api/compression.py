"""Compression from Python: of a model by a search within it, and of one network by its variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from hwnas.api.elastic_model import Elastic, quantised_networks
from hwnas.api.given_networks import source_of
from hwnas.api.images import Data
from hwnas.api.objectives import target_names
from hwnas.api.recipes import GivenTask, SearchDescription
from hwnas.api.run import Network, Run
from hwnas.api.searching import run_described
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.targets.target import Target
from hwnas.deploy.variants.sweep import Sweep
from hwnas.experiment.from_model import (
    DEFAULT_DEVICE,
    MINUTES,
    WIDTHS,
    cost_objectives,
    model_settings,
    sparse_formats,
)
from hwnas.progress import Reporter
from hwnas.search.data.image_data import ImageData
from hwnas.stages.deployment.sweep import SweepOptions, sweep_network

__all__ = ["compress", "sweep"]


def compress(
    model: str | Path | nn.Module | Callable[..., nn.Module],
    data: Data,
    target: str | Target | Sequence[str | Target] = DEFAULT_DEVICE,
    *,
    minutes: float = MINUTES,
    max_loss_points: float = 1.0,
    weights: str | Path | None = None,
    sparsity: str | Sequence[str] = (),
    task: GivenTask | None = None,
    seed: int = 0,
    name: str | None = None,
    path: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    reporter: Reporter | None = None,
    ray_address: str | None = None,
) -> Run:
    """Search for smaller and faster networks within a trained model, starting from its weights.

    Width, depth and number format are searched at once. The networks learn from the model, the best
    are fine-tuned, and each becomes a bundle for the target on which it is fastest.

    Args:
        model: Trained model; a function that makes it; the path of an ONNX file or of a bundle; or
            a name, as for `hwnas.spaces.Elastic`.
        data: Images, as for `hwnas.search`, of the size that the model takes. An ONNX file or a
            bundle decides the size of all but `ImageData`, and a bundle their normalisation.
        target: Device, whose number formats are searched, such as ``"cpu-onnxruntime-b1-t1"``, or
            target in one number format; or several of them.
        minutes: Time budget of the whole job, in minutes.
        max_loss_points: Largest loss of a network in the first metric on validation images,
            compared with the model: in hundredths for metrics that are proportions, such as
            accuracy, otherwise in percent of the model's value.
        weights: Safetensors file with the state of the model; None if the model has its weights.
        sparsity: Structure of zeros that the weights of each block may have, such as ``"2of4"``:
            two of each four neighbours stay; or several. The networks then ship in int8, and the
            size of their weights without zeros is an objective, too.
        task: Task of the model; if None, the one that the targets of the images suggest.
        seed: Seed of all random numbers.
        name: Name of the run; that of the images if None.
        path: Folder of the run; ``runs/<name>`` if None.
        settings: Further settings of the recipe by dotted key; see `hwnas.search`.
        reporter: Reporter of the progress; the standard error if None.
        ray_address: Address of a Ray cluster; see `hwnas.search`.

    Returns:
        The run; its ``reference`` is the model as it was given, and the ``conversions`` of its
        ``result`` are the same model in smaller number formats.

    Raises:
        HwnasError: See `hwnas.search`. A `ConfigError` says if nothing of the model can be made
            smaller, or if the model is no better than constant outputs.
    """
    targets = target_names(target)
    sparsity = (sparsity,) if isinstance(sparsity, str) else tuple(sparsity)
    given: dict[str, Any] = {}
    if isinstance(model, str | Path):
        model, given = model_settings(str(model))
    within = Elastic(model, weights=weights, widths=WIDTHS, pretrained=True)
    space = quantised_networks(within, sparse_formats(sparsity)) if sparsity else within
    prepared = isinstance(data, ImageData)
    needed = {} if prepared else {f"data.{key}": value for key, value in given.items()}
    described = SearchDescription(
        data,
        space=space,
        task=task,
        minutes=minutes,
        seed=seed,
        name=name,
        settings={"run.max_loss_points": max_loss_points, **needed, **(settings or {})},
        costs=cost_objectives(targets, sparsity),
    )
    folder = None if path is None else Path(path)
    return run_described(described.experiment(folder), folder, reporter, ray_address)


def sweep(
    network: str | Path | Bundle | Run | Network,
    target: str | Target | Sequence[str | Target],
    *,
    variants: Sequence[str] = (),
    max_loss: float = 0.01,
    data: str | None = None,
    finetune_minutes: float | None = None,
    path: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Sweep:
    """Make the variants of a network, evaluate and time each, and choose the fastest allowed one.

    Args:
        network: Network of a run, run (its knee), bundle, or the path of a run, a bundle or an ONNX
            file.
        target: Target or device, such as ``"cpu-onnxruntime-b1-t1"``, or several.
        variants: Names of variants, such as ``"int8"``; all that are possible if empty.
        max_loss: Largest loss of the first metric on validation images, in the metric's unit.
        data: Images to calibrate and evaluate on, as ``data.source`` of a recipe; those of the run
            if None.
        finetune_minutes: Fine-tuning time of each variant that is fine-tuned; as for the run's
            finalists if None.
        path: Folder to make: a bundle with the chosen variant first; nothing is written if None.
        reporter: Reporter of the progress.

    Raises:
        ConfigError: A target or a variant is unknown, or a variant lacks what it needs.
        DataError: The images do not fit the network.
        ArtifactError: The network is damaged.
        DeviceError: A target cannot be used on this machine.
        StorageError: ``path`` exists already or cannot be written.
    """
    targets = target_names(target)
    source, pick = source_of(network)
    options = SweepOptions(tuple(variants), max_loss, data, pick, finetune_minutes)
    return sweep_network(source, targets, options, path, reporter)
