"""Modules of an `ExpertsSpace`: blocks with experts, a head for each task, and the network.

Shapes: N images, T tokens of C channels.

A stream is what some tasks have in common: their numbers, and their tokens (N, T, C). All tasks are
one stream at first. A block in which tasks of a stream have different experts divides it, and
streams never join again. What comes before a division is thus computed once for all of its tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hwnas.search_spaces.experts.assignments import FIRST
from hwnas.search_spaces.experts.config import ExpertsConfig
from hwnas.search_spaces.layers import Attention, FeedForward, PreNorm
from hwnas.search_spaces.vit.config import hidden_width
from hwnas.search_spaces.vit.network import TokenHead

__all__ = [
    "ExpertBlock",
    "MultiTaskTransformer",
    "Stream",
    "TaskHeads",
    "attention",
    "block",
    "expert",
    "head",
    "head_name",
]

Stream = tuple[tuple[int, ...], Tensor]
"""Numbers of the tasks that share tokens, and these tokens, (N, T, C)."""


class ExpertBlock(nn.Module):
    """Attention of all tasks, then a perceptron for each task: streams -> streams.

    The experts of the tasks are fixed, as in networks in which each task chooses its experts
    (M3ViT, Liang et al., NeurIPS 2022) once the choice is made.

    Args:
        attention: Attention: (N, T, C) -> (N, T, C).
        experts: Perceptrons of the same shape, by letter.
        assignment: Letter of each task's expert.
    """

    def __init__(
        self, attention: nn.Module, experts: Mapping[str, nn.Module], assignment: str
    ) -> None:
        super().__init__()
        self.attention = attention
        self.experts = nn.ModuleDict(experts)
        self.assignment = assignment

    def extra_repr(self) -> str:
        """Return the expert of each task."""
        return f"assignment={self.assignment}"

    def forward(self, streams: Sequence[Stream]) -> list[Stream]:
        """Return the streams after the block, which are as many or more."""
        found: list[Stream] = []
        for tasks, x in streams:
            mixed = self.attention(x)
            for letter in dict.fromkeys(self.assignment[task] for task in tasks):
                own = tuple(task for task in tasks if self.assignment[task] == letter)
                found.append((own, self.experts[letter](mixed)))
        return found


class TaskHeads(nn.Module):
    """Head for each task: streams -> outputs of all tasks side by side, (N, outputs).

    Args:
        width: C.
        tasks: Name and number of outputs of each task.
        dropout: Dropout probability before the last linear layers.
    """

    def __init__(self, width: int, tasks: Sequence[tuple[str, int]], dropout: float) -> None:
        super().__init__()
        for name, outputs in tasks:
            self.add_module(head_name(name), TokenHead(width, outputs, dropout))

    def forward(self, streams: Sequence[Stream]) -> Tensor:
        """Return the outputs of each task, from the tokens of its stream."""
        tokens = {task: x for tasks, x in streams for task in tasks}
        outputs: list[Tensor] = [each(tokens[t]) for t, each in enumerate(self.children())]
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]


class MultiTaskTransformer(nn.Module):
    """Network of an `ExpertsSpace`: (N, C, H, W) -> (N, outputs).

    Args:
        embedding: Embedding of images as tokens.
        blocks: Blocks, each an `ExpertBlock`.
        head: Heads of the tasks.
        tasks: Number of tasks.
    """

    def __init__(
        self, embedding: nn.Module, blocks: Sequence[nn.Module], head: nn.Module, tasks: int
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.head = head
        self._tasks = tuple(range(tasks))

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of all tasks, in their order."""
        streams: list[Stream] = [(self._tasks, self.embedding(images))]
        for each in self.blocks:
            streams = each(streams)
        outputs: Tensor = self.head(streams)
        return outputs


def attention(config: ExpertsConfig, width: int, heads: int) -> nn.Module:
    """Return the attention of a block, (N, T, C) -> (N, T, C)."""
    return PreNorm(width, Attention(width, heads, config.vit.head_width))


def expert(config: ExpertsConfig, width: int, mlp_ratio: float) -> nn.Module:
    """Return one perceptron of a block, (N, T, C) -> (N, T, C)."""
    hidden = hidden_width(width, mlp_ratio)
    return PreNorm(width, FeedForward(width, hidden, activation=config.activation))


def block(
    config: ExpertsConfig, width: int, heads: int, mlp_ratio: float, experts: str | None = None
) -> ExpertBlock:
    """Return a block with the experts of an assignment; with one for all tasks if None."""
    assignment = experts or FIRST * len(config.tasks)
    perceptrons = {letter: expert(config, width, mlp_ratio) for letter in sorted(set(assignment))}
    return ExpertBlock(attention(config, width, heads), perceptrons, assignment)


def head(config: ExpertsConfig, width: int) -> TaskHeads:
    """Return the heads of all tasks."""
    return TaskHeads(width, config.tasks, config.vit.dropout)


def head_name(task: str) -> str:
    """Return the name of a task's head among the heads; a task's own name may be a method's."""
    return f"task_{task}"
