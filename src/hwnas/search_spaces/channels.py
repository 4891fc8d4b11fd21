"""Any convolutional network with fewer channels in each layer, chosen before it is trained.

PreCropping (Cai et al., "Structured Pruning is All You Need for Pruning CNNs at Initialization",
2022): which channels a layer keeps matters little before training, how many matters much. So the
choices are ratios, one for each group of layers that have to have the same channels, and networks
are dense: smaller layers, no masks. The paper finds ratios by a score; here a search finds them.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.channel_config import ChannelConfig
from hwnas.search_spaces.channel_crop import crop
from hwnas.search_spaces.channel_groups import ChannelGroup, channel_groups
from hwnas.search_spaces.choices import Choice
from hwnas.search_spaces.space import SearchSpace

__all__ = ["ChannelSpace", "channels"]


class ChannelSpace(SearchSpace):
    """The networks that are left of a model when each group keeps a ratio of its channels.

    Shared weights are the first channels of each layer. Behind a concatenation that means other
    channels in a narrow network than in a wide one: there, train networks on their own.

    Args:
        config: The model, and what is asked of it.

    Raises:
        ConfigError: The model cannot be built or traced, does not take the images, or none of its
            channels can go.
    """

    name = "channels"

    def __init__(self, config: ChannelConfig) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            model = config.make()
        self._blank = copy.deepcopy(model).to("meta")
        self.wiring = channel_groups(self._blank, config.example())
        if not any(self._sizes):
            raise ConfigError(
                f"space.model {config.model!r} has no channels that can be cropped: "
                f"{self._reasons()}"
            )

    @cached_property
    def _sizes(self) -> tuple[dict[float, int], ...]:
        """For each group, the channels that are left by ratio; none where they stay."""
        return tuple(
            {} if group.fixed else self.config.sizes(group.channels, group.multiple)
            for group in self.wiring.groups
        )

    @property
    def groups(self) -> tuple[ChannelGroup, ...]:
        """The groups of channels that can be cropped."""
        return tuple(group for group in self.wiring.groups if not group.fixed)

    @property
    def fixed(self) -> Mapping[str, str]:
        """Why other groups keep their channels, by name."""
        return {group.name: group.fixed for group in self.wiring.groups if group.fixed}

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The ratio of each group that has several."""
        found = zip(self.wiring.groups, self._sizes, strict=True)
        return tuple(
            Choice(f"{group.name}.ratio", tuple(sizes)) for group, sizes in found if len(sizes) > 1
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """The configuration, and a hash of the model's parts and their sizes."""
        text = hashlib.sha256(str(self._blank).encode()).hexdigest()[:12]
        return {**self.config.to_json(), "model_parts": text}

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""
        height, width, channels = self.config.image_shape
        return channels, height, width

    def channels_of(self, architecture: Architecture) -> dict[str, int]:
        """How many channels are left of each group that can be cropped, by its name."""
        values = self.check(architecture).as_dict()
        return {
            group.name: sizes[float(values.get(f"{group.name}.ratio", next(iter(sizes))))]
            for group, sizes in zip(self.wiring.groups, self._sizes, strict=True)
            if sizes
        }

    def build(self, architecture: Architecture) -> nn.Module:
        """A plain module of the model's class: (N, C, H, W) float32 -> what the model gives."""
        left = self.channels_of(architecture)
        # A skeleton needs no factory, which may look at values that the meta device has not.
        blank = torch.empty(0).is_meta
        model = copy.deepcopy(self._blank) if blank else self.config.make()
        sizes = [left.get(group.name, group.channels) for group in self.wiring.groups]
        crop(model, self.wiring, sizes)
        return model

    def _reasons(self) -> str:
        found = [f"{name} ({reason})" for name, reason in self.fixed.items()]
        return "; ".join(found) or "it has no convolution or linear layer"


def channels(
    image_shape: tuple[int, int, int],
    outputs: int,
    model: str = "resnet20",
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75, 1),
    divisor: int = 8,
    options: Mapping[str, Any] | None = None,
) -> ChannelSpace:
    """The space of a recipe's ``[space] name = "channels"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        model: ``"resnet20"``, ``"resnet56"``, ``"simplenet-310k"``, or ``"package.module:build"``,
            a function that returns a torch.nn.Module; it is called with whichever it takes of
            ``image_shape`` and ``outputs``.
        ratios: Options for the share of channels that each group of layers keeps, in (0, 1].
        divisor: Numbers of channels are rounded to a multiple of it.
        options: Further arguments of ``model``, the table ``[space.options]``.

    Raises:
        ConfigError: The model cannot be built or traced, does not take the images, or none of its
            channels can go; or a ratio is out of range.
    """
    return ChannelSpace(ChannelConfig(model, ratios, divisor, image_shape, outputs, options or {}))
