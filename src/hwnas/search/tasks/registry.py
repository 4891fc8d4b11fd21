"""Registry of the tasks that a recipe can name.

To add a task, write a module here with a tuple ``PLUGINS``, as in `multilabel`, and a function for
Python in `hwnas.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable

from hwnas.registry import Registry
from hwnas.search.tasks.task import Task

__all__ = ["TASKS"]

TASKS: Registry[Callable[..., Task]] = Registry("task", __package__)
"""Tasks by name: factories that are called with the images as ``data``, and with the options of the
recipe."""
