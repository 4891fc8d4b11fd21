"""Mutations that damage a bundle, as by accident or attack; each is a function of its seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hwnas.deploy.bundles.bundle import DESCRIPTION, GOLDEN, MODEL, SUMS, WEIGHTS
from hwnas.deploy.bundles.checksums import render_sums, sha256

__all__ = ["MUTATIONS", "mutate"]

ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**31, 2**63, 2**200, -(2**63), 1e308, -0.5, float("nan"),
    float("inf"), "", "a", "../secret", "/etc/passwd", "\0", "\ud83d", "line\nline", "a" * 10_000,
    "model.onnx", ".", [], [[]], ["../secret"], [0] * 1000, {}, {"schema": 1}, {"a": {"b": {}}},
)  # fmt: skip
ODD_NUMBERS = (-1, 0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63))
OPERATORS = (
    "Conv", "Relu", "Add", "Reshape", "Expand", "Tile", "Pad", "Resize", "Gather", "Loop", "If",
    "Scan", "ConstantOfShape", "Range", "MatMul", "TopK", "NonZero", "Transpose", "Einsum",
    "Cast", "Nonsense", "ConvTranspose", "MaxPool", "AveragePool", "Flatten", "Split", "Slice",
    "StringNormalizer", "LSTM", "DequantizeLinear", "QLinearConv", "BatchNormalization",
    "GridSample", "SequenceAt", "OneHot",
)  # fmt: skip


def mutate(folder: Path, seed: int) -> str:
    """Damage a bundle in place, and recompute its checksums so that later checks are reached.

    The mutations ``sums`` and ``unsealed`` leave the checksums as they are.

    Args:
        folder: Folder of an intact bundle, possibly with a file ``../secret`` beside it.
        seed: Seed that determines the mutation.

    Returns:
        Name of the mutation, in `MUTATIONS`.
    """
    rng = random.Random(seed)
    name = rng.choice(list(MUTATIONS))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        MUTATIONS[name](folder, rng)
    if name not in ("sums", "unsealed"):
        _reseal(folder)
    return name


def _reseal(folder: Path) -> None:
    """Recompute all checksums, as an attacker would, where bundle.json can still be read."""
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
        groups = [description["files"], *(a["sha256"] for a in description["artifacts"])]
        for sums in groups:
            sums.update({name: sha256(folder / name) for name in sums})
        path.write_text(json.dumps(description))
        names = {DESCRIPTION, *(name for sums in groups for name in sums)}
        (folder / SUMS).write_text(render_sums({name: sha256(folder / name) for name in names}))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        return


# Bytes


def _flip(path: Path, rng: random.Random) -> None:
    """Flip bits, cut out, duplicate or overwrite a piece of a file, or truncate it."""
    data = bytearray(path.read_bytes())
    if not data:
        return
    place = rng.randrange(len(data))
    end = min(len(data), place + rng.choice((1, 2, 8, 100, 5000)))
    how = rng.randrange(5)
    if how == 0:
        for _ in range(rng.choice((1, 3, 30))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 1:
        del data[place:end]
    elif how == 2:
        data[place:place] = data[place:end]
    elif how == 3:
        data[place:end] = rng.randbytes(end - place)
    else:
        del data[place:]
    path.write_bytes(data)


def _bytes_of(name: str) -> Callable[[Path, random.Random], None]:
    return lambda folder, rng: _flip(folder / name, rng)


def _unsealed(folder: Path, rng: random.Random) -> None:
    """Damage or delete any file, or replace it with a folder or an empty file."""
    path = rng.choice(sorted(folder.iterdir()))
    how = rng.randrange(6)
    if path.is_dir() or how > 2:
        return None if path.is_dir() else _flip(path, rng)
    path.unlink()
    if how == 1:
        path.mkdir()
    if how == 2:
        path.touch()
    return None


# bundle.json


def _field(folder: Path, rng: random.Random) -> None:
    """Remove a value of bundle.json, or replace it with an odd value or a copy of another one."""
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return
    places = list(_places(description))
    if not places:
        return
    holder, key = rng.choice(places)
    how = rng.randrange(4)
    if how == 0:
        del holder[key]
    elif how == 1:
        other, at = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[at]))
    elif isinstance(holder[key], int | float) and how == 2:
        holder[key] = rng.choice(ODD_NUMBERS)
    else:
        holder[key] = rng.choice(ODD_VALUES)
    path.write_text(json.dumps(description))


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _labels(folder: Path, rng: random.Random) -> None:
    """Change labels and kind of output consistently, so that they do not match the network."""
    path = folder / DESCRIPTION
    description = json.loads(path.read_text(encoding="utf-8"))
    count = rng.choice((0, 1, 2, 3, 9, 11, 255, 256, 5000))
    labels = [f"class{i}" for i in range(count)]
    description["labels"] = description["outputs"]["labels"] = labels
    description["outputs"]["kind"] = rng.choice(("class_scores", "pixel_class_scores", "values"))
    path.write_text(json.dumps(description))


def _preprocessing(folder: Path, rng: random.Random) -> None:
    """Change the image size or the channels so that they do not match the network's input."""
    path = folder / DESCRIPTION
    description = json.loads(path.read_text(encoding="utf-8"))
    sizes = (1, 2, 7, 9, 64, 10**5, 2**40)
    kept = description["preprocessing"]
    kept[rng.choice(("height", "width"))] = rng.choice(sizes)
    if rng.random() < 0.5:
        channels = rng.choice((1, 2, 3, 4, 1000))
        kept |= {"channels": channels, "mean": [0.5] * channels, "std": [1e-30] * channels}
    path.write_text(json.dumps(description))


# model.onnx


def _model(change: Callable[[Any, random.Random], None]) -> Callable[[Path, random.Random], None]:
    def mutation(folder: Path, rng: random.Random) -> None:
        path = folder / MODEL
        try:
            model = onnx.load(path, load_external_data=False)
            change(model, rng)
            path.write_bytes(model.SerializeToString())
        except (ValueError, TypeError, IndexError, onnx.checker.ValidationError):
            _flip(path, rng)

    return mutation


def _shapes(model: Any, rng: random.Random) -> None:
    """Change a dimension of an input, an output, an inner value, a weight or a constant."""
    graph = model.graph
    infos = [*graph.input, *graph.output, *graph.value_info]
    if rng.random() < 0.5 and infos:
        dims = rng.choice(infos).type.tensor_type.shape.dim
        if dims and rng.random() < 0.8:
            dims[rng.randrange(len(dims))].dim_value = rng.choice(ODD_NUMBERS)
        else:
            dims.add().dim_value = rng.choice(ODD_NUMBERS)
        return
    tensor = rng.choice(graph.initializer)
    if tensor.dims and rng.random() < 0.8:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(ODD_NUMBERS)
    else:
        tensor.dims.append(rng.choice(ODD_NUMBERS))


def _weights_inside(model: Any, rng: random.Random) -> None:
    """Change the type, the bytes or the name of a weight."""
    tensor = rng.choice(model.graph.initializer)
    how = rng.randrange(4)
    if how == 0:
        tensor.data_type = rng.choice([*range(24), 1000])
    elif how == 1:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    elif how == 2:
        tensor.name = rng.choice(["", *(t.name for t in model.graph.initializer)])
    elif tensor.data_type == TensorProto.INT64:
        tensor.raw_data = np.array(
            [rng.choice(ODD_NUMBERS) for _ in range(len(tensor.raw_data) // 8)], np.int64
        ).tobytes()
    else:
        kind = rng.choice((np.nan, np.inf, 1e38))
        tensor.raw_data = np.full(len(tensor.raw_data) // 4, kind, np.float32).tobytes()


def _external(model: Any, rng: random.Random) -> None:
    """Move a weight to an external file, whose path must not be read."""
    tensor = rng.choice(model.graph.initializer)
    length = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    places = ("../secret", "secret", "/etc/passwd", "../../secret", "a/../../secret", "", ".", "\0",
              "/dev/zero", "weights.safetensors", "model.onnx", "golden.npz")  # fmt: skip
    entries = {
        "location": rng.choice(places),
        "offset": str(rng.choice((0, 0, 0, -1, 5, 2**40, "x"))),
        "length": str(rng.choice((length, length, 0, -1, 2**40, "x"))),
    }
    for key, value in entries.items():
        if rng.random() < 0.9:
            tensor.external_data.add(key=key, value=value)


def _wires(model: Any, rng: random.Random) -> None:
    """Rewire nodes to missing values, their own output or nothing; copy, delete or shuffle them."""
    nodes = model.graph.node
    node = rng.choice(nodes)
    names = [name for each in nodes for name in (*each.input, *each.output)]
    how = rng.randrange(8)
    if how == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice((*names, "nowhere", ""))
    elif how == 1:
        node.input[:] = node.output
    elif how == 2 and node.output:
        node.output[0] = rng.choice(names)
    elif how == 3:
        del nodes[rng.randrange(len(nodes))]
    elif how == 4:
        nodes.add().CopyFrom(node)
    elif how == 5:
        del node.input[:]
    elif how == 6:
        node.input.extend(rng.choices(names, k=rng.choice((1, 5, 500))))
    else:
        shuffled = list(nodes)
        rng.shuffle(shuffled)
        kept = [onnx.NodeProto.FromString(each.SerializeToString()) for each in shuffled]
        del nodes[:]
        nodes.extend(kept)


def _operators(model: Any, rng: random.Random) -> None:
    """Change an operator, its domain or its attributes, or the opset or IR version."""
    node = rng.choice(model.graph.node)
    how = rng.randrange(6)
    if how == 0:
        node.op_type = rng.choice(OPERATORS)
    elif how == 1:
        node.domain = rng.choice(("ai.onnx.ml", "com.microsoft", "nobody.knows"))
    elif how == 2 and node.attribute:
        _spoil(rng.choice(node.attribute), rng)
    elif how == 3:
        names = ("axis", "group", "pads", "kernel_shape", "to", "value", "perm", "strides")
        name = rng.choice(names)
        node.attribute.append(helper.make_attribute(name, rng.choice(ODD_NUMBERS[:11])))
    elif how == 4 and model.opset_import:
        model.opset_import[0].version = rng.choice((-1, 0, 1, 7, 13, 21, 99, 2**40))
    else:
        model.ir_version = rng.choice((-1, 0, 1, 3, 8, 99, 2**40))


def _spoil(attribute: Any, rng: random.Random) -> None:
    small = [number for number in ODD_NUMBERS if -(2**63) <= number < 2**63]
    if attribute.ints and rng.random() < 0.8:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(small)
    elif rng.random() < 0.5:
        attribute.i = rng.choice(small)
    else:
        attribute.type = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 14))


def _grown(model: Any, rng: random.Random) -> None:
    """Add nodes before the output: some need all the memory, some never end."""
    graph = model.graph
    if not graph.output:
        return
    last = graph.output[0].name
    for node in graph.node:
        node.output[:] = ["inner" if name == last else name for name in node.output]
    graph.node.extend(rng.choice(GROWTHS)(graph, last, rng))


def _expand(graph: Any, last: str, rng: random.Random) -> list[Any]:
    size = rng.choice((2**20, 2**33, 2**40, 2**62, -1, 0))
    graph.initializer.append(helper.make_tensor("sizes", TensorProto.INT64, [2], [size, size]))
    return [
        helper.make_node("ConstantOfShape", ["sizes"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["one"], keepdims=0),
        helper.make_node("Add", ["inner", "one"], [last]),
    ]


def _tile(graph: Any, last: str, rng: random.Random) -> list[Any]:
    times = [1, rng.choice((2**10, 2**32, 2**45, -1))]
    graph.initializer.append(helper.make_tensor("times", TensorProto.INT64, [2], times))
    return [helper.make_node("Tile", ["inner", "times"], [last])]


def _loop(graph: Any, last: str, rng: random.Random) -> list[Any]:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Mul", ["seen", "seen"], ["next"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("seen", TensorProto.FLOAT, None),
        ],
        [value("on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, None)],
    )
    count = rng.choice((3, 2**20, 2**62))
    graph.initializer.append(helper.make_tensor("count", TensorProto.INT64, [], [count]))
    graph.initializer.append(helper.make_tensor("true", TensorProto.BOOL, [], [True]))
    return [helper.make_node("Loop", ["count", "true", "inner"], [last], body=body)]


def _nested(graph: Any, last: str, rng: random.Random) -> list[Any]:
    value = helper.make_tensor_value_info
    node = helper.make_node("Identity", ["inner"], ["x"])
    graph.initializer.append(helper.make_tensor("true", TensorProto.BOOL, [], [True]))
    for _ in range(rng.choice((1, 30, 90))):
        branch = helper.make_graph([node], "branch", [], [value("x", TensorProto.FLOAT, None)])
        node = helper.make_node("If", ["true"], ["x"], then_branch=branch, else_branch=branch)
        if node.ByteSize() > 10**6:
            break
    node.output[0] = last
    return [node]


GROWTHS = (_expand, _tile, _loop, _nested)


# golden.npz


def _golden(folder: Path, rng: random.Random) -> None:
    """Change the type or shape of an array, or delete it; some arrays then need pickle."""
    # NumPy does not close a file that it opened itself and could not read.
    with (
        (folder / GOLDEN).open("rb") as file,
        np.load(file, allow_pickle=False) as found,
    ):
        arrays: dict[str, Any] = {name: found[name] for name in found.files}
    if not arrays:
        return
    name = rng.choice(sorted(arrays))
    changes: tuple[Callable[[Any], Any], ...] = (
        lambda a: a[:0],
        lambda a: a[..., :1],
        lambda a: a[0],
        lambda a: a.astype(np.float64),
        lambda a: a.astype("U3"),
        lambda a: a.astype(object),
        lambda a: a.astype(complex),
        lambda a: np.full(a.shape, np.nan),
        lambda a: np.full(a.shape, np.inf, np.float32),
        lambda a: np.zeros((0, 0, 0, 0), a.dtype),
        lambda a: np.zeros((), a.dtype),
        lambda a: np.zeros((2**20,), a.dtype),
        lambda a: a.astype("datetime64[s]"),
        lambda a: a.astype([("x", "u1")]),
    )
    with np.errstate(invalid="ignore"):
        arrays[name] = rng.choice(changes)(arrays[name])
    if rng.random() < 0.2:
        del arrays[name]
    with (folder / GOLDEN).open("wb") as file:
        np.savez(file, **arrays)


def _safely(change: Callable[[Path, random.Random], None], name: str) -> Any:
    """Return a mutation that damages bytes where earlier changes left the file unreadable."""

    def mutation(folder: Path, rng: random.Random) -> None:
        try:
            change(folder, rng)
        except Exception:  # the file can no longer be parsed
            if (folder / name).is_file():
                _flip(folder / name, rng)

    return mutation


MUTATIONS: Mapping[str, Callable[[Path, random.Random], None]] = {
    "field": _field,
    "labels": _safely(_labels, DESCRIPTION),
    "preprocessing": _safely(_preprocessing, DESCRIPTION),
    "description": _bytes_of(DESCRIPTION),
    "onnx bytes": _bytes_of(MODEL),
    "onnx shapes": _safely(_model(_shapes), MODEL),
    "onnx weights": _safely(_model(_weights_inside), MODEL),
    "onnx external": _safely(_model(_external), MODEL),
    "onnx wires": _safely(_model(_wires), MODEL),
    "onnx operators": _safely(_model(_operators), MODEL),
    "onnx grown": _safely(_model(_grown), MODEL),
    "golden": _safely(_golden, GOLDEN),
    "golden bytes": _bytes_of(GOLDEN),
    "weights": _bytes_of(WEIGHTS),
    "sums": _bytes_of(SUMS),
    "unsealed": _unsealed,
}
"""Mutations of a bundle, by name."""
