"""Tasks with their options, for `hwnas.search`; a task of your own is its instance or factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from hwnas.api.options import named_with_options
from hwnas.recipe import Named
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.classification import classification
from hwnas.search.tasks.detection import detection
from hwnas.search.tasks.language_model import language_model
from hwnas.search.tasks.multi_task import multi_task
from hwnas.search.tasks.multilabel import multilabel
from hwnas.search.tasks.regression import regression
from hwnas.search.tasks.segmentation import segmentation
from hwnas.search.tasks.super_resolution import super_resolution
from hwnas.search.tasks.task import Task

__all__ = [
    "Classification",
    "Detection",
    "LanguageModel",
    "MultiLabel",
    "MultiTask",
    "Regression",
    "Segmentation",
    "SuperResolution",
]

P = ParamSpec("P")


def _task(name: str, factory: Callable[Concatenate[ImageData, P], Task]) -> Callable[P, Named]:
    return named_with_options(name, factory, ("data",))


Classification = _task("classification", classification)
Detection = _task("detection", detection)
LanguageModel = _task("language-model", language_model)
MultiLabel = _task("multilabel", multilabel)
MultiTask = _task("multi-task", multi_task)
Regression = _task("regression", regression)
Segmentation = _task("segmentation", segmentation)
SuperResolution = _task("super-resolution", super_resolution)


def __dir__() -> list[str]:
    return __all__
