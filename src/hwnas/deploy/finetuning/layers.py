"""Layers of a network whose update can be chosen, and the parts of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

__all__ = ["SHARES", "TrainableLayer", "trainable_layers"]

SHARES = (0.25, 0.5, 1.0)
"""Shares of a layer's input channels whose weights can be trained."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class TrainableLayer:
    """Layer, or single parameter, whose update can be chosen.

    Attributes:
        name: Name of the layer's module; of the parameter if it belongs to no layer.
        weight: Name of its weight among the parameters of the network.
        bias: Name of its bias; None without one.
        shape: Shape of the weight.
        channels: Number of input channels whose weights can be trained apart; 1 if only all can.
        axis: Axis of the weight along which these channels lie.
        bias_elements: Number of elements of the bias.
    """

    name: str
    weight: str
    bias: str | None
    shape: tuple[int, ...]
    channels: int = 1
    axis: int = 0
    bias_elements: int = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of input channels that can be trained, ascending; the last is all of them."""
        return tuple(sorted({self.width(share) for share in SHARES}))

    def width(self, share: float) -> int:
        """Return the number of input channels of a share, at least 1."""
        return max(1, round(share * self.channels))

    def rows(self, width: int) -> int:
        """Return the length, along the axis, of the weights of the first input channels."""
        return self.shape[self.axis] // self.channels * width

    def part(self, weight: Tensor, width: int) -> Tensor:
        """Return the weights of the first input channels, as a view."""
        return weight.narrow(self.axis, 0, self.rows(width))

    def elements(self, width: int) -> int:
        """Return the number of weights of the first input channels."""
        count = self.rows(width)
        for axis, size in enumerate(self.shape):
            count *= 1 if axis == self.axis else size
        return count


def trainable_layers(network: nn.Module) -> tuple[TrainableLayer, ...]:
    """Return the layers of a network whose update can be chosen, in the order of its modules.

    Weights of linear layers, of convolutions in one group and of depthwise convolutions can be
    trained in part. Parameters of modules without a ``weight`` are chosen one by one.
    """
    found: list[TrainableLayer] = []
    for name, module in network.named_modules():
        own = dict(module.named_parameters(name, recurse=False))
        weight, bias = (f"{name}.{part}" if name else part for part in ("weight", "bias"))
        if weight in own:
            found.append(_layer(name, module, weight, bias if bias in own else None, own))
        else:
            found += [TrainableLayer(each, each, None, tuple(own[each].shape)) for each in own]
    return tuple(found)


def _layer(
    name: str, module: nn.Module, weight: str, bias: str | None, own: Mapping[str, Tensor]
) -> TrainableLayer:
    channels, axis = 1, 0
    if isinstance(module, nn.Linear):
        channels, axis = module.in_features, 1
    elif isinstance(module, _CONVOLUTIONS):
        if module.groups == 1:
            channels, axis = module.in_channels, 1
        elif module.groups == module.in_channels:
            channels = module.in_channels
    elements = 0 if bias is None else own[bias].numel()
    return TrainableLayer(name, weight, bias, tuple(own[weight].shape), channels, axis, elements)
