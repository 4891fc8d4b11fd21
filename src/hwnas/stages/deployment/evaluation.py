"""Evaluation of every file of a network on images with targets, each in its own runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from hwnas.deploy.bundles.checksums import inside
from hwnas.deploy.runtimes import RUNTIMES, open_session
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.targets.target import Device, Target
from hwnas.deploy.variants.quality import Quality
from hwnas.errors import ArtifactError, ConfigError, NonFiniteOutput
from hwnas.progress import Reporter
from hwnas.search.tasks.delta_method import MetricValue
from hwnas.stages.deployment.model_source import ModelSource, Part, opened
from hwnas.stages.split_evaluator import SplitEvaluator

__all__ = ["FileEvaluation", "NetworkEvaluation", "evaluate_network"]


@dataclass(frozen=True)
class FileEvaluation:
    """Metrics of one file of a network.

    Attributes:
        file: Name of the file.
        computed_in: Number format and runtime, or the file format, that it was computed in.
        qualities: Each metric of the task; empty if the file was not evaluated.
        is_reference: Whether losses are against this file.
        not_run: Why the file is not run on this machine; empty if it is.
        failure: What is wrong with the file; empty if nothing is.
    """

    file: str
    computed_in: str
    qualities: tuple[Quality, ...] = ()
    is_reference: bool = False
    not_run: str = ""
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "file": self.file,
            "computed_in": self.computed_in,
            "metrics": [each.to_json() for each in self.qualities],
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
    source: str | Path,
    data: str | None,
    split: Part,
    reporter: Reporter,
    pick: str | None = None,
) -> NetworkEvaluation:
    """Evaluate every file of a network that runs on this machine.

    Losses are against the ONNX file in single precision, or the first one if a bundle has none.

    Args:
        source: Folder of a bundle or of a run, or an ONNX file.
        data: Images, as ``data.source`` of a recipe, or the folder of a run; a run has its own.
        split: Part of the images to evaluate on.
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
    with opened(Path(source), data, pick) as network:
        evaluator = network.evaluator(split, batch=1)
        if network.images is None or evaluator is None:
            raise ConfigError(f"{source} comes without images; name some by --data")
        images = network.images.data
        parts = (images.train, images.validation, images.test)
        with reporter.stage("evaluating") as advance:
            target = Target(Device("cpu", "onnxruntime"), number_format(network.model))
            full = evaluator.metrics(open_session(network.model, target))
            files = list(_files(network))
            found = []
            for done, file in enumerate(files):
                advance(done / len(files), file.name)
                found.append(_evaluated(file, evaluator, full))
    return NetworkEvaluation(tuple(found), split, len(evaluator.split), sum(map(len, parts)))


def _files(network: ModelSource) -> Iterator[_File]:
    bundle = network.bundle
    if bundle is None:
        target = Target(Device("cpu", "onnxruntime"), number_format(network.model))
        yield _onnx_file(network.model, target, network.model)
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
        RUNTIMES[target.device.runtime].unavailable(target.device.hardware),
        is_reference=path == reference and target.device.runtime == "onnxruntime",
    )


def _evaluated(
    file: _File, evaluator: SplitEvaluator, full: Mapping[str, MetricValue]
) -> FileEvaluation:
    """Evaluate a file; a failure is kept, so that it does not hide the other files."""
    found = FileEvaluation(file.name, file.computed_in, is_reference=file.is_reference)
    if file.not_run is not None:
        return replace(found, not_run=file.not_run)
    try:
        own = full if file.is_reference else evaluator.metrics(file.load(), file.takes_pixels)
        return replace(found, qualities=evaluator.compare(own, full))
    except (ArtifactError, NonFiniteOutput) as error:
        return replace(found, failure=str(error))
