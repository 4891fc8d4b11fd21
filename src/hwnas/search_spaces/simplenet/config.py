"""Configuration of a SimpleNet space.

SimpleNet is Hasanpour et al., "Lets keep it simple, Using simple architectures to outperform deeper
and more complex architectures" (2016): 13 convolutions, two of them pointwise, in groups separated
by 2x2 max pooling, then a global max pooling and a linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search_spaces.checks import check_counts, check_dropout
from hwnas.search_spaces.layers import make_divisible
from hwnas.search_spaces.map_sizes import SQUARE, Size, input_size
from hwnas.search_spaces.space.choices import checked_options, checked_whole

__all__ = ["Group", "SimpleNetConfig", "least_resolution"]


def least_resolution(halvings: int, aspect: Size) -> int:
    """Return the least longer side of images whose shorter side can be halved so many times."""
    return -(-(1 << halvings) * max(aspect) // min(aspect))


@dataclass(frozen=True)
class Group:
    """Convolutions at one size of feature maps.

    Attributes:
        channels: Channels of each layer at width 1.
        kernel_size: Kernel size of each layer, odd; a single number holds for all.
        depth: Options for the number of layers, counted from the first; all layers if empty.
        width: Options for each layer's channels as a share of ``channels``, in (0, 1].
    """

    channels: tuple[int, ...]
    kernel_size: tuple[int, ...] = (3,)
    depth: tuple[int, ...] = ()
    width: tuple[float, ...] = (1,)

    def __post_init__(self) -> None:
        layers = len(self.channels)
        if not layers or min(self.channels) < 1:
            raise ConfigError(f"Group.channels is {list(self.channels)}; expected numbers from 1")
        kernels = self.kernel_size * layers if len(self.kernel_size) == 1 else self.kernel_size
        object.__setattr__(self, "kernel_size", kernels)
        object.__setattr__(self, "depth", checked_whole("Group.depth", self.depth or (layers,)))
        object.__setattr__(self, "width", checked_options("Group.width", self.width))
        if len(kernels) != layers or any(size < 1 or size % 2 == 0 for size in kernels):
            raise ConfigError(
                f"Group.kernel_size is {list(kernels)}; expected one odd number, or one for each "
                f"of the {layers} layers"
            )
        if max(self.depth) != layers:
            raise ConfigError(
                f"Group.depth is {list(self.depth)}; the largest has to be {layers}, the number of "
                "layers in Group.channels"
            )
        if max(self.width) > 1:
            raise ConfigError(
                f"Group.width has {max(self.width)}; expected shares in (0, 1]. For wider layers "
                "raise Group.channels"
            )
        self._check_nesting()

    def options(self, layer: int) -> tuple[int, ...]:
        """Return the options for the channels of a layer, from small to large."""
        full = self.channels[layer]
        return tuple(full if w == 1 else make_divisible(full * w) for w in self.width)

    def _check_nesting(self) -> None:
        for layer, full in enumerate(self.channels):
            found = self.options(layer)
            if sorted(set(found)) != list(found):
                raise ConfigError(
                    f"Group.width {list(self.width)} gives {list(found)} channels of {full}; they "
                    "are rounded to multiples of 8, so choose widths further apart"
                )
        for depth in self.depth:
            # The layer after the group has weights for the channels of the last layer only.
            if self.channels[depth - 1] > self.channels[-1]:
                raise ConfigError(
                    f"Group.depth {depth} ends the group at {self.channels[depth - 1]} channels, "
                    f"more than the {self.channels[-1]} of its last layer, which limit the shared "
                    f"weights; leave {depth} out"
                )


@dataclass(frozen=True)
class SimpleNetConfig:
    """Configuration of a `SimpleNetSpace`. Lists of options go from small to large.

    Attributes:
        groups: Groups from the images to the global pooling. Max pooling between two groups halves
            the feature maps, rounding up.
        resolution: Options for the longer side of the input, in pixels.
        in_channels: Channels of the images.
        outputs: Length of the output vector, e.g. the number of classes.
        dropout: Dropout probability, in [0, 1), after each convolution. The paper trained with 0.2.
        aspect: Height and width of the input, as a ratio.
    """

    groups: tuple[Group, ...]
    resolution: tuple[int, ...] = (32,)
    in_channels: int = 3
    outputs: int = 10
    dropout: float = 0.0
    aspect: Size = SQUARE

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolution", checked_whole("resolution", self.resolution))
        if not self.groups:
            raise ConfigError("groups is empty; a network needs at least one Group")
        check_counts(self, "in_channels", "outputs")
        check_dropout(self.dropout)
        halvings, size = len(self.groups) - 1, input_size(min(self.resolution), self.aspect)
        if min(size) < 2**halvings:
            shape = f"{size[0]}" if size[0] == size[1] else f"{size[0]} x {size[1]}"
            raise ConfigError(
                f"images of {shape} pixels are too small for the space: they are halved {halvings} "
                f'times between its {len(self.groups)} groups. Use preset = "tiny", fewer '
                f"space.groups, or a space.resolution of at least "
                f"{least_resolution(halvings, self.aspect)}"
            )

    def taken(self, group: int, layer: int) -> tuple[int, ...]:
        """Return the possible numbers of input channels of a layer, from small to large."""
        if layer:
            return self.groups[group].options(layer - 1)
        return self.given(group - 1) if group else (self.in_channels,)

    def given(self, group: int) -> tuple[int, ...]:
        """Return the possible numbers of output channels of a group, from small to large."""
        last = self.groups[group]
        return tuple(sorted({c for depth in last.depth for c in last.options(depth - 1)}))
