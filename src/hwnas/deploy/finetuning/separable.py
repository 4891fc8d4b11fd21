"""Layers that compute each of their gradients by an operator of its own.

PyTorch's backward of a convolution computes three gradients in one operator, and keeps the input
also if only the bias is trained. Here each gradient is computed alone, so that a graph without some
of them needs neither their operators nor what these keep. The gradient of the weights of the first
input channels keeps only these channels of the input (Zhu et al., MICRO 2023, section 3.1).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.deploy.finetuning.layers import TrainableLayer

__all__ = ["separated"]

_PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class _Operators(Protocol):
    """Output of a layer, and its gradients."""

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output of an input x."""

    def input_gradient(self, gradient: Tensor, shape: Sequence[int], weight: Tensor) -> Tensor:
        """Return the gradient for an input of a shape."""

    def weight_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient for the weights of the channels that x has."""

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        """Return the gradient for the bias."""

    def channels(self, x: Tensor, width: int) -> Tensor:
        """Return the first channels of an input, in memory of their own."""


@dataclass(frozen=True)
class _Convolution:
    settings: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding
    groups: int
    depthwise: bool

    @classmethod
    def of(cls, layer: Any) -> _Convolution:
        transposed = isinstance(layer, _TRANSPOSED)
        output_padding = layer.output_padding if transposed else [0] * len(layer.stride)
        settings = (layer.stride, layer.padding, layer.dilation, transposed, output_padding)
        depthwise = not transposed and layer.groups == layer.in_channels > 1
        return cls(tuple(map(_plain, settings)), layer.groups, depthwise)

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found: Tensor = torch.ops.aten.convolution(x, weight, bias, *self.settings, self.groups)
        return found

    def input_gradient(self, gradient: Tensor, shape: Sequence[int], weight: Tensor) -> Tensor:
        unread = gradient.new_empty(1).expand(*shape)  # only its shape counts
        return self._backward(gradient, unread, weight, self.groups, 0)

    def weight_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        channels, groups = x.shape[1], self.groups
        if self.depthwise:
            rows = len(weight) // groups * channels
            gradient, weight, groups = gradient[:, :rows], weight[:rows], channels
        elif groups == 1 and not self.settings[3]:
            weight = weight[:, :channels]
        return self._backward(gradient, x, weight, groups, 1)

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        return gradient.sum([0, *range(2, gradient.dim())])

    def channels(self, x: Tensor, width: int) -> Tensor:
        return x[:, :width].clone(memory_format=torch.contiguous_format)

    def _backward(
        self, gradient: Tensor, x: Tensor, weight: Tensor, groups: int, place: int
    ) -> Tensor:
        wanted = [each == place for each in range(3)]
        found: Tensor = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, *self.settings, groups, wanted
        )[place]
        return found


@dataclass(frozen=True)
class _Linear:
    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def input_gradient(self, gradient: Tensor, shape: Sequence[int], weight: Tensor) -> Tensor:
        return (gradient.reshape(-1, len(weight)) @ weight).reshape(*shape)

    def weight_gradient(self, gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return gradient.reshape(-1, len(weight)).t() @ x.reshape(-1, x.shape[-1])

    def bias_gradient(self, gradient: Tensor) -> Tensor:
        return gradient.sum(list(range(gradient.dim() - 1)))

    def channels(self, x: Tensor, width: int) -> Tensor:
        return x[..., :width].clone(memory_format=torch.contiguous_format)


class _Separable(torch.autograd.Function):
    """Layer whose backward uses the operators of `_Operators`, one for each gradient.

    The parts are parameters that the output does not depend on. Their gradients are those of the
    weights of the first input channels, for each of some widths.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        operators: _Operators,
        widths: Sequence[int],
        *parts: Tensor,
    ) -> Tensor:
        ctx.x, ctx.weight, ctx.has_bias, ctx.operators = x, weight, bias is not None, operators
        ctx.inputs = [operators.channels(x, width) for width in widths]
        return operators.output(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        [gradient] = gradients
        run: _Operators = ctx.operators
        above = run.input_gradient(gradient, ctx.x.shape, ctx.weight)
        weight = run.weight_gradient(gradient, ctx.x, ctx.weight)
        bias = run.bias_gradient(gradient) if ctx.has_bias else None
        parts = [run.weight_gradient(gradient, x, ctx.weight) for x in ctx.inputs]
        return (above, weight, bias, None, None, *parts)


@contextlib.contextmanager
def separated(
    network: nn.Module, layers: Sequence[TrainableLayer], parts: Mapping[str, Sequence[Tensor]]
) -> Iterator[None]:
    """Let the linear layers and convolutions of a network compute their gradients one by one.

    Args:
        network: Network, which is as before afterwards.
        layers: Its layers.
        parts: Stand-ins for the parts of a layer's weight, by the layer's name: one for each of
            `TrainableLayer.widths` but the last.
    """
    changed = []
    for layer in layers:
        module = network.get_submodule(layer.name) if layer.name != layer.weight else None
        operators = _operators_of(module)
        if module is not None and operators is not None:
            run = partial(_forward, module, operators, layer.widths[:-1], parts[layer.name])
            module.__dict__["forward"] = run
            changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.__dict__["forward"]


def _forward(
    module: Any, operators: _Operators, widths: Sequence[int], parts: Sequence[Tensor], x: Tensor
) -> Tensor:
    given = x, module.weight, module.bias, operators, widths, *parts
    found: Tensor = _Separable.apply(*given)  # type: ignore[no-untyped-call]
    return found


def _operators_of(module: nn.Module | None) -> _Operators | None:
    if isinstance(module, nn.Linear):
        return _Linear()
    if isinstance(module, (*_PLAIN, *_TRANSPOSED)):
        return _Convolution.of(module)
    return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
