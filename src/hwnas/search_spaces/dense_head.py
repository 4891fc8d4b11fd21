"""Heads for dense prediction: outputs for each place of an image, as maps, instead of one vector.

A head is a feature pyramid (Lin et al., "Feature Pyramid Networks", CVPR 2017): the maps of some
stages get the same number of channels, coarse ones are enlarged and added to finer ones, and
depthwise separable convolutions give the outputs from the finest.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import mul

from torch import Tensor, nn
from torch.nn import functional

from hwnas.errors import ConfigError
from hwnas.search_spaces.cost_model.operator_counter import OperatorCounter
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature
from hwnas.search_spaces.layers import ConvNormAct
from hwnas.search_spaces.map_sizes import Size
from hwnas.search_spaces.space.choices import Choice, checked_whole
from hwnas.search_spaces.supernet.block_specs import BlockSpec

__all__ = [
    "CHANNELS",
    "DenseHead",
    "DenseNetwork",
    "dense_head_parts",
    "head_spec",
    "lateral_spec",
    "pyramid_stages",
]

CHANNELS = "dense_head.channels"
"""Name of the choice of the pyramid's channels."""


@dataclass(frozen=True)
class DenseHead:
    """Configuration of the head of networks that give maps.

    Attributes:
        stride: Largest stride of the outputs: pixels of the input, in each direction, for each
            place. The outputs have the stride of the finest map of the pyramid, which is the
            coarsest one that keeps this.
        channels: Options for the channels of the pyramid, from small to large.
        layers: Number of depthwise separable convolutions before the outputs, at least 1.
    """

    stride: int = 8
    channels: tuple[int, ...] = (32, 64)
    layers: int = 2

    def __post_init__(self) -> None:
        channels = checked_whole("dense_head.channels", self.channels)
        object.__setattr__(self, "channels", channels)
        for name in ("stride", "layers"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"dense_head.{name} is {getattr(self, name)}; expected at least 1"
                )

    @property
    def choice(self) -> Choice:
        """Choice of the channels."""
        return Choice(CHANNELS, self.channels)


def pyramid_stages(head: DenseHead | None, strides: Sequence[int]) -> tuple[int, ...]:
    """Return the stages whose maps the pyramid uses, in order: the last stage of each stride.

    Args:
        head: Configuration of the head; None for no head, which uses no stage.
        strides: Strides before the first stage, multiplied, then the stride of each stage.

    Raises:
        ConfigError: No stage has a map as fine as the head's stride.
    """
    if head is None:
        return ()
    totals = list(accumulate(strides, mul))[1:]
    last = {total: stage for stage, total in enumerate(totals)}
    fine = [total for total in last if total <= head.stride]
    if not fine:
        raise ConfigError(
            f"dense_head.stride is {head.stride}, but the finest map of a stage has a stride of "
            f"{min(last)}; set dense_head.stride to at least that, or lower space.stem_stride"
        )
    return tuple(stage for total, stage in last.items() if total >= max(fine))


class DenseNetwork(nn.Module):
    """Network that gives maps: (N, C, H, W) -> (N, outputs, H / stride, W / stride), rounded up.

    Args:
        stem: Layers before the stages.
        stages: Stages, each of which takes the map of the one before.
        laterals: Layer that gives the map of a stage the pyramid's channels, by ``str`` of the
            stage.
        dense_head: Layers from the finest map of the pyramid to the outputs.
    """

    def __init__(
        self,
        stem: nn.Module,
        stages: Sequence[nn.Sequential],
        laterals: Mapping[str, nn.Module],
        dense_head: nn.Module,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.laterals = nn.ModuleDict(laterals)
        self.dense_head = dense_head

    @classmethod
    def of(cls, blocks: Mapping[str, nn.Module], stages: Sequence[nn.Sequential]) -> DenseNetwork:
        """Return the network of blocks by the names of `lateral_spec` and `head_spec`."""
        start = "laterals."
        laterals = {
            name.removeprefix(start): b for name, b in blocks.items() if name.startswith(start)
        }
        return cls(blocks["stem"], stages, laterals, blocks["dense_head"])

    def forward(self, images: Tensor) -> Tensor:
        """Return maps (N, outputs, h, w) of images (N, C, H, W)."""
        x, pyramid = self.stem(images), []
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if str(number) in self.laterals:
                pyramid.append(self.laterals[str(number)](x))
        y = pyramid.pop()
        for finer in reversed(pyramid):
            y = finer + functional.interpolate(y, finer.shape[2:], mode="nearest")
        outputs: Tensor = self.dense_head(y)
        return outputs


def lateral_spec(stage: int, channels: Mapping[float, int], width: str) -> BlockSpec:
    """Return the specification of the layer between a stage and the pyramid.

    Args:
        stage: Number of the stage.
        channels: Channels of the stage by its width multiplier.
        width: Name of the choice of that multiplier.
    """
    make = partial(_lateral, channels)
    return BlockSpec(f"laterals.{stage}", make, {"width": width, "pyramid": CHANNELS})


def _lateral(channels: Mapping[float, int], width: float, pyramid: int) -> ConvNormAct:
    return ConvNormAct(channels[width], pyramid)


def head_spec(head: DenseHead, outputs: int) -> BlockSpec:
    """Return the specification of the layers from the pyramid to the outputs."""
    return BlockSpec("dense_head", partial(_layers, head, outputs), {"channels": CHANNELS})


def _layers(head: DenseHead, outputs: int, channels: int) -> nn.Sequential:
    parts: dict[str, nn.Module] = {}
    for number in range(head.layers):
        parts[f"depthwise{number}"] = ConvNormAct(
            channels, channels, 3, groups=channels, activation="relu"
        )
        parts[f"pointwise{number}"] = ConvNormAct(channels, channels, activation="relu")
    parts["outputs"] = nn.Conv2d(channels, outputs, 1)
    return nn.Sequential(OrderedDict(parts))


def dense_head_parts(
    head: DenseHead, outputs: int, networks: Sequence[Sequence[tuple[int, Size]]]
) -> list[list[Counter[OperatorSignature]]]:
    """Return the operator counts of each lateral layer, in order, and then of the head.

    Each list is ordered by network, then by channels of the pyramid.

    Args:
        head: Configuration of the head.
        outputs: Number of maps.
        networks: For each network, channels and size of each map that the pyramid uses.
    """
    sizes = [(maps, channels) for maps in networks for channels in head.channels]
    laterals = [
        [_lateral_counts(maps, level, channels) for maps, channels in sizes]
        for level in range(len(networks[0]))
    ]
    return [*laterals, [_head_counts(head, outputs, c, maps[0][1]) for maps, c in sizes]]


def _lateral_counts(
    maps: Sequence[tuple[int, Size]], level: int, pyramid: int
) -> Counter[OperatorSignature]:
    """Return the operator counts of a lateral layer, and of adding the next coarser map."""
    inputs, size = maps[level]
    lateral = OperatorCounter(inputs, *size).conv(pyramid, activation=False)
    if level + 1 < len(maps):
        OperatorCounter(pyramid, *maps[level + 1][1], steps=lateral.steps).enlarge(*size)
        lateral.simple("elementwise", inputs=2)
    return lateral.steps


def _head_counts(
    head: DenseHead, outputs: int, channels: int, size: Size
) -> Counter[OperatorSignature]:
    """Return the operator counts of the layers from the finest map to the outputs."""
    counter = OperatorCounter(channels, *size)
    for _ in range(head.layers):
        counter.conv(channels, 3, groups=channels).conv(channels)
    return counter.conv(outputs, activation=False, norm=False, biased=True).steps
