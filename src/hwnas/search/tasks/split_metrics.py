"""Metrics of all images of a split, from the outputs of one batch after another."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from hwnas.search.tasks.delta_method import MetricValue, function_of_means
from hwnas.search.tasks.task import RankTask, Task

__all__ = ["SplitMetrics"]


class SplitMetrics:
    """Collector of what the metrics of a task need of each image.

    For metrics that depend on all images together, what they need of the outputs is kept.

    Args:
        task: Task with the metrics.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._statistics: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._ranking = task if isinstance(task, RankTask) and task.rank_metrics else None
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Add a batch: outputs of the network, and the targets of these images, both on the CPU."""
        for part, entries in self._task.statistics(outputs, targets).items():
            self._statistics[part].append(entries)
        if self._ranking is not None:
            self._outputs.append(self._ranking.ranked(outputs))
            self._targets.append(targets)

    def values(self) -> dict[str, MetricValue]:
        """Return the metrics of the images so far, by name."""
        statistics = {part: torch.cat(entries) for part, entries in self._statistics.items()}
        found = function_of_means(self._task.metric_values, statistics)
        if self._ranking is not None:
            found |= self._ranking.rank_values(torch.cat(self._outputs), torch.cat(self._targets))
        return found
