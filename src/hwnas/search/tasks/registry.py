"""Registry of the tasks that a recipe can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hwnas.search.tasks.segmentation import segmentation
from hwnas.search.tasks.task import Task, classification

__all__ = ["TASKS"]

TASKS: Mapping[str, Callable[..., Task]] = {
    "classification": classification,
    "segmentation": segmentation,
}
