"""Paths of single tasks through networks that do several tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.search_space import SearchSpace

__all__ = ["TaskPathSpace", "path_macs"]


@runtime_checkable
class TaskPathSpace(Protocol):
    """Space of networks that do several tasks, each by a path through the network.

    The path of a task is all that its outputs depend on. It is a network of its own, of the space
    of paths.
    """

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks, in the order of the outputs."""

    def path_space(self, task: str) -> SearchSpace:
        """Return the space of the paths of a task."""

    def path_architecture(self, architecture: Architecture, task: str) -> Architecture:
        """Return the path of a task in a network, as a point of its `path_space`."""

    def path_weights(
        self, architecture: Architecture, task: str, weights: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the weights of a path by their names there, from those of the network."""


def path_macs(space: TaskPathSpace, architecture: Architecture) -> dict[str, int]:
    """Return the multiply-accumulates of the path of each task in a network, by task.

    Their sum is more than the network has, since tasks share what comes before their experts
    differ.
    """
    found = {}
    for task in space.task_names:
        paths, path = space.path_space(task), space.path_architecture(architecture, task)
        counted = paths.counted(np.array([paths.encode(path)]))
        found[task] = int(counted["macs"][0]) if counted else paths.workload(path).macs
    return found
