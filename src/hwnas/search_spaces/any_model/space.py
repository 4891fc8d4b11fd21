"""The networks that are parts of a given one: narrower, and with fewer residual blocks."""

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

from hwnas.search_spaces.any_model.blocks import Run
from hwnas.search_spaces.any_model.cutting import Cut, cut, plan, segments_of, shapes_of
from hwnas.search_spaces.any_model.groups import ChannelGroup
from hwnas.search_spaces.any_model.parts import KnownParts, known_parts
from hwnas.search_spaces.any_model.skeletons import ElasticSkeletons
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choices import Choice, Option, When
from hwnas.search_spaces.space import SearchSpace, Segments
from hwnas.search_spaces.steps import PartTable

__all__ = ["ElasticSpace", "Fixed"]


@dataclass(frozen=True)
class Fixed:
    """Something of a network that could not be made elastic.

    Attributes:
        name: Of a layer or block.
        reason: Why not.
    """

    name: str
    reason: str


class ElasticSpace(SearchSpace):
    """All narrower and shallower networks within a given one, weights included; see `elastic`.

    `build` gives copies of the given model, cut to size, with the weights that stay; the largest
    is the whole model with its channels sorted.

    Args:
        network: The whole network in evaluation mode, its channels sorted by importance.
        image_shape: Channels, height and width.
        widths: The options of each group of channels.
        depths: The options of each run of blocks.
        fixed: What could not be made elastic.
        pretrained: Whether the weights are trained.
    """

    name = "elastic"

    def __init__(
        self,
        network: nn.Module,
        image_shape: tuple[int, int, int],
        widths: Mapping[ChannelGroup, tuple[int, ...]],
        depths: Mapping[Run, tuple[int, ...]],
        fixed: tuple[Fixed, ...],
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
        """The class of the model, its weights, and the order in which blocks are skipped."""
        return {
            "model": type(self._network).__qualname__,
            "weights": _digest(self._network),
            "image_shape": list(self._image_shape),
            "blocks": {name: list(run.blocks) for name, run in self._runs.items()},
        } | ({"pretrained": True} if self.pretrained else {})

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Channels, height and width of one input image."""
        return self._image_shape

    def build(self, architecture: Architecture) -> nn.Module:
        """A plain module with the weights of the given model that stay, in training mode."""
        on_meta = torch.empty(0).is_meta
        whole = self._blank if on_meta else self._network
        return cut(whole, self._cut(architecture)).train()

    def teacher(self) -> nn.Module | None:
        """The given network, if its weights are trained."""
        if not self.pretrained:
            return None
        return copy.deepcopy(self._network).requires_grad_(False).eval()

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """See `SearchSpace.segments`: of layers that read what was concatenated, say."""
        tensors = self._cut(architecture).tensors.items()
        found = {name: segments_of(dims) for name, dims in tensors}
        return {name: segments for name, segments in found.items() if segments}

    def skeletons(self, shared: Container[str]) -> ElasticSkeletons:
        """See `SearchSpace.skeletons`: put together in microseconds."""
        return ElasticSkeletons(self, self._blank, self._groups, self._width, self._runs, shared)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """See `SearchSpace.parts`; learned from some traces when it is first asked for."""
        return None if self._parts is None else self._parts.of(codes)

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """How many of the blocks that may be left out are there, (N,)."""
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

    def _condition(self, group: ChannelGroup, depths: Mapping[Run, tuple[int, ...]]) -> When | None:
        """A group that lies within one block that may be skipped has an effect only with it."""
        for name, run in self._runs.items():
            for rank, block in enumerate(run.blocks):
                if all(member.axis.name.startswith(f"{block}.") for member in group.members):
                    kept: tuple[Option, ...] = tuple(d for d in depths[run] if d > rank)
                    return When(name, kept) if len(kept) < len(depths[run]) else None
        return None


def _digest(network: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:16]
