"""Evaluation of every file of a network on images with targets, each in its own runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.checksums import inside
from hwnas.deploy.runtimes import open_session, unavailable
from hwnas.deploy.runtimes.runtime import Computation, Session
from hwnas.deploy.targets.number_format import onnxruntime_target
from hwnas.deploy.targets.target import Target
from hwnas.deploy.variants.quality import Quality
from hwnas.errors import ArtifactError, ConfigError, DataError, NonFiniteOutput
from hwnas.interval import Interval, wilson_interval
from hwnas.progress import Reporter
from hwnas.run_folder import RunFolder
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.stages.deployment.model_source import ModelSource, Part, on_all_images, opened
from hwnas.stages.split_evaluator import SplitEvaluator

__all__ = ["ClassAnswers", "FileEvaluation", "NetworkEvaluation", "evaluate_network"]


@dataclass(frozen=True)
class ClassAnswers:
    """Answers of a file to the images of one class.

    Attributes:
        label: Name of the class.
        images: Number of its images.
        right: Number of these that the file gives the class.
        mistaken: Number of these that it gives each other class, the most frequent first.
    """

    label: str
    images: int
    right: int
    mistaken: Mapping[str, int]

    @property
    def interval(self) -> Interval | None:
        """95 % confidence interval of the share of right answers; None without images."""
        return wilson_interval(self.right / self.images, self.images) if self.images else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        interval = None if self.interval is None else self.interval.ends
        return {**asdict(self), "interval": interval}


@dataclass(frozen=True)
class FileEvaluation:
    """Metrics of one file of a network.

    Attributes:
        file: Name of the file.
        computed_in: Number format and runtime, or the file format, that it was computed in.
        qualities: Each metric of the task; empty if the file was not evaluated.
        classes: Answers to the images of each class; empty if an image does not have one class.
        is_reference: Whether losses are against this file.
        not_run: Why the file is not run on this machine; empty if it is.
        failure: What is wrong with the file; empty if nothing is.
    """

    file: str
    computed_in: str
    qualities: tuple[Quality, ...] = ()
    classes: tuple[ClassAnswers, ...] = ()
    is_reference: bool = False
    not_run: str = ""
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "file": self.file,
            "computed_in": self.computed_in,
            "metrics": [each.to_json() for each in self.qualities],
            "classes": [each.to_json() for each in self.classes],
            "is_reference": self.is_reference,
            "not_run": self.not_run,
            "failure": self.failure,
        }


@dataclass(frozen=True)
class NetworkEvaluation:
    """Metrics of all files of a network on the same images.

    Attributes:
        files: Files, the ONNX files first.
        split: Part of the images.
        n: Number of images.
        of: Number of images in all parts.
    """

    files: tuple[FileEvaluation, ...]
    split: Part
    n: int
    of: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        files = [each.to_json() for each in self.files]
        return {"split": self.split, "n": self.n, "of": self.of, "files": files}


@dataclass(frozen=True)
class _File:
    """File to evaluate; `load` is called only if there is no reason against running it."""

    name: str
    computed_in: str
    load: Callable[[], Session]
    not_run: str | None
    takes_pixels: bool = False
    is_reference: bool = False


def evaluate_network(
    source: str | Path | RunFolder,
    data: str | None,
    split: Part,
    reporter: Reporter,
    pick: str | None = None,
) -> NetworkEvaluation:
    """Evaluate every file of a network that runs on this machine.

    Losses are against the ONNX file in single precision, or the first one if a bundle has none.

    Args:
        source: Run, folder of a bundle or of a run, or an ONNX file.
        data: Images, as ``data.source`` of a recipe, or the folder of a run; a run has its own.
        split: Part of the images to evaluate on. With ``"all"``, images for a classifier may lack
            some of its classes.
        reporter: Reporter of progress to the user.
        pick: Network of a run, as in `hwnas.stages.finalists.pick.picked`; the knee if None.

    Raises:
        ConfigError: There are no images, an option is wrong, or the task is unknown.
        DataError: The images do not fit the network.
        ArtifactError: The bundle, or the network in single precision, is damaged.
        RunError: The run is damaged, in use or stale.
    """
    if split not in get_args(Part):
        raise ConfigError(f"the split is {split!r}; expected one of {', '.join(get_args(Part))}")
    with (
        _on_images(source, data, split, pick) as (network, evaluator, of),
        reporter.stage("evaluating") as advance,
    ):
        reference = _Watched(
            open_session(network.model, onnxruntime_target(network.model)), evaluator
        )
        full = evaluator.metrics(reference)
        files = list(_files(network))
        found = []
        for done, file in enumerate(files):
            advance(done / len(files), file.name)
            found.append(_evaluated(file, evaluator, full, reference))
    return NetworkEvaluation(tuple(found), split, evaluator.count, of)


@contextlib.contextmanager
def _on_images(
    source: str | Path | RunFolder, data: str | None, split: Part, pick: str | None
) -> Iterator[tuple[ModelSource, SplitEvaluator, int]]:
    """Open a network, with an evaluator of its files and the number of images of all parts."""
    place = source if isinstance(source, RunFolder) else Path(source)
    undivided = None
    if data is not None and pick is None and isinstance(place, Path):
        undivided = partial(on_all_images, place, data)
    if split == "all" and undivided is not None and (found := undivided()) is not None:
        yield *found, found[1].count
        return
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(opened(place, data, pick))
        except DataError as error:
            if split == "all" or undivided is None or not _fit(undivided):
                raise
            hint = "new images that no network was trained on need no parts: give --split all"
            raise DataError(f"{error}; {hint}") from error
        evaluator = network.evaluator(split, batch=1)
        if network.images is None or evaluator is None:
            raise ConfigError(f"{source} comes without images; give some (--data)")
        images = network.images.data
        yield network, evaluator, sum(map(len, (images.train, images.validation, images.test)))


def _fit(undivided: Callable[[], object | None]) -> bool:
    """Return whether images that are not divided into parts fit a network."""
    try:
        return undivided() is not None
    except (ConfigError, DataError, ArtifactError):
        return False


def _files(network: ModelSource) -> Iterator[_File]:
    bundle = network.bundle
    if bundle is None:
        yield _onnx_file(network.model, onnxruntime_target(network.model), network.model)
        return
    for artifact in bundle.artifacts:
        path = inside(bundle.folder, artifact.file)
        yield _onnx_file(path, artifact.target(), network.model)
    for each in bundle.converted:
        reason, load = each.cannot_run(), partial(each.load, bundle.folder)
        pixels = reason is None and each.takes_pixels
        yield _File(each.main, each.format, load, reason, pixels)


def _onnx_file(path: Path, target: Target, reference: Path) -> _File:
    return _File(
        path.name,
        f"{target.format} in {target.device.runtime}",
        partial(open_session, path, target),
        unavailable(target),
        is_reference=path == reference and target.device.runtime == "onnxruntime",
    )


class _Watched:
    """Computation that keeps the class of each image, where images have one class.

    Args:
        session: The computation.
        evaluator: Evaluator whose images it is run on.
    """

    def __init__(self, session: Computation, evaluator: SplitEvaluator) -> None:
        self._session, self._split = session, evaluator.split
        self._meaning = evaluator.task.meaning
        self._highest: list[NDArray[np.int64]] = []

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """See `Computation.run`."""
        outputs = self._session.run(batch)
        if self._meaning.kind == "class_scores":
            self._highest.append(outputs.argmax(axis=1))
        return outputs

    def classes(self) -> tuple[ClassAnswers, ...]:
        """Return the answers to the images of each class; none if images do not have one class."""
        if not self._highest:
            return ()
        labels, given = self._meaning.labels, np.concatenate(self._highest)
        right = self._split.targets[: len(given)]
        found = []
        for number, label in enumerate(labels):
            counts = np.bincount(given[right == number], minlength=len(labels))
            wrong = [i for i in np.argsort(-counts, kind="stable") if counts[i] and i != number]
            mistaken = {labels[i]: int(counts[i]) for i in wrong}
            found.append(ClassAnswers(label, int(counts.sum()), int(counts[number]), mistaken))
        return tuple(found)


def _evaluated(
    file: _File,
    evaluator: SplitEvaluator,
    full: Mapping[str, MetricValue],
    reference: _Watched,
) -> FileEvaluation:
    """Evaluate a file; a failure is kept, so that it does not hide the other files."""
    found = FileEvaluation(file.name, file.computed_in, is_reference=file.is_reference)
    if file.not_run is not None:
        return replace(found, not_run=file.not_run)
    try:
        own, watched = full, reference
        if not file.is_reference:
            watched = _Watched(file.load(), evaluator)
            own = evaluator.metrics(watched, file.takes_pixels)
        qualities, classes = evaluator.compare(own, full), watched.classes()
        return replace(found, qualities=qualities, classes=classes)
    except (ArtifactError, NonFiniteOutput) as error:
        return replace(found, failure=str(error))
