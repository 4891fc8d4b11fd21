"""Implementations of ONNX operators in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.deploy.onnx.recurrent import gru, lstm
from hwnas.errors import ArtifactError

__all__ = ["OPERATORS", "Attributes"]

Attributes = Mapping[str, Any]
Operator = Callable[..., Any]
"""Function that takes the attributes and the inputs of a node, and returns a tensor or several."""
_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    16: torch.bfloat16,
}
"""PyTorch's types by ONNX's type numbers."""


def _integers(value: Tensor | Sequence[int]) -> list[int]:
    """Return sizes, axes or indices as a list.

    They are a tensor in the file, and plain Python values in a frozen module.
    """
    return value.tolist() if isinstance(value, Tensor) else list(value)


def _pads(attributes: Attributes, x: Tensor) -> tuple[Tensor, list[int]]:
    """Return the input and its padding for PyTorch.

    Asymmetric padding, which PyTorch's operators do not take, is applied to the input beforehand.
    """
    spatial = x.dim() - 2
    pads = list(attributes.get("pads", [0] * 2 * spatial))
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise ArtifactError("auto_pad is not supported; export with explicit padding")
    if pads[:spatial] == pads[spatial:]:
        return x, pads[:spatial]
    ends = [pads[i + side * spatial] for i in reversed(range(spatial)) for side in (0, 1)]
    return F.pad(x, ends), [0] * spatial


def _quantize(a: Attributes, x: Tensor, scale: Any, zero: Tensor | None = None) -> Tensor:
    zero = torch.zeros((), dtype=torch.uint8, device=x.device) if zero is None else zero
    limits = torch.iinfo(zero.dtype)
    steps = (x.float() / _along(a, x, scale)).round() + _along(a, x, zero)
    result: Tensor = steps.clamp(limits.min, limits.max).to(zero.dtype)
    return result


def _dequantize(a: Attributes, x: Tensor, scale: Any, zero: Any = None) -> Tensor:
    steps = x.float() if zero is None else x.float() - _along(a, x, zero)
    result: Tensor = steps * _along(a, x, scale)
    return result


def _along(a: Attributes, x: Tensor, each: Any) -> Any:
    """Return a scale or zero point; if it has a value per index of an axis of x, broadcast to x."""
    if not isinstance(each, Tensor) or each.numel() == 1:
        return each
    shape = [1] * x.dim()
    shape[a.get("axis", 1)] = -1
    return each.reshape(shape)


def _cast(a: Attributes, x: Tensor) -> Tensor:
    return x.to(_TYPES[a["to"]])


def _conv_transpose(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    spatial = [1] * (x.dim() - 2)
    pads = list(a.get("pads", [0] * 2 * len(spatial)))
    if a.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in a:
        raise ArtifactError(
            "ConvTranspose with auto_pad or output_shape is not supported; export with explicit "
            "padding"
        )
    before, after = pads[: len(spatial)], pads[len(spatial) :]
    more = a.get("output_padding", [0] * len(spatial))
    more = [wanted + b - e for wanted, b, e in zip(more, before, after, strict=True)]
    run = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[len(spatial)]
    strides, dilations = a.get("strides", spatial), a.get("dilations", spatial)
    result: Tensor = run(x, weight, bias, strides, before, more, a.get("group", 1), dilations)
    return result


def _conv(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x, pads = _pads(a, x)
    spatial = [1] * (x.dim() - 2)
    strides, dilations = a.get("strides", spatial), a.get("dilations", spatial)
    run = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[x.dim() - 2]
    result: Tensor = run(x, weight, bias, strides, pads, dilations, a.get("group", 1))
    return result


def _deform_conv(
    a: Attributes,
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    n, channels, height, width = x.shape
    kernel, size = weight.shape[2:], offset.shape[2:]
    taps, split, groups = math.prod(kernel), a.get("offset_group", 1), a.get("group", 1)
    by, apart = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    moved = offset.reshape(n * split, taps, 2, *size)
    places = []
    for axis in range(2):
        start = -a.get("pads", [0] * 4)[axis]
        tap = torch.arange(kernel[axis], device=x.device) * apart[axis] + start
        shape = [-1, 1] if axis == 0 else [1, -1]
        tap = tap.reshape(shape).expand(*kernel).reshape(1, taps, 1, 1)
        origin = (torch.arange(size[axis], device=x.device) * by[axis]).reshape(1, 1, *shape)
        places.append(moved[:, :, axis] + tap + origin)
    # In `grid_sample`, -1 and 1 are the outer edges of the image.
    grid = torch.stack([(2 * places[1] + 1) / width - 1, (2 * places[0] + 1) / height - 1], -1)
    parts = x.reshape(n * split, channels // split, height, width)
    sampled = F.grid_sample(parts, grid.flatten(1, 2), align_corners=False)
    sampled = sampled.reshape(n, split, channels // split, taps, *size)
    if mask is not None:
        sampled = sampled * mask.reshape(n, split, 1, taps, *size)
    sampled = sampled.reshape(n, groups, channels // groups, taps, *size)
    kernels = weight.reshape(groups, -1, channels // groups, taps)
    y = torch.einsum("ngckhw,gock->ngohw", sampled, kernels).flatten(1, 2)
    return y if bias is None else y + bias.view(1, -1, 1, 1)


def _constant_of_shape(a: Attributes, shape: Tensor) -> Tensor:
    from onnx import numpy_helper

    value = torch.tensor(numpy_helper.to_array(a["value"])) if "value" in a else torch.zeros(1)
    return value.expand(_integers(shape)).clone()


def _pool(run: Callable[..., Tensor], **options: Any) -> Operator:
    def pool(a: Attributes, x: Tensor) -> Tensor:
        x, pads = _pads(a, x)
        kernel = a["kernel_shape"]
        chosen = dict(options)
        if "count_include_pad" in chosen:
            chosen["count_include_pad"] = bool(a.get("count_include_pad", 0))
        ceil = bool(a.get("ceil_mode", 0))
        return run(x, kernel, a.get("strides", [1] * len(kernel)), pads, ceil_mode=ceil, **chosen)

    return pool


def _gemm(a: Attributes, x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    x = x.t() if a.get("transA") else x
    y = y.t() if a.get("transB") else y
    product = a.get("alpha", 1.0) * (x @ y) if a.get("alpha", 1.0) != 1.0 else x @ y
    return product if bias is None else product + a.get("beta", 1.0) * bias


def _norm(a: Attributes, x: Tensor, *weights: Tensor) -> Tensor:
    weight, bias, mean, variance = weights
    return F.batch_norm(x, mean, variance, weight, bias, eps=a.get("epsilon", 1e-5))


def _layer_norm(a: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    axis = a.get("axis", -1) % x.dim()
    return F.layer_norm(x, x.shape[axis:], weight, bias, a.get("epsilon", 1e-5))


def _group_norm(a: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    scale, bias = scale.flatten(), bias.flatten()
    if a["num_groups"] > 1 or x.dim() != 4:
        return F.group_norm(x, a["num_groups"], scale, bias, a.get("epsilon", 1e-5))
    last = x.permute(0, 2, 3, 1)  # one group is a whole map, whatever its memory order
    normalised = F.layer_norm(last, last.shape[1:], eps=a.get("epsilon", 1e-5))
    return torch.addcmul(bias, normalised, scale).permute(0, 3, 1, 2)


def _instance_norm(a: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=a.get("epsilon", 1e-5))


def _hard_sigmoid(a: Attributes, x: Tensor) -> Tensor:
    alpha, beta = a.get("alpha", 0.2), a.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return F.hardsigmoid(x)
    result: Tensor = (alpha * x + beta).clamp(0, 1)
    return result


def _reshape(a: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(_integers(shape))]
    return x.reshape(sizes)


def _expand(a: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes: Sequence[int] = torch.broadcast_shapes(x.shape, _integers(shape))  # type: ignore[no-untyped-call]
    return x.expand(sizes)


def _reduction(run: Callable[..., Tensor]) -> Operator:
    def reduction(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
        given = _integers(axes) if axes is not None else a.get("axes", list(range(x.dim())))
        return run(x, given, keepdim=bool(a.get("keepdims", 1)))

    return reduction


def _clip(
    a: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None
) -> Tensor:
    least = a.get("min") if low is None else float(low)
    most = a.get("max") if high is None else float(high)
    return x.clamp(least, most)


def _pad(
    a: Attributes,
    x: Tensor,
    pads: Tensor,
    value: Tensor | float | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    mode = a.get("mode", "constant")
    if mode == "wrap":
        raise ArtifactError("Pad with the mode wrap is not supported; use edge or reflect")
    given, places = _integers(pads), _integers(axes) if axes is not None else range(x.dim())
    half = len(given) // 2
    ends = {p % x.dim(): pair for p, *pair in zip(places, given[:half], given[half:], strict=True)}
    first = min((axis for axis, pair in ends.items() if any(pair)), default=x.dim() - 1)
    if mode == "constant":
        last = [n for axis in reversed(range(first, x.dim())) for n in ends.get(axis, (0, 0))]
        return F.pad(x, last, value=0.0 if value is None else float(value))
    # PyTorch repeats and reflects all dimensions after the channels at once.
    last = [n for axis in reversed(range(min(first, 2), x.dim())) for n in ends.get(axis, (0, 0))]
    return F.pad(x, last, "replicate" if mode == "edge" else mode)


def _extreme(run: Callable[[Tensor, Tensor], Tensor]) -> Operator:
    def extreme(a: Attributes, x: Tensor, *others: Tensor | float) -> Tensor:
        for other in others:
            x = run(x, torch.as_tensor(other, dtype=x.dtype, device=x.device))
        return x

    return extreme


def _slice(
    a: Attributes,
    x: Tensor,
    starts: Tensor,
    ends: Tensor,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    begins, limits = _integers(starts), _integers(ends)
    places = _integers(axes) if axes is not None else range(len(begins))
    strides = _integers(steps) if steps is not None else [1] * len(begins)
    for axis, start, end, step in zip(places, begins, limits, strides, strict=True):
        size = x.shape[axis]
        if step < 0:
            indices = range(*slice(start, end, step).indices(size))
            x = x.index_select(axis, torch.tensor(indices, dtype=torch.int64, device=x.device))
        else:
            first, last = (max(-size, min(place, size)) for place in (start, end))
            x = x[(*[slice(None)] * (axis % x.dim()), slice(first, last, step))]
    return x


def _split(a: Attributes, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = a.get("axis", 0)
    if sizes is not None:
        return torch.split(x, _integers(sizes), axis)
    return x.tensor_split(a["num_outputs"], axis)


def _squeeze(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    given = _integers(axes) if axes is not None else a.get("axes")
    return x.squeeze(given) if given is not None else x.squeeze()


def _unsqueeze(a: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
    for axis in sorted(_integers(axes) if axes is not None else a["axes"]):
        x = x.unsqueeze(axis)
    return x


def _gather(a: Attributes, x: Tensor, index: Tensor | int | list[int]) -> Tensor:
    axis = a.get("axis", 0) % x.dim()
    index = torch.as_tensor(index, device=x.device) if isinstance(index, list) else index
    if isinstance(index, int) or index.dim() == 0:
        return x.select(axis, int(index))
    shape = [*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]]
    return x.index_select(axis, index.flatten()).reshape(shape)


def _depth_to_space(a: Attributes, x: Tensor) -> Tensor:
    block = a["blocksize"]
    if a.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, block)
    n, channels, height, width = x.shape
    parts = x.reshape(n, block, block, channels // block**2, height, width)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(n, -1, height * block, width * block)


_RESIZE_MODES: Mapping[tuple[str, str], tuple[str, bool | None]] = {
    ("nearest", "asymmetric"): ("nearest", None),
    ("nearest", "half_pixel"): ("nearest-exact", None),
    ("linear", "half_pixel"): ("bilinear", False),
    ("linear", "pytorch_half_pixel"): ("bilinear", False),
    ("linear", "align_corners"): ("bilinear", True),
    ("cubic", "half_pixel"): ("bicubic", False),
    ("cubic", "pytorch_half_pixel"): ("bicubic", False),
    ("cubic", "align_corners"): ("bicubic", True),
}
"""PyTorch's mode and ``align_corners`` for ONNX's mode and transformation of coordinates."""
_ROUNDINGS = {"asymmetric": "floor", "half_pixel": "round_prefer_ceil"}


def _resize(
    a: Attributes,
    x: Tensor,
    region: object = None,
    scales: Any = None,
    sizes: Any = None,
) -> Tensor:
    mode = a.get("mode", "nearest")
    coordinates = a.get("coordinate_transformation_mode", "half_pixel")
    known = _RESIZE_MODES.get((mode, coordinates))
    rounding = a.get("nearest_mode", "round_prefer_floor")
    nearest = mode != "nearest" or rounding == _ROUNDINGS.get(coordinates)
    plain = not a.get("antialias") and not a.get("exclude_outside") and "axes" not in a
    if mode == "cubic":
        plain = plain and a.get("cubic_coeff_a", -0.75) == -0.75
    if known is None or not nearest or not plain or x.dim() != 4:
        raise ArtifactError(
            f"Resize in the mode {mode}, {coordinates}, {rounding} is not supported; export with "
            "torch.nn.functional.interpolate"
        )
    if sizes is not None and len(sizes):
        wanted = _integers(sizes)[2:]
    else:
        factors = scales.tolist() if isinstance(scales, Tensor) else list(scales)
        wanted = [int(side * by) for side, by in zip(x.shape[2:], factors[2:], strict=True)]
    return F.interpolate(x, wanted, mode=known[0], align_corners=known[1])


def _top(a: Attributes, x: Tensor, count: Any) -> tuple[Tensor, Tensor]:
    (k,) = _integers(count)
    largest, in_order = bool(a.get("largest", 1)), bool(a.get("sorted", 1))
    found = x.topk(k, a.get("axis", -1), largest, in_order)
    return found.values, found.indices


OPERATORS: dict[str, Operator] = {
    "Abs": lambda a, x: torch.abs(x),
    "Add": lambda a, x, y: x + y,
    "AveragePool": _pool(F.avg_pool2d, count_include_pad=False),
    "BatchNormalization": _norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda a, *x: torch.cat(x, a["axis"]),
    "ConstantOfShape": _constant_of_shape,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DeformConv": _deform_conv,
    "DepthToSpace": _depth_to_space,
    "DequantizeLinear": _dequantize,
    "Div": lambda a, x, y: x / y,
    "Dropout": lambda a, x, *rest: x,
    "Elu": lambda a, x: F.elu(x, a.get("alpha", 1.0)),
    "Equal": lambda a, x, y: torch.as_tensor(x) == torch.as_tensor(y),
    "Erf": lambda a, x: torch.erf(x),
    "Exp": lambda a, x: torch.exp(x),
    "Expand": _expand,
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Gather": _gather,
    "GatherElements": lambda a, x, index: x.gather(a.get("axis", 0), index),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", "none")),
    "Gemm": _gemm,
    "GRU": gru,
    "GlobalAveragePool": lambda a, x: x.mean(list(range(2, x.dim())), keepdim=True),
    "GlobalMaxPool": lambda a, x: x.amax(list(range(2, x.dim())), keepdim=True),
    "GroupNormalization": _group_norm,
    "GreaterOrEqual": lambda a, x, y: x >= y,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda a, x: F.hardswish(x),
    "Identity": lambda a, x: x,
    "InstanceNormalization": _instance_norm,
    "LSTM": lstm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Log": lambda a, x: torch.log(x),
    "LogSoftmax": lambda a, x: x.log_softmax(a.get("axis", -1)),
    "MatMul": lambda a, x, y: x @ y,
    "Max": _extreme(torch.maximum),
    "MaxPool": _pool(F.max_pool2d),
    "Min": _extreme(torch.minimum),
    "Mish": lambda a, x: F.mish(x),
    "Mul": lambda a, x, y: x * y,
    "Neg": lambda a, x: -x,
    "PRelu": lambda a, x, slope: x.clamp(min=0) + slope * x.clamp(max=0),
    "Pad": _pad,
    "Pow": lambda a, x, y: x**y,
    "QuantizeLinear": _quantize,
    "Reciprocal": lambda a, x: 1 / x,
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceMin": _reduction(torch.amin),
    "ReduceSum": _reduction(torch.sum),
    "Relu": lambda a, x: F.relu(x),
    "Reshape": _reshape,
    "Resize": _resize,
    "Round": lambda a, x: torch.round(x),
    "Shape": lambda a, x: torch.tensor(x.shape[a.get("start") : a.get("end")]),
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "Slice": _slice,
    "Softmax": lambda a, x: x.softmax(a.get("axis", -1)),
    "Softplus": lambda a, x: F.softplus(x),
    "Split": _split,
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Squeeze": _squeeze,
    "Sub": lambda a, x, y: x - y,
    "Swish": lambda a, x: x * torch.sigmoid(a.get("alpha", 1.0) * x),
    "Tanh": lambda a, x: torch.tanh(x),
    "TopK": _top,
    "Transpose": lambda a, x: x.permute(a.get("perm", tuple(reversed(range(x.dim()))))),
    "Unsqueeze": _unsqueeze,
    "Where": lambda a, condition, x, y: torch.where(torch.as_tensor(condition), x, y),
}
"""Implementation of each ONNX operator, which takes the attributes and the inputs of a node."""
