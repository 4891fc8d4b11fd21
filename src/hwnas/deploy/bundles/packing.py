"""Writing of bundle folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hwnas.atomic import replacing_folder, write_text
from hwnas.deploy.bundles.artifact import Artifact
from hwnas.deploy.bundles.bundle import CARD, GOLDEN, MODEL, SCHEMA, SEAL, WEIGHTS, Bundle
from hwnas.deploy.bundles.checksums import sha256
from hwnas.deploy.bundles.model_card import card
from hwnas.deploy.bundles.weights import write_weights
from hwnas.deploy.export.to_onnx import INPUT, OUTPUT, TOLERANCE, Export
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.onnx.graph import copy_model, external_files
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.device import Device, Target
from hwnas.errors import ArtifactError, ConfigError
from hwnas.search_spaces import Architecture, Candidate

__all__ = ["seal", "write_bundle"]

_KINDS = ("counted", "evaluated", "measured", "modelled", "predicted", "simulated", "table")


def write_bundle(
    folder: Path,
    *,
    onnx: Path,
    weights: Mapping[str, Tensor],
    preprocessing: Preprocessing,
    outputs: OutputMeaning,
    architecture: Architecture,
    roles: Mapping[str, Architecture] | None = None,
    space: str | Mapping[str, Any],
    task: str | Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]],
    measurements: Sequence[Measurement],
    predictions: Sequence[Mapping[str, Any]],
    export: Export,
    golden_images: NDArray[np.uint8],
    provenance: Mapping[str, Any],
) -> Bundle:
    """Write a network as a bundle; the folder appears atomically and replaces an older one.

    Args:
        folder: Folder of the bundle.
        onnx: Exported network.
        weights: The same weights, by their names in the PyTorch module.
        preprocessing: Preprocessing from images to the network's input.
        outputs: Meaning of the network's outputs.
        architecture: Architecture of the network, a point of its search space.
        roles: Other searched parts of the candidate by role, such as the ``recipe`` that it was
            trained by.
        space: Name or description of the search space.
        task: Name or description of the task.
        metrics: Objects with ``name``, ``value`` and ``kind``; if known, also ``unit``,
            ``standard_error``, ``n``, ``split`` and ``interval``.
        measurements: Latency measurements of the network.
        predictions: Objects as in ``metrics``, for numbers that were not measured.
        export: Result of the export, with the accuracy of the ONNX file.
        golden_images: A few images, uint8 (N, H, W, C), which are stored with their outputs.
        provenance: Origin of the network, as JSON values.

    Raises:
        ConfigError: A number has no name, no value or no known kind.
        ArtifactError: The ONNX file is damaged, or its input does not fit the preprocessing.
        StorageError: The folder cannot be written.
    """
    for number in (*metrics, *predictions):
        _check_number(number)
    golden_outputs = _golden_outputs(onnx, preprocessing, outputs, golden_images)
    description: dict[str, Any] = {
        "schema": SCHEMA,
        "id": Candidate.of(architecture, **(roles or {})).id,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "architecture": architecture.to_json(),
        "space": space,
        "task": task,
        "inputs": [
            {
                "name": INPUT,
                "dtype": "float32",
                "shape": ["batch", *preprocessing.input_shape],
            }
        ],
        "preprocessing": preprocessing.to_json(),
        "outputs": {
            "name": OUTPUT,
            "dtype": "float32",
            "shape": ["batch", *golden_outputs.shape[1:]],
            **outputs.to_json(),
        },
        "labels": list(outputs.labels),
        "metrics": [dict(metric) for metric in metrics],
        "measurements": [measurement.to_json() for measurement in measurements],
        "predictions": [dict(prediction) for prediction in predictions],
        "max_relative_error": export.max_relative_error,
        "export": export.to_json(),
        "golden": {"images": len(golden_images), "tolerance": TOLERANCE},
        "provenance": dict(provenance),
    }
    if roles:
        description["roles"] = {role: found.to_json() for role, found in roles.items()}
    with replacing_folder(folder) as temporary:
        copy_model(onnx, temporary / MODEL)
        write_weights(temporary / WEIGHTS, weights)
        np.savez_compressed(temporary / GOLDEN, images=golden_images, outputs=golden_outputs)
        write_text(temporary / CARD, card(description))
        seal(temporary, description, [Artifact(MODEL, "fp32", "onnxruntime").to_json()])
    return Bundle.load(folder)


def seal(
    folder: Path, description: Mapping[str, Any], artifacts: Sequence[Mapping[str, Any]]
) -> None:
    """Write bundle.json with the checksums of the other files, then the list of all checksums.

    Args:
        folder: Folder that holds all other files.
        description: Contents of bundle.json without ``artifacts`` and ``files``.
        artifacts: Artifacts, the default first; each as from `Artifact.to_json`, with optional
            further keys.
    """
    sealed = [{**each, **_sealed(folder, each["files"])} for each in artifacts]
    others = {name: sha256(folder / name) for name in (WEIGHTS, GOLDEN, CARD)}
    sums = dict(others)
    for artifact in sealed:
        sums |= artifact["sha256"]
    SEAL.write(folder, {**description, "artifacts": sealed, "files": others}, sums)


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


def _golden_outputs(
    onnx: Path, preprocessing: Preprocessing, outputs: OutputMeaning, images: NDArray[np.uint8]
) -> NDArray[Any]:
    session = RUNTIMES["onnxruntime"].load(onnx, Target(Device("cpu", "onnxruntime")))
    if session.input_shape != preprocessing.input_shape:
        raise ArtifactError(
            f"{onnx} takes inputs of shape {session.input_shape}, but the preprocessing gives "
            f"{preprocessing.input_shape}"
        )
    found = session.run(preprocessing(images).contiguous().numpy())
    outputs.describe(found)  # raises an error if the labels do not fit
    return found
