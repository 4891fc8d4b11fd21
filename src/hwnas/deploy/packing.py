"""Writing a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hwnas.atomic import replacing_folder, write_text
from hwnas.deploy.artifact import Artifact
from hwnas.deploy.bundle import CARD, GOLDEN, MODEL, SCHEMA, SEAL, WEIGHTS, Bundle
from hwnas.deploy.card import card
from hwnas.deploy.checksums import sha256
from hwnas.deploy.device import Device, Target
from hwnas.deploy.export import INPUT, OUTPUT, TOLERANCE, Export
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.measurement import Measurement
from hwnas.deploy.onnx_graph import copy_model, external_files
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.weights import write_weights
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
    """Pack a network; the folder appears whole or not at all and replaces an older one.

    Args:
        folder: The bundle's folder.
        onnx: The exported network.
        weights: The same weights, by the names that the PyTorch module has for them.
        preprocessing: From images to the network's input.
        outputs: What the network's outputs mean.
        architecture: Which point of its space it is.
        roles: What else was searched for it, such as the ``recipe`` that it was trained by.
        space: Name or description of the search space.
        task: Name or description of the task.
        metrics: Objects with ``name``, ``value`` and ``kind``, where known also ``unit``,
            ``standard_error``, ``n``, ``split`` and ``interval``.
        measurements: How long it took, and where.
        predictions: Objects as in ``metrics``, of numbers that nobody measured.
        export: How the ONNX file was made and how exact it is.
        golden_images: A few images, uint8 (N, H, W, C), to be packed with what they give.
        provenance: Whatever tells where the network comes from; JSON values.

    Raises:
        ConfigError: A number does not say its kind.
        ArtifactError: The ONNX file is damaged or takes another input than the preprocessing gives.
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
    """Write bundle.json with the sums of what is there, then the sums of all.

    Args:
        folder: With all other files in it.
        description: The contents of bundle.json but for artifacts and files.
        artifacts: What ships, the default first; each as `Artifact.to_json` has it, and more.
    """
    sealed = [{**each, **_sealed(folder, each["files"])} for each in artifacts]
    others = {name: sha256(folder / name) for name in (WEIGHTS, GOLDEN, CARD)}
    sums = dict(others)
    for artifact in sealed:
        sums |= artifact["sha256"]
    SEAL.write(folder, {**description, "artifacts": sealed, "files": others}, sums)


def _sealed(folder: Path, listed: Sequence[str]) -> dict[str, Any]:
    """Return what an entry of ``artifacts`` says of its files, with those that hold its weights."""
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
            f"{onnx} takes inputs of shape {session.input_shape} and the preprocessing gives "
            f"{preprocessing.input_shape}"
        )
    found = session.run(preprocessing(images).contiguous().numpy())
    outputs.describe(found)  # refuses outputs that the labels do not fit
    return found
