"""Writing of bundle folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hwnas.atomic import replacing_folder, write_text
from hwnas.deploy.bundles.artifact import GOLDEN_OUTPUTS, ROUNDED_TOLERANCE, Artifact
from hwnas.deploy.bundles.bundle import CARD, GOLDEN, MODEL, SCHEMA, SEAL, WEIGHTS, Bundle
from hwnas.deploy.bundles.checksums import sha256
from hwnas.deploy.bundles.model_card import card
from hwnas.deploy.bundles.weights import write_weights
from hwnas.deploy.export.to_onnx import INPUT, OUTPUT, TOLERANCE, Export
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.onnx.graph import copy_model, external_files
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.target import Device, Target
from hwnas.deploy.variants.sweep import outputs_of
from hwnas.errors import ArtifactError, ConfigError
from hwnas.search_spaces import Architecture, Candidate

__all__ = [
    "BundleFacts",
    "BundleNetwork",
    "ShippedVariant",
    "put_artifact",
    "reseal",
    "seal",
    "write_bundle",
]

_KINDS = ("counted", "evaluated", "measured", "modelled", "predicted", "simulated", "table")


@dataclass(frozen=True)
class ShippedVariant:
    """Variant of a network that ships in its place, beside the network in single precision.

    Attributes:
        model: ONNX file; that of the network itself if the runtime does the conversion.
        name: Name of the variant, a key of `hwnas.deploy.variants.VARIANTS`.
        target: Target of this machine, in whose runtime and number format it runs.
    """

    model: Path
    name: str
    target: Target


@dataclass(frozen=True)
class BundleNetwork:
    """Exported network, with what is needed to run it and to check its outputs.

    Attributes:
        architecture: Architecture of the network, a point of its search space.
        export: Result of the export, with the ONNX file and its accuracy.
        weights: The weights of the ONNX file, by their names in the PyTorch module.
        preprocessing: Preprocessing from images to the network's input.
        outputs: Meaning of the network's outputs.
        golden_images: A few images, uint8 (N, H, W, C), which are stored with their outputs.
        roles: Other searched parts of the candidate by role, such as the ``recipe`` that it was
            trained by.
        variant: Variant that the bundle runs; None for the network in single precision.
    """

    architecture: Architecture
    export: Export
    weights: Mapping[str, Tensor]
    preprocessing: Preprocessing
    outputs: OutputMeaning
    golden_images: NDArray[np.uint8]
    roles: Mapping[str, Architecture] = field(default_factory=dict)
    variant: ShippedVariant | None = None


@dataclass(frozen=True)
class BundleFacts:
    """Facts about a network that its bundle states.

    Attributes:
        space: Name or description of the search space.
        task: Name or description of the task.
        provenance: Origin of the network, as JSON values.
        metrics: Objects with ``name``, ``value`` and ``kind``; if known, also ``unit``,
            ``standard_error``, ``n``, ``split`` and ``interval``.
        measurements: Latency measurements of the network.
        predictions: Objects as in ``metrics``, for numbers that were not measured.

    Raises:
        ConfigError: A number has no name, no value or no known kind.
    """

    space: str | Mapping[str, Any]
    task: str | Mapping[str, Any]
    provenance: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = ()
    measurements: Sequence[Measurement] = ()
    predictions: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for number in (*self.metrics, *self.predictions):
            _check_number(number)


def write_bundle(folder: Path, network: BundleNetwork, facts: BundleFacts) -> Bundle:
    """Write a network as a bundle; the folder appears atomically and replaces an older one.

    Args:
        folder: Folder of the bundle.
        network: Network to pack.
        facts: Facts that the bundle states about it.

    Raises:
        ArtifactError: The ONNX file is damaged, or its input does not fit the preprocessing.
        StorageError: The folder cannot be written.
    """
    golden: dict[str, Any] = {
        "images": network.golden_images,
        GOLDEN_OUTPUTS: _golden_outputs(network),
    }
    description = _description(network, facts, golden[GOLDEN_OUTPUTS].shape[1:])
    with replacing_folder(folder) as temporary:
        copy_model(network.export.path, temporary / MODEL)
        write_weights(temporary / WEIGHTS, network.weights)
        artifacts = [Artifact(MODEL, "fp32", "onnxruntime")]
        if network.variant is not None:
            variant = network.variant
            artifacts.insert(0, _artifact(network, variant))
            inputs = network.preprocessing(network.golden_images).contiguous().numpy()
            put_artifact(temporary, artifacts[0], variant.model, variant.target, inputs, golden)
        np.savez_compressed(temporary / GOLDEN, **golden)
        reseal(temporary, description, [each.to_json() for each in artifacts])
    return Bundle.load(folder)


def put_artifact(
    folder: Path,
    artifact: Artifact,
    model: Path,
    target: Target,
    inputs: NDArray[np.float32],
    golden: dict[str, NDArray[Any]],
) -> None:
    """Copy the file of an artifact into a bundle, and add golden outputs, unless they are there.

    Args:
        folder: Folder of the bundle.
        artifact: Artifact that names the file and the golden outputs.
        model: ONNX file to copy.
        target: Target that computes the golden outputs.
        inputs: Golden images as inputs of the network, (N, C, H, W).
        golden: Arrays of golden.npz by name, to which the outputs are added.
    """
    if not (folder / artifact.file).exists():
        copy_model(model, folder / artifact.file)
    if artifact.golden not in golden:
        golden[artifact.golden] = outputs_of(model, [inputs], target)


def _artifact(network: BundleNetwork, variant: ShippedVariant) -> Artifact:
    runtime = variant.target.device.runtime
    return Artifact(
        MODEL if variant.model == network.export.path else f"model.{variant.name}.onnx",
        variant.name,
        runtime,
        variant.target.format,
        f"outputs of {variant.name} on {runtime}",
        ROUNDED_TOLERANCE,
    )


def _description(
    network: BundleNetwork, facts: BundleFacts, output_shape: tuple[int, ...]
) -> dict[str, Any]:
    """Return the contents of bundle.json without ``artifacts`` and ``files``."""
    inputs = {
        "name": INPUT,
        "dtype": "float32",
        "shape": ["batch", *network.preprocessing.input_shape],
    }
    outputs = {"name": OUTPUT, "dtype": "float32", "shape": ["batch", *output_shape]}
    roles = {role: found.to_json() for role, found in network.roles.items()}
    return {
        "schema": SCHEMA,
        "id": Candidate.of(network.architecture, **network.roles).id,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "architecture": network.architecture.to_json(),
        "space": facts.space,
        "task": facts.task,
        "inputs": [inputs],
        "preprocessing": network.preprocessing.to_json(),
        "outputs": {**outputs, **network.outputs.to_json()},
        "labels": list(network.outputs.labels),
        "metrics": [dict(metric) for metric in facts.metrics],
        "measurements": [measurement.to_json() for measurement in facts.measurements],
        "predictions": [dict(prediction) for prediction in facts.predictions],
        "max_relative_error": network.export.max_relative_error,
        "export": network.export.to_json(),
        "golden": {"images": len(network.golden_images), "tolerance": TOLERANCE},
        "provenance": dict(facts.provenance),
        **({"roles": roles} if roles else {}),
    }


def seal(
    folder: Path, description: Mapping[str, Any], artifacts: Sequence[Mapping[str, Any]]
) -> None:
    """Write bundle.json with the checksums of the other files, then the list of all checksums.

    Args:
        folder: Folder that holds all other files.
        description: Contents of bundle.json without ``artifacts`` and ``files``; converted files
            that it names lie in the folder, too.
        artifacts: Artifacts, the default first; each as from `Artifact.to_json`, with optional
            further keys.
    """
    sealed = [{**each, **_sealed(folder, each["files"])} for each in artifacts]
    added = [name for each in description.get("converted", ()) for name in each["files"]]
    others = {name: sha256(folder / name) for name in (WEIGHTS, GOLDEN, CARD, *added)}
    sums = dict(others)
    for artifact in sealed:
        sums |= artifact["sha256"]
    SEAL.write(folder, {**description, "artifacts": sealed, "files": others}, sums)


def reseal(
    folder: Path, description: Mapping[str, Any], artifacts: Sequence[Mapping[str, Any]]
) -> None:
    """Write the model card of a changed bundle, then bundle.json and the checksums.

    Args:
        folder: Folder that holds all other files.
        description: Contents of bundle.json; its ``artifacts`` and ``files`` are replaced.
        artifacts: Artifacts, as in `seal`.
    """
    kept = {k: v for k, v in description.items() if k not in ("artifacts", "files")}
    write_text(folder / CARD, card({**kept, "artifacts": artifacts}))
    seal(folder, kept, artifacts)


def _sealed(folder: Path, listed: Sequence[str]) -> dict[str, Any]:
    """Return an artifact's entries about its files, including those that hold its weights."""
    files = list(dict.fromkeys([*listed, *external_files(folder / listed[0])]))
    return {
        "files": files,
        "sha256": {name: sha256(folder / name) for name in files},
        "bytes": sum((folder / name).stat().st_size for name in files),
    }


def _check_number(number: Mapping[str, Any]) -> None:
    missing = {"name", "value", "kind"} - set(number)
    if missing or number["kind"] not in _KINDS:
        raise ConfigError(
            f"{dict(number)} is not a number for a bundle: it needs a name, a value and a kind, "
            f"one of {', '.join(_KINDS)}"
        )


def _golden_outputs(network: BundleNetwork) -> NDArray[Any]:
    model, preprocessing = network.export.path, network.preprocessing
    session = RUNTIMES["onnxruntime"].load(model, Target(Device("cpu", "onnxruntime")))
    if session.input_shape != preprocessing.input_shape:
        raise ArtifactError(
            f"{model} takes inputs of shape {session.input_shape}, but the preprocessing gives "
            f"{preprocessing.input_shape}"
        )
    found = session.run(preprocessing(network.golden_images).contiguous().numpy())
    network.outputs.describe(found)  # raises an error if the labels do not fit
    return found
