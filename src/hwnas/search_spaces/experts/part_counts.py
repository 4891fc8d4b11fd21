"""Operator counts of networks with experts, composed of parts that are traced once each.

A block computes its attention once for each stream that enters it, and a perceptron once for each
stream that leaves it (`hwnas.search_spaces.experts.network`). The weights of a block are those of
one attention and of its distinct experts, however many streams use them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from hwnas.search_spaces.configured_space import Indices
from hwnas.search_spaces.cost_model.operator_counts import OperatorSignature, PartTable
from hwnas.search_spaces.cost_model.traced import traced_steps
from hwnas.search_spaces.experts.assignments import expert_numbers
from hwnas.search_spaces.experts.config import ExpertsConfig
from hwnas.search_spaces.experts.network import attention, expert, head
from hwnas.search_spaces.vit.network import embedding

__all__ = ["chosen_parts", "expert_counts", "part_table", "stream_counts"]

_ABSENT = 0
Counts = Counter[OperatorSignature]
Numbers = npt.NDArray[np.int64]


class _OneStream(nn.Module):
    """Heads that all read the same tokens: (N, T, C) -> (N, outputs)."""

    def __init__(self, heads: nn.Module, tasks: int) -> None:
        super().__init__()
        self.heads = heads
        self._tasks = tuple(range(tasks))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.heads([(self._tasks, x)])
        return outputs


def part_table(config: ExpertsConfig) -> PartTable:
    """Return the operator counts of the attention and of the perceptrons of each block.

    Embedding and heads follow. Parts of a block are ordered by width, patch size, resolution, heads
    or ratio, and by how often the part is there, 1 to the number of tasks, after an entry for no
    part.
    """
    vit = config.vit
    sizes = list(itertools.product(vit.width, vit.patch_size, vit.resolution))
    attentions, perceptrons = [Counts()], [Counts()]
    for width, patch, resolution in sizes:
        shape = vit.tokens(resolution, patch, 0)[0], width
        for heads in vit.heads:
            one = traced_steps(partial(attention, config, width, heads), shape)
            attentions += _repeated(one, len(config.tasks))
        for ratio in vit.mlp_ratio:
            one = traced_steps(partial(expert, config, width, ratio), shape)
            perceptrons += _repeated(one, len(config.tasks))
    blocks = [attentions, perceptrons] * max(vit.depth)
    return PartTable.of([*blocks, [_ends(config, *size) for size in sizes]])


def chosen_parts(
    config: ExpertsConfig, indices: Indices, times: Sequence[tuple[Numbers, Numbers]]
) -> Numbers:
    """Return the index of the part at each place of a `part_table`, of shape (N, places).

    Args:
        config: Configuration of the space.
        indices: Indices of the networks' options.
        times: How often each block has its attention, and its perceptrons, (N,) each.
    """
    vit = config.vit
    size = indices["width"] * len(vit.patch_size) + indices["patch_size"]
    size = size * len(vit.resolution) + indices["resolution"]
    depth = np.array(vit.depth)[indices["depth"]]
    columns = []
    for b, counts in enumerate(times):
        options = (("heads", vit.heads), ("mlp_ratio", vit.mlp_ratio))
        for (name, values), often in zip(options, counts, strict=True):
            part = size * len(values) + indices[f"block{b}.{name}"]
            part = part * len(config.tasks) + often
            columns.append(np.where(b < depth, part, _ABSENT))
    return np.column_stack([*columns, size])


def stream_counts(config: ExpertsConfig, indices: Indices) -> list[tuple[Numbers, Numbers]]:
    """Return the number of streams before and after each block, (N,) each."""
    tasks, networks = len(config.tasks), len(indices["depth"])
    same = np.ones((networks, tasks, tasks), dtype=bool)  # whether two tasks are one stream
    counts = [_distinct(same)]
    for b in range(max(config.vit.depth)):
        own = expert_numbers(config.assignments(b))[indices[f"block{b}.experts"]]
        same = same & (own[:, :, None] == own[:, None, :])
        counts.append(_distinct(same))
    return list(itertools.pairwise(counts))


def expert_counts(config: ExpertsConfig, indices: Indices) -> list[tuple[Numbers, Numbers]]:
    """Return the number of attentions, 1, and of distinct experts of each block, (N,) each."""
    one = np.ones(len(indices["depth"]), dtype=np.int64)
    found = []
    for b in range(max(config.vit.depth)):
        experts = expert_numbers(config.assignments(b)).max(axis=1) + 1
        found.append((one, experts[indices[f"block{b}.experts"]]))
    return found


def _distinct(same: npt.NDArray[np.bool_]) -> Numbers:
    """Return the number of streams, (N,), given which tasks are in the same, (N, tasks, tasks)."""
    earlier = np.tril(same, -1).any(axis=2)  # the stream of an earlier task
    found: Numbers = (~earlier).sum(axis=1)
    return found


def _repeated(one: Counts, most: int) -> list[Counts]:
    return [Counter({step: n * times for step, n in one.items()}) for times in range(1, most + 1)]


def _ends(config: ExpertsConfig, width: int, patch: int, resolution: int) -> Counts:
    """Return the operator counts of embedding and heads."""
    vit = config.vit
    first = traced_steps(
        lambda: embedding(vit, width, patch, resolution),
        (vit.in_channels, *vit.size(resolution, patch)),
    )
    last = traced_steps(
        lambda: _OneStream(head(config, width), len(config.tasks)),
        (vit.tokens(resolution, patch, 0)[0], width),
    )
    return first + last
