"""Hardware-aware neural architecture search: search, measure and package networks for a device.

The three jobs, each one call::

    import hwnas

    run = hwnas.search("photos/", minutes=45)             # launch a search
    hwnas.predict("model.onnx", "cpu-onnxruntime-fp32-b1-t1")  # predict for a device
    run.best("knee").export("my-model")                   # export a deployable model

Names are imported when they are first used, so ``import hwnas`` loads nothing else. `hwnas.search`
is both the function and the package of that name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwnas import errors, samplers, spaces, strategies, tasks
    from hwnas.api.calibration import calibrate, calibrate_from_table, export_networks
    from hwnas.api.checking import check
    from hwnas.api.compression import compress, sweep
    from hwnas.api.conversion import convert, model_repository, web_page
    from hwnas.api.devices import (
        explain,
        known_devices,
        measure,
        measure_cold_start,
        measure_energy,
        measure_peak_memory,
        measure_sustained,
        predict,
        predict_gemm,
        search_space,
        targets,
    )
    from hwnas.api.evaluation import evaluate
    from hwnas.api.finetuning import finetune, finetune_plan
    from hwnas.api.objectives import maximize, minimize
    from hwnas.api.run import Front, Network, Run, compare, export, open
    from hwnas.api.searching import search, search_recipe
    from hwnas.api.serving import plan_serving
    from hwnas.deploy.bundles.bundle import Bundle
    from hwnas.errors import HwnasError
    from hwnas.progress import Reporter, SilentReporter
    from hwnas.recipe import (
        ComputeConfig,
        DeployConfig,
        Named,
        PredictorConfig,
        Recipe,
        RunConfig,
        SearchConfig,
    )
    from hwnas.search.data.image_data import DataConfig, ImageData, Split
    from hwnas.search.engine.rungs import Rungs
    from hwnas.search.evaluation.evaluate import Evaluator
    from hwnas.search.objectives.objective import Objective
    from hwnas.search.tasks.task import Task
    from hwnas.search.training import TrainConfig
    from hwnas.search_spaces import SearchSpace

__all__ = [
    "Bundle",
    "ComputeConfig",
    "DataConfig",
    "DeployConfig",
    "Evaluator",
    "Front",
    "HwnasError",
    "ImageData",
    "Named",
    "Network",
    "Objective",
    "PredictorConfig",
    "Recipe",
    "Reporter",
    "Run",
    "RunConfig",
    "Rungs",
    "SearchConfig",
    "SearchSpace",
    "SilentReporter",
    "Split",
    "Task",
    "TrainConfig",
    "__version__",
    "calibrate",
    "calibrate_from_table",
    "check",
    "compare",
    "compress",
    "convert",
    "errors",
    "evaluate",
    "explain",
    "export",
    "export_networks",
    "finetune",
    "finetune_plan",
    "known_devices",
    "maximize",
    "measure",
    "measure_cold_start",
    "measure_energy",
    "measure_peak_memory",
    "measure_sustained",
    "minimize",
    "model_repository",
    "open",
    "plan_serving",
    "predict",
    "predict_gemm",
    "samplers",
    "search",
    "search_recipe",
    "search_space",
    "spaces",
    "strategies",
    "sweep",
    "targets",
    "tasks",
    "web_page",
]

__version__ = "0.1.0"

_MODULES = {
    "Bundle": "deploy.bundles.bundle",
    "ComputeConfig": "recipe",
    "DataConfig": "search.data.image_data",
    "DeployConfig": "recipe",
    "Evaluator": "search.evaluation.evaluate",
    "Front": "api.run",
    "HwnasError": "errors",
    "ImageData": "search.data.image_data",
    "Named": "recipe",
    "Network": "api.run",
    "Objective": "search.objectives.objective",
    "PredictorConfig": "recipe",
    "Recipe": "recipe",
    "Reporter": "progress",
    "Run": "api.run",
    "RunConfig": "recipe",
    "Rungs": "search.engine.rungs",
    "SearchConfig": "recipe",
    "SearchSpace": "search_spaces",
    "SilentReporter": "progress",
    "Split": "search.data.image_data",
    "Task": "search.tasks.task",
    "TrainConfig": "search.training",
    "calibrate": "api.calibration",
    "calibrate_from_table": "api.calibration",
    "check": "api.checking",
    "compare": "api.run",
    "compress": "api.compression",
    "convert": "api.conversion",
    "evaluate": "api.evaluation",
    "explain": "api.devices",
    "export": "api.run",
    "export_networks": "api.calibration",
    "finetune": "api.finetuning",
    "finetune_plan": "api.finetuning",
    "known_devices": "api.devices",
    "maximize": "api.objectives",
    "measure": "api.devices",
    "measure_cold_start": "api.devices",
    "measure_energy": "api.devices",
    "measure_peak_memory": "api.devices",
    "measure_sustained": "api.devices",
    "minimize": "api.objectives",
    "model_repository": "api.conversion",
    "open": "api.run",
    "plan_serving": "api.serving",
    "predict": "api.devices",
    "predict_gemm": "api.devices",
    "search_recipe": "api.searching",
    "search_space": "api.devices",
    "sweep": "api.compression",
    "targets": "api.devices",
    "web_page": "api.conversion",
}
"""Module of each name, below this package; other names are modules."""


if not TYPE_CHECKING:  # else a misspelt name would be of type Any

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'hwnas' has no attribute {name!r}")
        if name not in _MODULES:
            return import_module(f"hwnas.{name}")
        return getattr(import_module(f"hwnas.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__


class _CallablePackage(ModuleType):
    """Package `hwnas.search`, which is called like the function of that name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)

    @property
    def __wrapped__(self) -> Any:  # where `inspect.signature` looks for the function
        return import_module("hwnas.api.searching").search

    @property
    def __doc__(self) -> str:  # type: ignore[override]  # what `help` shows first
        import inspect
        import re

        function = self.__wrapped__
        signature = re.sub(r", (?=\w+:|\*)", ",\n    ", str(inspect.signature(function)))
        return f"hwnas.search{signature}\n\n{inspect.getdoc(function)}"


class _TopPackage(ModuleType):
    """This package, which makes its package ``search`` callable as soon as that is imported."""

    @property
    def search(self) -> ModuleType:
        return import_module("hwnas.search")

    @search.setter
    def search(self, package: ModuleType) -> None:
        package.__class__ = _CallablePackage


sys.modules[__name__].__class__ = _TopPackage
