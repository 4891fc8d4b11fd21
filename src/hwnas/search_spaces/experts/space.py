"""Space of vision transformers that do several tasks, each with experts of its own.

The networks are those of `hwnas.search_spaces.vit` with a head for each task. Some blocks have
several perceptrons side by side, the experts, and the expert of each task is a choice. M3ViT (Liang
et al., NeurIPS 2022) lets a network choose experts by task and token; Edge-MoE (Sarkar et al.,
ICCAD 2023) runs it on an FPGA, one task at a time. Here the choice depends on the task alone and is
searched, so the path of a task is a plain transformer: it needs no gate and no expert of another
task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.search_spaces.configured_space import ConfiguredSpace, Indices
from hwnas.search_spaces.cost_model.operator_counts import PartTable, counted
from hwnas.search_spaces.experts.assignments import FIRST, most_experts
from hwnas.search_spaces.experts.config import ExpertsConfig
from hwnas.search_spaces.experts.network import MultiTaskTransformer, block, head, head_name
from hwnas.search_spaces.experts.part_counts import (
    chosen_parts,
    expert_counts,
    part_table,
    stream_counts,
)
from hwnas.search_spaces.layers import GeluKind, PiecewiseGelu, Position
from hwnas.search_spaces.map_sizes import aspect_of
from hwnas.search_spaces.presets import changed, preset_for
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.space_plugin import DIGITS, LARGE, SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_space import row
from hwnas.search_spaces.supernet.block_specs import BlockSpec
from hwnas.search_spaces.vit import PRESETS
from hwnas.search_spaces.vit.network import embedding

__all__ = ["PLUGINS", "ExpertsSpace", "experts"]

_OF_NETWORK = ("resolution", "patch_size", "width", "depth")
_OF_BLOCKS = ("heads", "mlp_ratio")
_ALL_TASKS = "all"
_PRESETS = {name: PRESETS[name] for name in ("tiny", "small", "large")}


class ExpertsSpace(ConfiguredSpace[ExpertsConfig]):
    """Space of multi-task transformers; a smaller one has the first blocks, heads and channels.

    Args:
        config: Fixed and elastic dimensions.
    """

    name = "experts"

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        values, vit = self.values(architecture), self.config.vit
        return vit.in_channels, *vit.size(int(values["resolution"]), int(values["patch_size"]))

    def decisions(self) -> Iterator[Choice]:
        """Yield the choices of the whole network, then of each block."""
        vit = self.config.vit
        for name in _OF_NETWORK:
            yield Choice(name, getattr(vit, name))
        for b in range(max(vit.depth)):
            when = ChoiceCondition.deeper("depth", vit.depth, b)
            for name in _OF_BLOCKS:
                yield Choice(f"block{b}.{name}", getattr(vit, name), when)
            yield Choice(f"block{b}.experts", self.config.assignments(b), when)

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Blocks, heads and embedding; all depend on the width."""
        config, width = self.config, {"width": "width"}
        of_patches = width | {"patch_size": "patch_size"}
        if config.vit.position == "table":
            of_patches["resolution"] = "resolution"
        blocks = (
            BlockSpec(
                f"blocks.{b}",
                partial(block, config),
                width | {name: f"block{b}.{name}" for name in (*_OF_BLOCKS, "experts")},
                "depth",
                b + 1,
            )
            for b in range(max(config.vit.depth))
        )
        heads = BlockSpec("head", partial(head, config), width)
        first = BlockSpec("embedding", partial(embedding, config.vit), of_patches)
        return *blocks, heads, first

    def frame(self, blocks: Mapping[str, nn.Module]) -> MultiTaskTransformer:
        """See `BlockSpace.frame`."""
        return MultiTaskTransformer(
            blocks["embedding"], row(blocks, "blocks"), blocks["head"], len(self.config.tasks)
        )

    def part_table(self) -> PartTable:
        """Return the operator counts of attentions, perceptrons, and the rest as one part."""
        return part_table(self.config)

    def chosen_parts(self, indices: Indices) -> npt.NDArray[np.int64]:
        """See `ConfiguredSpace.chosen_parts`."""
        return chosen_parts(self.config, indices, stream_counts(self.config, indices))

    def counted(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """See `NetworkCosts.counted`; weights that several tasks use are counted once."""
        found, indices = super().counted(codes), self.indices(codes)
        copies = expert_counts(self.config, indices)
        parts = chosen_parts(self.config, indices, copies)
        once = counted(self._part_table.networks(parts))
        if self.config.activation == "piecewise-gelu":
            present = np.array(self.config.vit.depth)[indices["depth"]][:, None]
            perceptrons = np.column_stack([experts for _, experts in copies])
            there = np.arange(perceptrons.shape[1]) < present
            tables = (perceptrons * there).sum(axis=1) * PiecewiseGelu.constants
            once["params"] = once["params"] - tables
        return {**once, "macs": found["macs"]}

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of the outputs."""
        return self.config.task_names

    def path_space(self, task: str) -> ExpertsSpace:
        """Return the space of the paths of a task: transformers with its head alone.

        Raises:
            ConfigError: There is no such task.
        """
        return self._path_spaces[self._known(task)]

    @cached_property
    def _path_spaces(self) -> dict[str, ExpertsSpace]:
        """Space of the paths of each task, kept because it counts its parts once."""
        config, found = self.config, {}
        for task, outputs in config.tasks:
            vit = dataclasses.replace(config.vit, outputs=outputs)
            path = dataclasses.replace(config, vit=vit, tasks=((task, outputs),), experts=1)
            found[task] = ExpertsSpace(path)
        return found

    def path_architecture(self, architecture: Architecture, task: str) -> Architecture:
        """Return the path of a task in a network, as a point of its `path_space`."""
        values = self.check(architecture).as_dict()
        kept = {name: value for name, value in values.items() if not _is_assignment(name)}
        return self.path_space(task).architecture(kept)

    def path_weights(
        self, architecture: Architecture, task: str, weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the weights of a path by their names there, from those of the network."""
        number = self.task_names.index(self._known(task))
        values = self.values(self.check(architecture))
        found = {}
        for name, tensor in weights.items():
            parts = name.split(".")
            if parts[0] == "head" and parts[1] != head_name(task):
                continue
            if parts[0] == "blocks" and parts[2] == "experts":
                if parts[3] != values[f"block{parts[1]}.experts"][number]:
                    continue
                parts[3] = FIRST
            found[".".join(parts)] = tensor
        return found

    def _known(self, task: str) -> str:
        """Return the name of a task, or raise if there is no such task."""
        if task not in self.task_names:
            raise ConfigError(f"unknown task {task!r}; {closest(task, self.task_names)}")
        return task


def _is_assignment(choice: str) -> bool:
    return choice.endswith(".experts")


def experts(
    image_shape: tuple[int, int, int],
    outputs: int,
    preset: str | None = None,
    experts: int | None = None,
    expert_every: int = 2,
    activation: GeluKind = "gelu",
    depth: tuple[int, ...] | None = None,
    width: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    mlp_ratio: tuple[float, ...] | None = None,
    patch_size: tuple[int, ...] | None = None,
    resolution: tuple[int, ...] | None = None,
    position: Position | None = None,
    head_width: int | None = None,
    dropout: float | None = None,
    tasks: Mapping[str, int] | None = None,
) -> ExpertsSpace:
    """Return the space of a recipe's ``[space] name = "experts"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector.
        preset: ``"tiny"`` (images up to 16 pixels), ``"small"`` (up to 96) or ``"large"``, with the
            sizes of these presets of ``vit``; chosen by the size of the images if None.
        experts: Largest number of perceptrons side by side in a block, at most one for each task;
            1 for networks whose tasks share all blocks. If None, one for each task, or fewer if so
            many could be shared in more than 256 ways.
        expert_every: Distance of the blocks that have experts: 1 for all blocks, 2 for every other
            one, beginning with the second.
        activation: ``"gelu"``, or ``"piecewise-gelu"`` for straight pieces from a table, which
            differ from it by at most 0.0004.
        depth: Options for the number of blocks, in place of the preset's; this and all that follow
            are as in `VitConfig`.
        width: Options for the channels of a token.
        heads: Options for each block's number of heads.
        mlp_ratio: Options for each block's hidden channels, as a multiple of the width.
        patch_size: Options for the side of a patch in pixels, decreasing.
        resolution: Options for the longer side of the input, in pixels.
        position: ``"convolution"`` or ``"table"``.
        head_width: Channels of a head; 0 for the largest width over the largest number of heads.
        dropout: Dropout probability before the last linear layers.
        tasks: Number of outputs of each task by its name, in the order of the outputs; a single
            task if None.

    Raises:
        ConfigError: The preset is unknown, an option is out of range, there are more experts than
            tasks, or the images are too small.
    """
    vit = changed(
        preset_for("experts", preset, image_shape, _PRESETS)(image_shape),
        in_channels=image_shape[2],
        outputs=outputs,
        depth=depth,
        width=width,
        heads=heads,
        mlp_ratio=mlp_ratio,
        patch_size=patch_size,
        resolution=resolution,
        position=position,
        head_width=head_width,
        dropout=dropout,
        aspect=aspect_of(image_shape),
    )
    named = tuple((tasks or {_ALL_TASKS: outputs}).items())
    most = most_experts(len(named)) if experts is None else experts
    return ExpertsSpace(ExpertsConfig(vit, named, most, expert_every, activation))


PLUGINS = (
    SpacePlugin(
        "space",
        "experts",
        experts,
        "Vision transformers for several tasks, with experts by task (M3ViT, Edge-MoE)",
        examples={"tiny": DIGITS, "small": SMALL, "large": LARGE},
    ),
)
