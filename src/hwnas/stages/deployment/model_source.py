"""Opening of a network in a run, a bundle or an ONNX file, with images to evaluate it on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hwnas.atomic import recovered_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.image_file import Fit
from hwnas.deploy.cascades.cascade import Cascade
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.number_format import onnxruntime_target
from hwnas.errors import ArtifactError, ConfigError, DataError
from hwnas.run_folder import RunFolder, is_run
from hwnas.search import TASKS
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import all_images, labelled_images, load_data
from hwnas.search.data.raw_images import TargetKind
from hwnas.search.tasks.classification import Classification
from hwnas.search.tasks.task import Task
from hwnas.stages.finalists.pick import picked
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job
from hwnas.stages.run_inputs import RunInputs
from hwnas.stages.split_evaluator import IMAGES_AT_ONCE, SplitEvaluator
from hwnas.stages.trusted_jobs import trusted_job

__all__ = [
    "Images",
    "ModelSource",
    "Part",
    "images_for",
    "images_of_bundle",
    "on_all_images",
    "opened",
]

_TASKS: Mapping[TargetKind, str] = {
    "classes": "classification",
    "values": "regression",
    "masks": "segmentation",
    "boxes": "detection",
    "pictures": "super-resolution",
    "tokens": "language-model",
}
"""Task of a network of which only the images are known, by the kind of their targets."""
Part = Literal["test", "validation", "train", "all"]
"""Images of a data set: those of a split, or all."""
_LEVELS = 4  # maximum number of folders between a run and its bundles


@dataclass(frozen=True)
class Images:
    """Images with targets that a network is evaluated on.

    Attributes:
        task: Task that defines the metrics.
        data: Images and their targets.
        preprocessing: Preprocessing from these images to the network's input.
    """

    task: Task
    data: ImageData
    preprocessing: Preprocessing


@dataclass(frozen=True)
class ModelSource:
    """Network as ONNX, with its bundle, images and run where they are available.

    Attributes:
        model: Path of the ONNX file.
        bundle: Bundle that contains the network; None without one.
        images: Images to evaluate the network on; None without any.
        run_inputs: Data, task and space of the run that the network is from; None without one.
    """

    model: Path
    bundle: Bundle | None = None
    images: Images | None = None
    run_inputs: RunInputs | None = None

    def at_once(self, batch: int) -> int:
        """Return the number of images to evaluate at a time, for targets of this batch size."""
        # A user's own file may accept only one batch size.
        return batch if self.bundle is None else IMAGES_AT_ONCE

    def evaluator(self, split: Part, batch: int) -> SplitEvaluator | None:
        """Return an evaluator of the network's variants on images; None without images.

        Args:
            split: Split to evaluate on, or ``"all"`` for those of all splits.
            batch: Batch size of the targets that the variants run on.

        Raises:
            DataError: All images are asked for, but the splits are from different parts of the
                source.
        """
        if self.images is None:
            return None
        task, data, preprocessing = self.images.task, self.images.data, self.images.preprocessing
        known = self.bundle is not None
        chosen = all_images(data) if split == "all" else getattr(data, split)
        return SplitEvaluator(task, chosen, split, preprocessing, self.at_once(batch), known)


@contextlib.contextmanager
def opened(
    source: Path | RunFolder, data: str | None = None, pick: str | None = None
) -> Iterator[ModelSource]:
    """Open a run, the folder of a bundle, or an ONNX file.

    Args:
        source: Run or path to open. A bundle inside a run is opened together with the run.
        data: Images to evaluate on, as ``data.source`` of a recipe; a run has its own.
        pick: Network of a run to open, as in `picked`; the knee if None.

    Raises:
        ConfigError: An option does not apply, or the bundle's task is unknown.
        DataError: The images do not fit the network.
        ArtifactError: The bundle or the file is damaged.
        RunError: The run is damaged, in use or stale.
    """
    if not isinstance(source, RunFolder):
        source = recovered_folder(source)
    if isinstance(source, RunFolder) or is_run(source):
        with trusted_job(RunFolder.open(source)) as job:
            yield _of_run(job, _picked(job, pick), data)
        return
    if pick is not None:
        raise ConfigError("--pick is for the networks of a run; give the run's folder")
    if not source.is_dir():
        yield ModelSource(source, images=None if data is None else _images_of_file(source, data))
        return
    bundle = Bundle.load(source)
    run = _run_around(bundle.folder)
    if data is None and run is not None:
        with trusted_job(RunFolder.open(run)) as job:
            yield _of_run(job, bundle, data)
        return
    images = None if data is None else images_of_bundle(bundle, data)
    yield ModelSource(bundle.onnx_file, bundle, images)


def on_all_images(folder: Path, source: str) -> tuple[ModelSource, SplitEvaluator] | None:
    """Return a classifier with an evaluator on all images of a source, which may lack classes.

    Args:
        folder: Bundle of the classifier.
        source: Images that are not divided into parts, as ``data.source`` of a recipe.

    Returns:
        None if ``folder`` is not the bundle of a classifier, or ``source`` is a run.

    Raises:
        ConfigError: The source is unknown.
        DataError: The images cannot be read, are divided into parts, or have other classes.
        ArtifactError: The bundle is damaged.
    """
    folder = recovered_folder(folder)
    if not (folder / "bundle.json").is_file() or is_run(Path(source)):
        return None
    bundle = Bundle.load(folder)
    if bundle.description["task"] != "classification":
        return None
    labels, preprocessing = bundle.outputs.labels, bundle.preprocessing
    split = labelled_images(_config(source, preprocessing), Path(), labels)
    task = Classification(labels, preprocessing)
    evaluator = SplitEvaluator(task, split, "all", preprocessing, IMAGES_AT_ONCE)
    return ModelSource(bundle.onnx_file, bundle), evaluator


def _run_around(folder: Path) -> Path | None:
    """Return the run that contains a folder; None if there is none."""
    parents = folder.absolute().parents[:_LEVELS]
    return next((parent for parent in parents if is_run(parent)), None)


def _picked(job: Job, pick: str | None) -> Bundle:
    found = picked(job, SearchGoal(job.recipe.objective), pick, None)
    if isinstance(found, Bundle):
        return found
    raise ConfigError(
        f"network {found.candidate.id} is not a finalist; export it with `hwnas export "
        f"{job.folder.path} --pick {found.candidate.id} --out DIR` and sweep DIR"
    )


def _of_run(job: Job, bundle: Bundle, data: str | None) -> ModelSource:
    if data is not None:
        raise ConfigError("--data cannot be given with a run, which has its own images")
    run_inputs = job.run_inputs
    images = Images(run_inputs.task, run_inputs.data, bundle.preprocessing)
    return ModelSource(bundle.onnx_file, bundle, images, run_inputs)


def images_of_bundle(bundle: Bundle, source: str) -> Images:
    """Return images for a bundle, whose task has to be one of hwnas; see `images_for`."""
    name = bundle.description["task"]
    if name not in TASKS:
        raise ConfigError(
            f"{bundle.folder} is for task {name!r}, which only its run defines; give the run"
        )
    return images_for(bundle, bundle.preprocessing, name, source)


def images_for(
    model: Bundle | Cascade, preprocessing: Preprocessing, task_name: str, source: str
) -> Images:
    """Return images that a bundle or a cascade can be evaluated on.

    Args:
        model: The bundle or cascade.
        preprocessing: Preprocessing at the size that images of a folder are read at.
        task_name: Name of its task.
        source: Images, as ``data.source`` of a recipe, or the folder of a run, whose own splits
            then count.

    Raises:
        ConfigError: The source is unknown.
        DataError: The images cannot be read, or have other classes.
        RunError: The run is damaged, in use or stale.
    """
    if is_run(Path(source)):
        with trusted_job(RunFolder.open(source)) as job:
            task, data = job.run_inputs.task, job.run_inputs.data
    else:
        data = load_data(_config(source, preprocessing), Path(), 0)
        task = TASKS[task_name](data=data)
    ours, theirs = model.outputs.labels, task.meaning.labels
    if len(ours) != len(theirs) or (ours != theirs and theirs != _numbers(task.meaning)):
        raise DataError(
            f"{source} has {len(theirs)} classes {theirs[:5]}, but the network has {len(ours)} "
            f"{ours[:5]}; give images with the classes of the network"
        )
    return Images(task, data, preprocessing)


def _images_of_file(model: Path, source: str) -> Images:
    """Return images for a network of which only the input is known, with hwnas's preprocessing."""
    session = RUNTIMES["onnxruntime"].load(model, onnxruntime_target(model))
    if len(session.input_shape) != 3:
        raise ArtifactError(
            f"{model} takes inputs of {session.input_shape}, which is not the shape of an image"
        )
    channels, height, width = session.input_shape
    data = load_data(_sized(source, (height, width)), Path(), 0)
    if data.image_shape[2] != channels:
        raise DataError(
            f"{source} has {data.image_shape[2]} channels, but {model} takes {channels}"
        )
    task = TASKS[_TASKS[data.kind]](data=data)
    return Images(task, data, data.preprocessing.at(height, width))


def _config(source: str, preprocessing: Preprocessing) -> DataConfig:
    return _sized(source, (preprocessing.height, preprocessing.width), preprocessing.fit)


def _sized(source: str, size: tuple[int, int], fit: Fit = "stretch") -> DataConfig:
    """Return settings with the images' own size, but a given one for a folder and for text."""
    sized = source.startswith(("folder:", "text:"))
    return DataConfig(source, size=size if sized else None, fit=fit)


def _numbers(meaning: OutputMeaning) -> tuple[str, ...]:
    """Return the labels of classes that have no names, those of each task from 0."""
    counts = [count for _, count in meaning.tasks] or [len(meaning.labels)]
    return tuple(str(number) for count in counts for number in range(count))
