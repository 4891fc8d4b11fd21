"""Channel axes of layers: the tensor dimensions along an axis, and the resizing of a cut layer.

Layers whose input and output channels are the same, such as normalisations and depthwise
convolutions, have the single side ``out``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

__all__ = ["Axis", "axes_of", "held", "resize", "runs", "unit"]


@dataclass(frozen=True, order=True)
class Axis:
    """Channel axis of a layer or of a single parameter.

    Attributes:
        name: Name of the layer or parameter.
        side: Side of the layer; ``own`` for a parameter that belongs to no layer known here.
        dim: Dimension of such a parameter; 0 for layers.
    """

    name: str
    side: Literal["in", "out", "own"]
    dim: int = 0


def _one_sided(layer: nn.Module) -> bool:
    grouped = isinstance(layer, _ConvNd) and layer.groups > 1
    return grouped or isinstance(layer, _NormBase | nn.GroupNorm | nn.LayerNorm | nn.PReLU)


def axes_of(name: str, layer: nn.Module) -> dict[str, tuple[Axis, int]]:
    """Return axis and length of the sides ``in`` and ``out`` of a layer; empty for other modules.

    A grouped convolution with as many outputs as inputs has one axis for both sides. A grouped
    convolution with other numbers cannot be cut and has no axis.
    """
    if isinstance(layer, _ConvNd):
        if layer.groups > 1 and layer.in_channels != layer.out_channels:
            return {}
        lengths = layer.in_channels, layer.out_channels
    elif isinstance(layer, nn.Linear):
        lengths = layer.in_features, layer.out_features
    elif isinstance(layer, _NormBase):
        lengths = layer.num_features, layer.num_features
    elif isinstance(layer, nn.GroupNorm):
        lengths = layer.num_channels, layer.num_channels
    elif isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1:
        lengths = layer.normalized_shape[0], layer.normalized_shape[0]
    elif isinstance(layer, nn.PReLU) and layer.num_parameters > 1:
        lengths = layer.num_parameters, layer.num_parameters
    else:
        return {}
    out = Axis(name, "out")
    return {
        "in": (out if _one_sided(layer) else Axis(name, "in"), lengths[0]),
        "out": (out, lengths[1]),
    }


def unit(layer: nn.Module) -> int:
    """Return the number of channels that have to stay together.

    They are the channels of one group; 1 for layers without groups.
    """
    if isinstance(layer, _ConvNd):
        return layer.out_channels // layer.groups if layer.groups > 1 else 1
    if isinstance(layer, nn.GroupNorm) and layer.num_groups > 1:
        return layer.num_channels // layer.num_groups
    return 1


def held(network: nn.Module, axis: Axis) -> Iterator[tuple[str, int]]:
    """Yield name and dimension of each tensor that has the length of the axis."""
    if axis.side == "own":
        yield axis.name, axis.dim
        return
    layer = network.get_submodule(axis.name)
    prefix = f"{axis.name}." if axis.name else ""
    weight_dim = 0 if axis.side == "out" else 1
    if isinstance(layer, _ConvTransposeNd) and layer.groups == 1:
        weight_dim = 1 - weight_dim
    yield f"{prefix}weight", weight_dim
    if axis.side == "out":
        for key in ("bias", "running_mean", "running_var"):
            yield f"{prefix}{key}", 0


def resize(layer: nn.Module, sides: dict[str, int]) -> None:
    """Set the numbers of channels of a layer whose tensors were cut.

    Args:
        layer: Layer with cut tensors; its numbers of channels are still the old ones.
        sides: Channels of the sides that were cut.
    """
    if isinstance(layer, _ConvNd):
        _resize_convolution(layer, sides)
        return
    for side, channels in sides.items():
        if isinstance(layer, nn.Linear) and side == "in":
            layer.in_features = channels
        elif isinstance(layer, nn.Linear):
            layer.out_features = channels
        elif isinstance(layer, _NormBase):
            layer.num_features = channels
        elif isinstance(layer, nn.GroupNorm):
            _resize_group_norm(layer, channels)
        elif isinstance(layer, nn.LayerNorm):
            layer.normalized_shape = (channels,)
        elif isinstance(layer, nn.PReLU):
            layer.num_parameters = channels


def _resize_convolution(layer: _ConvNd, sides: dict[str, int]) -> None:
    if layer.groups > 1:
        channels, together = sides["out"], unit(layer)
        layer.in_channels = layer.out_channels = channels
        layer.groups = channels // together
        return
    layer.in_channels = sides.get("in", layer.in_channels)
    layer.out_channels = sides.get("out", layer.out_channels)


def _resize_group_norm(layer: nn.GroupNorm, channels: int) -> None:
    """Set the number of channels and of groups of a group normalisation.

    Groups are removed as a whole, so that remaining groups normalise the same channels.
    """
    if layer.num_groups > 1:
        layer.num_groups = channels // unit(layer)
    layer.num_channels = channels


def runs(positions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending positions as pairs of a start and a length."""
    found: list[list[int]] = []
    for position in positions:
        if found and position == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([position, 1])
    return tuple((start, length) for start, length in found)
