"""Export of bundles to model repositories of NVIDIA's Triton Inference Server.

::

    FOLDER/NAME/config.pbtxt    inputs, outputs and batching, as protobuf text (ModelConfig)
    FOLDER/NAME/labels.txt      one class per line, if the outputs are class scores
    FOLDER/NAME/1/model.onnx    the network; it takes preprocessed floats, not pixels
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from hwnas.atomic import replacing_folder, write_text
from hwnas.deploy.bundles.bundle import MODEL, Bundle
from hwnas.deploy.export.to_onnx import INPUT, OUTPUT
from hwnas.deploy.onnx.graph import copy_model
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["model_name", "write_model_repository"]

_CONFIG, _LABELS = "config.pbtxt", "labels.txt"


def model_name(own: str, name: str | None = None) -> str:
    """Return the name of a model on a server.

    Args:
        own: Id of the network or cascade, which is the name by default.
        name: Name given by the user; None for the default.

    Raises:
        ConfigError: The name cannot be part of an address and the name of a folder.
    """
    found = own if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", found):
        raise ConfigError(
            f"{found!r} cannot be a model's name; use up to 100 letters, digits, '_', '.' and '-'"
        )
    return found


def write_model_repository(
    bundle: Bundle,
    folder: Path,
    *,
    name: str | None = None,
    max_batch: int = 8,
    max_wait_ms: float = 2.0,
) -> Path:
    """Add a bundle to a model repository of Triton Inference Server.

    Args:
        bundle: Bundle to be served.
        folder: Model repository, created if it does not exist. A model of the same name is
            replaced.
        name: Name of the model; the network's id if None.
        max_batch: Largest number of images that the server may run at once.
        max_wait_ms: Longest time that a request waits for others to join it, in milliseconds.

    Returns:
        The model's folder.

    Raises:
        ConfigError: The name or a number is not allowed.
        ArtifactError: bundle.json does not state the shape of the outputs.
        StorageError: The folder cannot be written.
    """
    if max_batch < 1 or not 0 <= max_wait_ms < math.inf:
        raise ConfigError(
            f"max_batch {max_batch}, max_wait_ms {max_wait_ms}: expected at least 1 and 0"
        )
    found = model_name(str(bundle.description["id"]), name)
    config = _config(bundle, found, max_batch, max_wait_ms)
    with replacing_folder(folder / found) as temporary:
        (temporary / "1").mkdir()
        copy_model(bundle.file_on("onnxruntime"), temporary / "1" / MODEL)
        write_text(temporary / _CONFIG, config)
        if _has_labels(bundle):
            lines = [" ".join(label.split()) for label in bundle.outputs.labels]
            write_text(temporary / _LABELS, "".join(f"{line}\n" for line in lines))
    return folder / found


def _has_labels(bundle: Bundle) -> bool:
    """Return whether the server can show labels, which requires one number per class."""
    return bundle.outputs.kind == "class_scores"


def _config(bundle: Bundle, name: str, max_batch: int, max_wait_ms: float) -> str:
    preprocessing = bundle.preprocessing
    try:
        shape = [int(size) for size in bundle.description["outputs"]["shape"][1:]]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"bundle.json states no valid output shape: {error!r}") from error
    label_file = f'\n    label_filename: "{_LABELS}"' if _has_labels(bundle) else ""
    return f"""\
# Clients preprocess the images: {preprocessing.height} x {preprocessing.width} pixels scaled
# to 0..1, minus the means {list(preprocessing.mean)},
# divided by the standard deviations {list(preprocessing.std)}; channels first.
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: {max_batch}
input [
  {{
    name: "{INPUT}"
    data_type: TYPE_FP32
    dims: {list(preprocessing.input_shape)}
  }}
]
output [
  {{
    name: "{OUTPUT}"
    data_type: TYPE_FP32
    dims: {shape}{label_file}
  }}
]
dynamic_batching {{
  max_queue_delay_microseconds: {round(1e3 * max_wait_ms)}
}}
"""
