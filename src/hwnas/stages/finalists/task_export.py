"""Bundle of a single task of a network that does several: the task's path, and its head."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.packing import BundleFacts, BundleNetwork, write_bundle
from hwnas.deploy.export.to_onnx import TOLERANCE, export_onnx, relative_error
from hwnas.errors import ArtifactError, ConfigError
from hwnas.plugin import closest
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.converted import Executed
from hwnas.search.evaluation.scoring import score
from hwnas.search.objectives.objective import COUNTED
from hwnas.search.tasks.classification import Classification
from hwnas.search.tasks.multi_task import MultiTask, one_task_data
from hwnas.search_spaces import Architecture, SearchSpace
from hwnas.search_spaces.space.task_paths import TaskPathSpace
from hwnas.stages.finalists.packing import metric_rows
from hwnas.stages.job import Job
from hwnas.stages.run_inputs import RunInputs

__all__ = ["check_task_path", "export_task"]

_LEFT_OUT = ("limits",)  # of the whole network's provenance


def check_task_path(run_inputs: RunInputs, task: str) -> tuple[TaskPathSpace, MultiTask]:
    """Return the space and the task of a run whose networks have a path for a task.

    Raises:
        ConfigError: The networks have no such paths, or there is no such task.
    """
    space, whole = run_inputs.space, run_inputs.task
    if not isinstance(space, TaskPathSpace) or not isinstance(whole, MultiTask):
        raise ConfigError(
            f"--task is {task!r}, but space {run_inputs.recipe.space.names[0]!r} with task "
            f"{whole.name} has no path for each task; leave it out, or search space experts for "
            "task multi-task"
        )
    if task not in space.task_names:
        raise ConfigError(f"--task is {task!r}; {closest(task, space.task_names)}")
    return space, whole


def export_task(job: Job, bundle: Bundle, task: str, folder: Path) -> Bundle:
    """Write the bundle of the path of one task through a network.

    The file is in single precision. It is evaluated on the images of the run, but not measured.

    Args:
        job: Run of the network.
        bundle: Bundle of the network.
        task: Name of the task.
        folder: Folder of the new bundle.

    Raises:
        ConfigError: The network has no path for the task.
        ArtifactError: The path cannot be exported, or its outputs differ from the network's.
        StorageError: The folder cannot be written.
    """
    run_inputs = job.run_inputs
    space, whole = check_task_path(run_inputs, task)
    architecture = bundle.architecture
    paths, path = space.path_space(task), space.path_architecture(architecture, task)
    weights = space.path_weights(architecture, task, bundle.weights())
    network = paths.build(path).eval()
    network.load_state_dict(weights)
    shape, preprocessing = paths.input_shape(path), bundle.preprocessing
    golden = bundle.golden_numbers()
    own, data = whole.one_task(task), one_task_data(run_inputs.data, whole, task)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "path.onnx"
        images = torch.from_numpy(golden.images)
        export = export_onnx(network, shape, file, images, preprocessing, paths.traceable)
        _check_equal(file, bundle, whole, task)
        packed = BundleNetwork(path, export, weights, preprocessing, own.meaning, golden.pixels)
        facts = BundleFacts(
            run_inputs.recipe.space.names[0],
            own.name,
            _provenance(bundle, task),
            [*_evaluated(file, own, data, shape), *_counted(paths, path)],
        )
        made = write_bundle(folder, packed, facts)
    made.verify()
    return made


def _check_equal(file: Path, bundle: Bundle, whole: MultiTask, task: str) -> None:
    """Raise if the outputs of a path differ from those of the network on the golden images."""
    golden, sizes = bundle.golden_numbers(), list(whole.task_outputs.values())
    number = list(whole.task_outputs).index(task)
    expected = np.split(golden.outputs, np.cumsum(sizes)[:-1], axis=1)[number]
    outputs = Executed(file)(torch.from_numpy(golden.images)).numpy()
    error = relative_error(outputs, expected)
    if error > TOLERANCE:
        raise ArtifactError(
            f"the path of task {task} differs from network {bundle.description['id']} by "
            f"{error:.2g} of the largest output; at most {TOLERANCE:g} is allowed. Check the "
            "run's bundle with `hwnas verify`"
        )


def _evaluated(
    file: Path, task: Classification, data: ImageData, shape: tuple[int, int, int]
) -> list[dict[str, Any]]:
    """Return the metrics of a path on test and validation images."""
    units, executed = {metric.name: metric.unit for metric in task.metrics}, Executed(file)
    test = score(executed, task, data.test, shape, "test")
    validation = score(executed, task, data.validation, shape, "validation")
    return [
        *metric_rows(test, units, "onnxruntime"),
        *metric_rows(validation, units, "onnxruntime"),
    ]


def _counted(space: SearchSpace, architecture: Architecture) -> list[dict[str, Any]]:
    workload = space.workload(architecture)
    return [
        {"name": name, "value": count(workload), "kind": "counted"}
        for name, count in COUNTED.items()
    ]


def _provenance(bundle: Bundle, task: str) -> dict[str, Any]:
    """Return the origin of a path: that of its network, which it names."""
    whole = bundle.description["provenance"]
    kept = {name: value for name, value in whole.items() if name not in _LEFT_OUT}
    return {**kept, "network": bundle.description["id"], "path_of_task": task}
