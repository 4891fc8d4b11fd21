"""Search space of the networks within a given one: narrower, and with fewer residual blocks."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hwnas.search_spaces.any_model.blocks import ResidualRun
from hwnas.search_spaces.any_model.cutting import Cut, cut, plan, segments_of, shapes_of
from hwnas.search_spaces.any_model.elastic_modules import ElasticModules
from hwnas.search_spaces.any_model.groups import ChannelGroup
from hwnas.search_spaces.any_model.parts import KnownParts, known_parts
from hwnas.search_spaces.cost_model.operator_counts import PartTable
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import Segments
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition, Option
from hwnas.search_spaces.space.search_space import SearchSpace

__all__ = ["ElasticSpace", "FixedModule"]


@dataclass(frozen=True)
class FixedModule:
    """Layer or block of a network that could not be made elastic.

    Attributes:
        name: Name of the layer or block.
        reason: Reason why it is not elastic.
    """

    name: str
    reason: str


class ElasticSpace(SearchSpace):
    """Space of all narrower and shallower networks within a given one, including its weights.

    `elastic` constructs it. `build` returns copies of the given model, cut to size, with the
    weights that remain; the largest network is the whole model with its channels sorted.

    Args:
        network: Whole network in evaluation mode, with its channels sorted by importance.
        image_shape: Channels, height and width.
        widths: Options of each group of channels.
        depths: Options of each run of blocks.
        fixed: Layers and blocks that could not be made elastic.
        pretrained: Whether the weights are trained.
    """

    name = "elastic"

    def __init__(
        self,
        network: nn.Module,
        image_shape: tuple[int, int, int],
        widths: Mapping[ChannelGroup, tuple[int, ...]],
        depths: Mapping[ResidualRun, tuple[int, ...]],
        fixed: tuple[FixedModule, ...],
        pretrained: bool = False,
    ) -> None:
        self.fixed, self.pretrained = fixed, pretrained
        self._network, self._blank = network, copy.deepcopy(network).to("meta")
        self._shapes = shapes_of(network)
        self._image_shape = image_shape
        self._groups = {group.choice: group for group in widths}
        self._runs = {f"{run.name}.depth" if run.name else "depth": run for run in depths}
        self.choices = (
            *(Choice(name, depths[run]) for name, run in self._runs.items()),
            *(
                Choice(
                    name, tuple(map(group.option, widths[group])), self._condition(group, depths)
                )
                for name, group in self._groups.items()
            ),
        )

    choices: tuple[Choice, ...] = ()

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """Class of the model, hash of its weights, image shape, and order of skipping blocks."""
        return {
            "model": type(self._network).__qualname__,
            "weights": _digest(self._network),
            "image_shape": list(self._image_shape),
            "blocks": {name: list(run.blocks) for name, run in self._runs.items()},
        } | ({"pretrained": True} if self.pretrained else {})

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        return self._image_shape

    def build(self, architecture: Architecture) -> nn.Module:
        """Return a plain module in training mode, with the given model's weights that remain."""
        on_meta = torch.empty(0).is_meta
        whole = self._blank if on_meta else self._network
        return cut(whole, self._cut(architecture)).train()

    def teacher(self) -> nn.Module | None:
        """Return a copy of the given network if its weights are trained, otherwise None."""
        if not self.pretrained:
            return None
        return copy.deepcopy(self._network).requires_grad_(False).eval()

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """See `SearchSpace.segments`.

        A layer that reads a concatenation has segments, for example.
        """
        tensors = self._cut(architecture).tensors.items()
        found = {name: segments_of(dims) for name, dims in tensors}
        return {name: segments for name, segments in found.items() if segments}

    def shared_modules(self, shared: Container[str]) -> ElasticModules:
        """See `SearchSpace.shared_modules`.

        Modules are assembled in microseconds.
        """
        return ElasticModules(self, self._blank, self._groups, self._width, self._runs, shared)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """See `SearchSpace.parts`.

        The parts are learned from a few traces at the first call.
        """
        return None if self._parts is None else self._parts.of(codes)

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the number of skippable blocks that are present, of shape (N,).

        None if the parts of the networks are unknown.
        """
        if self._parts is None:
            return None
        depths = [
            np.array(c.options)[codes[:, i]] for i, c in enumerate(self.choices[: len(self._runs)])
        ]
        return np.asarray(np.sum([np.zeros(len(codes)), *depths], axis=0), dtype=np.int64)

    @cached_property
    def _parts(self) -> KnownParts | None:
        widths = {
            choice.name: tuple(self._width(choice.name, option) for option in choice.options)
            for choice in self.choices
            if choice.name in self._groups
        }
        return known_parts(self, widths, self._runs)

    def _cut(self, architecture: Architecture) -> Cut:
        values = self.check(architecture).as_dict()
        skipped = [
            block for name, run in self._runs.items() for block in run.skipped(int(values[name]))
        ]
        widths = {
            group: self._width(name, values[name])
            for name, group in self._groups.items()
            if name in values
        }
        return plan(self._blank, widths, skipped, self._shapes)

    def _width(self, choice: str, option: Option) -> int:
        return self._groups[choice].width(int(option))

    def _condition(
        self, group: ChannelGroup, depths: Mapping[ResidualRun, tuple[int, ...]]
    ) -> ChoiceCondition | None:
        """Return the condition under which a group has an effect; None if it always has one.

        A group inside one skippable block has an effect only if that block is present.
        """
        for name, run in self._runs.items():
            for rank, block in enumerate(run.blocks):
                if all(member.axis.name.startswith(f"{block}.") for member in group.members):
                    kept: tuple[Option, ...] = tuple(d for d in depths[run] if d > rank)
                    return ChoiceCondition(name, kept) if len(kept) < len(depths[run]) else None
        return None


def _digest(network: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]
