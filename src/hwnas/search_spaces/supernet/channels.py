"""Search space of channel ratios: any network with fewer channels in each layer.

The ratios are chosen before training, as in PreCropping (Cai et al., "Structured Pruning is All You
Need for Pruning CNNs at Initialization", 2022): before training, it matters little which channels a
layer keeps, but much how many. Each choice is therefore a ratio, one for each group of layers that
must have the same channels. Networks are dense: layers are smaller and have no masks. The paper
determines the ratios by a score; here a search determines them.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Container, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.cutting import Cut, cut, plan, segments_of, shapes_of
from hwnas.search_spaces.any_model.elastic_modules import ElasticModules
from hwnas.search_spaces.any_model.groups import ChannelGroup
from hwnas.search_spaces.any_model.narrowing import narrow_groups
from hwnas.search_spaces.any_model.parts import KnownParts, known_parts
from hwnas.search_spaces.any_model.trial import check_traceable, checked_output
from hwnas.search_spaces.channel_config import ChannelConfig
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import Segments
from hwnas.search_spaces.space.choices import Choice, Option
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.space.space_plugin import SMALL, SpacePlugin
from hwnas.search_spaces.supernet.shared_modules import SharedModuleSource

__all__ = ["PLUGINS", "ChannelSpace", "channels"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class ChannelSpace(SearchSpace):
    """Space of the networks in which each channel group of a model keeps a share of its channels.

    Args:
        config: Model and options of the space.

    Attributes:
        groups: Channel groups that can be narrowed.
        fixed: Reasons why other layers keep their channels, by layer name.

    Raises:
        ConfigError: The model cannot be built or traced, does not take the images, or none of its
            channels can be removed.
    """

    name = "channels"

    def __init__(self, config: ChannelConfig) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = config.make().eval()
            example = torch.randn(config.example_shape)
        self._blank = copy.deepcopy(model).to("meta").train()
        self._shapes = shapes_of(model)
        output = checked_output(model, example)
        check_traceable(model, example)
        found, self.fixed = narrow_groups(model, example, output, self._widths, config.divisor)
        self.groups: tuple[ChannelGroup, ...] = tuple(found)
        if not self.groups:
            raise ConfigError(
                f"space.model {config.model!r} has no channels that can be cropped: "
                f"{self._reasons()}"
            )

    def _widths(self, group: ChannelGroup) -> tuple[int, ...]:
        return tuple(self.config.sizes(group.channels, group.unit).values())

    @cached_property
    def _sizes(self) -> Mapping[str, Mapping[float, int]]:
        """Number of remaining channels by ratio, for each group by the name of its choice."""
        return {
            _choice(group): self.config.sizes(group.channels, group.unit) for group in self.groups
        }

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Ratio of each group that has more than one option."""
        found = self._sizes.items()
        return tuple(Choice(name, tuple(sizes)) for name, sizes in found if len(sizes) > 1)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Configuration, and a hash of the model's modules and their sizes."""
        parts = _ADDRESS.sub("", str(self._blank))  # addresses differ between runs
        text = hashlib.sha256(parts.encode()).hexdigest()[:12]
        return {**self.config.to_json(), "model_parts": text}

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        return self.config.example_shape[1:]

    def channels_of(self, architecture: Architecture) -> dict[str, int]:
        """Return the number of remaining channels of each narrowable group, by group name."""
        return {group.name: width for group, width in self._left(architecture).items()}

    def build(self, architecture: Architecture) -> nn.Module:
        """Return a plain module of the model's class: (N, C, H, W) float32 -> output of the model.

        The remaining weights keep their initial values, so the model's own initialisation stays in
        force. Weights that sum over fewer inputs are scaled up by the square root of the ratio of
        inputs before and after, as every initialisation by fan-in (He et al., ICCV 2015,
        section 2.2) requires.
        """
        what = self._cut(architecture)
        # A module is cut from the blank copy: the factory may read values, which meta lacks.
        if torch.empty(0).is_meta:
            return cut(self._blank, what)
        model = cut(self.config.make(), what)
        for name, sides in what.sides.items():
            if "in" in sides:
                before = self._inputs(name)
                layer = model.get_submodule(name)
                assert isinstance(layer.weight, nn.Parameter)
                layer.weight.data *= math.sqrt(before / sides["in"])
        return model

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """See `SearchSpace.segments`.

        A layer that reads a concatenation has segments, for example.
        """
        found = {}
        for name, dims in self._cut(architecture).tensors.items():
            shared = self._largest_cut.tensors.get(name, {})
            found[name] = segments_of(
                {
                    dim: np.searchsorted(shared[dim], kept) if dim in shared else kept
                    for dim, kept in dims.items()
                }
            )
        return {name: segments for name, segments in found.items() if segments}

    def shared_modules(self, shared: Container[str]) -> SharedModuleSource:
        """See `SearchSpace.shared_modules`.

        If the largest ratio is 1, modules are assembled in microseconds.
        """
        if self.config.ratios[-1] < 1:
            return super().shared_modules(shared)
        groups = {_choice(group): group for group in self.groups}
        return ElasticModules(self, self._blank, groups, self._width, {}, shared)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """See `SearchSpace.parts`.

        The parts are learned from a few traces at the first call.
        """
        return None if self._parts is None else self._parts.of(codes)

    @cached_property
    def _parts(self) -> KnownParts | None:
        widths = {c.name: tuple(self._sizes[c.name].values()) for c in self.choices}
        return known_parts(self, widths, {})

    @cached_property
    def _largest_cut(self) -> Cut:
        return self._cut(self.largest())

    def _cut(self, architecture: Architecture) -> Cut:
        return plan(self._blank, self._left(architecture), shapes=self._shapes)

    def _left(self, architecture: Architecture) -> dict[ChannelGroup, int]:
        values = self.check(architecture).as_dict()
        return {
            group: sizes[float(values.get(choice, next(iter(sizes))))]
            for group, (choice, sizes) in zip(self.groups, self._sizes.items(), strict=True)
        }

    def _width(self, choice: str, option: Option) -> int:
        return self._sizes[choice][float(option)]

    def _inputs(self, name: str) -> int:
        """Return the number of input channels or features of a layer of the whole model."""
        layer = self._blank.get_submodule(name)
        size = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels
        assert isinstance(size, int)
        return size

    def _reasons(self) -> str:
        found = [f"{name} ({reason})" for name, reason in self.fixed.items()]
        return "; ".join(found) or "it has no convolution or linear layer"


def _choice(group: ChannelGroup) -> str:
    return f"{group.name}.ratio"


def channels(
    image_shape: tuple[int, int, int],
    outputs: int,
    model: str = "resnet20",
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75, 1),
    divisor: int = 8,
    options: Mapping[str, Any] | None = None,
) -> ChannelSpace:
    """Return the space of a recipe's ``[space] name = "channels"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, e.g. the number of classes.
        model: ``"resnet20"``, ``"resnet56"``, ``"simplenet-310k"``, or ``"package.module:build"``,
            a function that returns a torch.nn.Module. The function is called with those of
            ``image_shape`` and ``outputs`` that it accepts.
        ratios: Options for the share of channels that each group of layers keeps, in (0, 1].
        divisor: Number that channel counts are rounded to a multiple of.
        options: Further arguments of ``model``, from the table ``[space.options]``.

    Raises:
        ConfigError: The model cannot be built or traced, does not take the images, or none of its
            channels can be removed; or a ratio is out of range.
    """
    return ChannelSpace(ChannelConfig(model, ratios, divisor, image_shape, outputs, options or {}))


PLUGINS = (
    SpacePlugin(
        "space", "channels", channels, "Channel numbers of a given network", examples={"": SMALL}
    ),
)
