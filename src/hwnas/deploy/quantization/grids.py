"""Values that the rounded weights of a network were trained with, as notes in its file.

A network of `hwnas.search_spaces.quantised` is exported in single precision, with its weights
rounded and with a clip before each layer whose inputs have fewer than eight bits. A note in the
file says how far apart the rounded values are. `Int8Quantizer` reads the note, so the integers of
the quantised file are those of the training.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.onnx.node_names import block_of

__all__ = ["LayerGrid", "has_grids", "note_grids", "noted_grids"]

_KEY = "hwnas.grids"
_LAYERS = ("Conv", "Gemm", "MatMul")  # not what comes before them, such as a clip


@dataclass(frozen=True)
class LayerGrid:
    """Values that a layer was trained with.

    Attributes:
        steps: Weights in whole steps, (out, ...).
        inputs: Step, and integer that stands for zero, of the inputs; None if they have eight bits
            or more, whose range the quantiser chooses.
        signs: Whether the inputs are signs.
    """

    steps: NDArray[np.float32]
    inputs: tuple[float, int] | None
    signs: bool = False


def note_grids(model: Any, grids: Mapping[str, LayerGrid]) -> None:
    """Write the grids of the layers of an ONNX model into its metadata.

    Args:
        model: Exported network, whose nodes are named after its layers; batch normalisations may be
            folded into the weights.
        grids: Grids by the names of the layers.
    """
    import onnx

    if not grids:
        return
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    weights, inputs = {}, {}
    for node in model.graph.node:
        grid = grids.get(block_of(node.name)) if node.op_type in _LAYERS else None
        if grid is None or node.input[1] not in tensors:
            continue
        values = onnx.numpy_helper.to_array(tensors[node.input[1]])
        scales = _scales(values.T if node.op_type == "MatMul" else values, grid.steps)
        largest = int(np.abs(grid.steps).max())
        weights[node.input[1]] = largest, base64.b64encode(scales.tobytes()).decode()
        if grid.inputs is not None:
            inputs[node.input[0]] = grid.inputs
    note = model.metadata_props.add()
    note.key, note.value = (
        _KEY,
        json.dumps(
            {
                "weights": weights,
                "inputs": inputs,
                "signs": any(grid.signs for grid in grids.values()),
            }
        ),
    )


def _scales(values: NDArray[np.float32], steps: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the distance of neighbouring weights in each output channel, (out,)."""
    steps, values = (each.reshape(len(each), -1) for each in (steps, values))
    rows, largest = np.arange(len(steps)), np.abs(steps).argmax(1)
    most = steps[rows, largest]
    empty = most == 0
    scales = np.abs(values[rows, largest] / np.where(empty, 1, most))
    return np.where(empty, 1, scales).astype(np.float32)


def has_grids(path: Path) -> bool:
    """Return whether an ONNX file notes the grids that its weights were trained with."""
    import onnx

    notes = onnx.load(path, load_external_data=False).metadata_props
    return any(note.key == _KEY for note in notes)


def noted_grids(model: Any, largest: int) -> dict[str, Any]:
    """Return ``extra_options`` of ONNX Runtime's quantiser for the grids noted in a model.

    Args:
        model: ONNX model, perhaps optimised since the note was written.
        largest: Largest integer that stands for a weight; layers with larger ones are left out.
    """
    notes = {note.key: note.value for note in model.metadata_props}
    if _KEY not in notes:
        return {}
    noted = json.loads(notes[_KEY])
    axes = {
        node.input[1]: 1 if node.op_type == "MatMul" or _is_transposed(node) else 0
        for node in model.graph.node
        if len(node.input) > 1
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for name, (steps, encoded) in noted["weights"].items():
        if name in axes and steps <= largest:
            scales = np.frombuffer(base64.b64decode(encoded), dtype=np.float32)
            found[name] = [_parameters("QInt8", scale, 0) for scale in scales]
            found[name][0]["axis"] = axes[name]
    for name, (step, zero) in noted["inputs"].items():
        found[name] = [_parameters("QUInt8", step, zero)]
    # A clip to fewer than 256 values is more than the range of its quantised output. A bias would
    # be rounded to the product of the steps of inputs and weights, which is too coarse for signs.
    return {
        "TensorQuantOverrides": found,
        "QDQKeepRemovableActivations": bool(noted["inputs"]),
        "QuantizeBias": not noted.get("signs", False),
    }


def _parameters(kind: Literal["QInt8", "QUInt8"], scale: float, zero: int) -> dict[str, Any]:
    from onnxruntime.quantization import QuantType

    return {
        "quant_type": QuantType[kind],
        "scale": np.array(scale, dtype=np.float32),
        "zero_point": np.array(zero, dtype=np.int8 if kind == "QInt8" else np.uint8),
    }


def _is_transposed(node: Any) -> bool:
    """Return whether the weights of a node are (in, out)."""
    if node.op_type != "Gemm":
        return False
    return not any(each.name == "transB" and each.i for each in node.attribute)
