"""Configuration of a space of multi-task transformers with experts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from hwnas.errors import ConfigError
from hwnas.search_spaces.experts.assignments import (
    FIRST,
    MOST_ASSIGNMENTS,
    assignment_count,
    assignments,
)
from hwnas.search_spaces.layers import GeluKind, check_gelu
from hwnas.search_spaces.vit import VitConfig

__all__ = ["ExpertsConfig"]

_TASK_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class ExpertsConfig:
    """Configuration of an `ExpertsSpace`.

    Attributes:
        vit: Sizes of the transformer, fixed and elastic; its outputs are those of all tasks.
        tasks: Name and number of outputs of each task, in the order of the outputs.
        experts: Largest number of perceptrons side by side in a block, at most one for each task;
            1 for blocks that all tasks share.
        expert_every: Distance of the blocks that have experts: 2 for every other block, beginning
            with the second one.
        activation: ``"gelu"``, or ``"piecewise-gelu"`` for its approximation by straight pieces.
    """

    vit: VitConfig
    tasks: tuple[tuple[str, int], ...]
    experts: int = 1
    expert_every: int = 2
    activation: GeluKind = "gelu"

    def __post_init__(self) -> None:
        _check_tasks(self)
        _check_experts(self)
        check_gelu("space.activation", self.activation)
        if self.vit.rank or self.vit.merging != (0,):
            raise ConfigError(
                "networks with experts have dense layers and keep all tokens; leave rank and "
                "merging out of their vision transformer"
            )

    @property
    def resolution(self) -> tuple[int, ...]:
        """Options for the longer side of the input, in pixels."""
        return self.vit.resolution

    @property
    def in_channels(self) -> int:
        """Channels of the images."""
        return self.vit.in_channels

    @cached_property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of the outputs."""
        return tuple(name for name, _ in self.tasks)

    def assignments(self, block: int) -> tuple[str, ...]:
        """Return the options for the experts of a block, which is numbered from 0."""
        has_experts = block % self.expert_every == self.expert_every - 1
        return self._assignments if has_experts else (FIRST * len(self.tasks),)

    @cached_property
    def _assignments(self) -> tuple[str, ...]:
        return assignments(len(self.tasks), self.experts)


def _check_tasks(config: ExpertsConfig) -> None:
    names = [name for name, _ in config.tasks]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"the tasks are {names}; expected one or more, none of them twice")
    for name, outputs in config.tasks:
        if not _TASK_NAME.fullmatch(name):
            raise ConfigError(
                f"task {name!r} has a name with other characters than letters, digits, _ and -; "
                "rename it"
            )
        if outputs < 1:
            raise ConfigError(f"task {name} has {outputs} outputs; expected at least 1")
    total = sum(outputs for _, outputs in config.tasks)
    if total != config.vit.outputs:
        raise ConfigError(
            f"the tasks have {total} outputs together, but the networks {config.vit.outputs}; "
            "give each output to one task"
        )


def _check_experts(config: ExpertsConfig) -> None:
    tasks, experts = len(config.tasks), config.experts
    if not 1 <= experts <= tasks:
        more = f", more than {tasks} task{'s' * (tasks > 1)} can use" if experts > tasks else ""
        allowed = f"1 to {tasks}" if tasks > 1 else "1, unless task.name is 'multi-task'"
        raise ConfigError(f"space.experts is {experts}{more}; expected {allowed}")
    if config.expert_every < 1 or (experts > 1 and config.expert_every > max(config.vit.depth)):
        raise ConfigError(
            f"space.expert_every is {config.expert_every}; expected 1 to "
            f"{max(config.vit.depth)}, the largest depth, so that a block has experts"
        )
    ways = assignment_count(tasks, experts)
    if ways > MOST_ASSIGNMENTS:
        raise ConfigError(
            f"{tasks} tasks can share {experts} experts in {ways} ways, but a choice has at most "
            f"{MOST_ASSIGNMENTS} options; lower space.experts"
        )
