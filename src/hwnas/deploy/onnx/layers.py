"""Layers of PyTorch that stand for nodes of an ONNX file with weights of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.deploy.onnx.module import Node

__all__ = ["layer_of", "name_of_layer", "padding_of"]

_Maker = Callable[..., nn.Module]
_WEIGHT = re.compile(r"(\w+(\.\w+)*)\.weight")
_CONVOLUTIONS: Mapping[int, _Maker] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED: Mapping[int, _Maker] = {
    3: nn.ConvTranspose1d,
    4: nn.ConvTranspose2d,
    5: nn.ConvTranspose3d,
}
_NORMS: Mapping[int, _Maker] = {
    2: nn.BatchNorm1d,
    3: nn.BatchNorm1d,
    4: nn.BatchNorm2d,
    5: nn.BatchNorm3d,
}


def name_of_layer(node: Node, index: int) -> str:
    """Return a name for the layer of a node: that of its weight in PyTorch, or one with an index.

    Args:
        node: Node.
        index: Place of the node in the graph.
    """
    weight = node.inputs[1] if len(node.inputs) > 1 else ""
    named = _WEIGHT.fullmatch(weight)
    return named[1] if named else f"{node.kind.lower()}{index}"


def layer_of(node: Node, tensors: Mapping[str, Tensor], rank: int) -> nn.Module | None:
    """Return a layer that computes what a node computes of its first input.

    Args:
        node: Node.
        tensors: Weights of the file, by name.
        rank: Number of dimensions of the node's first input.

    Returns:
        The layer with the node's weights, in evaluation mode; None if no layer of PyTorch does the
        same.
    """
    make = _MAKERS.get(node.kind)
    weights = [tensors.get(name) for name in node.inputs[1:]]
    if make is None or not weights or node.inputs[0] in tensors:
        return None
    if any(each is None for each, name in zip(weights, node.inputs[1:], strict=True) if name):
        return None
    layer = make(node.attributes, rank, *weights)
    return None if layer is None else layer.eval()


def padding_of(node: Node, rank: int) -> list[int]:
    """Return padding that the layer of a convolution cannot apply, as ONNX's ``Pad`` takes it.

    It is empty if the padding of each dimension is the same at both ends.
    """
    spatial = rank - 2
    pads = list(node.attributes.get("pads", [0] * 2 * spatial))
    if node.kind != "Conv" or pads[:spatial] == pads[spatial:]:
        return []
    return [0, 0, *pads[:spatial], 0, 0, *pads[spatial:]]


def _convolution(
    a: Mapping[str, Any], rank: int, weight: Tensor, bias: Tensor | None = None
) -> nn.Module | None:
    spatial = rank - 2
    if a.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or rank not in _CONVOLUTIONS:
        return None
    pads, ones = list(a.get("pads", [0] * 2 * spatial)), [1] * spatial
    groups = a.get("group", 1)
    layer = _CONVOLUTIONS[rank](
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        tuple(a.get("strides", ones)),
        tuple(pads[:spatial]) if pads[:spatial] == pads[spatial:] else 0,
        tuple(a.get("dilations", ones)),
        groups,
        bias is not None,
        device="meta",
    )
    return _filled(layer, weight=weight, bias=bias)


def _transposed(
    a: Mapping[str, Any], rank: int, weight: Tensor, bias: Tensor | None = None
) -> nn.Module | None:
    spatial = rank - 2
    pads, ones = list(a.get("pads", [0] * 2 * spatial)), [1] * spatial
    simple = a.get("auto_pad", "NOTSET") == "NOTSET" and "output_shape" not in a
    if not simple or pads[:spatial] != pads[spatial:] or rank not in _TRANSPOSED:
        return None
    groups = a.get("group", 1)
    layer = _TRANSPOSED[rank](
        weight.shape[0],
        weight.shape[1] * groups,
        tuple(weight.shape[2:]),
        tuple(a.get("strides", ones)),
        tuple(pads[:spatial]),
        tuple(a.get("output_padding", [0] * spatial)),
        groups,
        bias is not None,
        tuple(a.get("dilations", ones)),
        device="meta",
    )
    return _filled(layer, weight=weight, bias=bias)


def _linear(
    a: Mapping[str, Any], rank: int, weight: Tensor, bias: Tensor | None = None
) -> nn.Module | None:
    factors = {a.get("alpha", 1.0), a.get("beta", 1.0)}
    if weight.dim() != 2 or a.get("transA", 0) or factors != {1.0}:
        return None
    weight = weight if a.get("transB", 0) else weight.t()
    if bias is not None and bias.numel() != len(weight):
        return None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return _filled(layer, weight=weight, bias=None if bias is None else bias.reshape(-1))


def _batch_norm(a: Mapping[str, Any], rank: int, *tensors: Tensor) -> nn.Module | None:
    weight, bias, mean, variance = tensors
    layer = _NORMS[rank](len(weight), a.get("epsilon", 1e-5), device="meta")
    layer.num_batches_tracked = torch.tensor(0)
    return _filled(layer, weight=weight, bias=bias, running_mean=mean, running_var=variance)


def _layer_norm(
    a: Mapping[str, Any], rank: int, weight: Tensor, bias: Tensor | None = None
) -> nn.Module | None:
    if a.get("axis", -1) % rank != rank - 1 or weight.dim() != 1:
        return None
    has_bias = bias is not None
    layer = nn.LayerNorm(len(weight), a.get("epsilon", 1e-5), bias=has_bias, device="meta")
    return _filled(layer, weight=weight, bias=bias)


def _group_norm(a: Mapping[str, Any], rank: int, weight: Tensor, bias: Tensor) -> nn.Module | None:
    layer = nn.GroupNorm(a["num_groups"], weight.numel(), a.get("epsilon", 1e-5), device="meta")
    return _filled(layer, weight=weight.flatten(), bias=bias.flatten())


def _filled(layer: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """Give a layer its tensors."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        own = tensor.detach().float().contiguous().clone()
        setattr(layer, name, nn.Parameter(own) if name in ("weight", "bias") else own)
    return layer


_MAKERS: Mapping[str, Callable[..., nn.Module | None]] = {
    "BatchNormalization": _batch_norm,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Gemm": _linear,
    "GroupNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "MatMul": _linear,
}
