"""Checks of runs whose networks have early exits."""

from __future__ import annotations

from hwnas.deploy.runtimes.registry import SKIPPING
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.search.tasks.task import Task
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.early_exit import EarlyExitSpace
from hwnas.stages.goal import SearchGoal

__all__ = ["check_exit_targets", "check_exit_task"]


def check_exit_task(space: SearchSpace, task: Task) -> None:
    """Raise if networks with early exits are to learn another task than one class per image.

    Raises:
        ConfigError: They are.
    """
    if isinstance(space, EarlyExitSpace) and task.meaning.kind != "class_scores":
        raise ConfigError(
            f"networks of space {space.name!r} leave early by their class probability, but task "
            f"{task.name} gives {task.meaning.kind}; name the space of [space.network] in [space] "
            "itself, or use task classification"
        )


def check_exit_targets(space: SearchSpace, goal: SearchGoal) -> None:
    """Raise if a target of a goal does not skip the part of a network after an exit.

    Raises:
        ConfigError: One does not.
    """
    if not isinstance(space, EarlyExitSpace):
        return
    runtime, number_format = SKIPPING
    for name in goal.targets:
        target = Target.parse(name)
        if (target.device.runtime, target.format) != SKIPPING:
            raise ConfigError(
                f"target {name} computes the whole network for all images, so early exits save "
                f"nothing there; name a target with {runtime} and {number_format}, or another space"
            )
