"""Variants of the network that a run, a bundle or an ONNX file holds, and which of them to ship."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.device import Device, Target
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.quantize import random_batches
from hwnas.deploy.repacking import write_variants
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.sweep import Quality, Sweep, outputs_of, sweep
from hwnas.deploy.variants import VARIANTS, Material, Variant
from hwnas.deploy.variants.conversion import Conversion
from hwnas.errors import ArtifactError, ConfigError, DataError, StorageError
from hwnas.plugin import closest, imports_from
from hwnas.progress import Advance, Reporter, make_reporter
from hwnas.run_folder import RunFolder
from hwnas.search import TASKS
from hwnas.search.data import DataConfig, ImageData, load_data
from hwnas.search.task import Task, classification
from hwnas.search.training import TrainConfig
from hwnas.stages.examination import SplitExaminer, calibration_batches
from hwnas.stages.job import Goal, Ingredients, Job
from hwnas.stages.pick import picked
from hwnas.stages.retraining import retraining

__all__ = ["SweepOptions", "sweep_network"]

_IMAGES_AT_ONCE = 64
_PARTS_OF_A_DEVICE = 4


@dataclass(frozen=True)
class SweepOptions:
    """What to try, and what may be lost.

    Attributes:
        variants: Names of variants; all that the network and its images allow if empty.
        max_loss: What a variant may lose in the first metric on validation images, in its unit.
        data: Images to calibrate and judge by, as ``data.source`` of a recipe; those of the run if
            None.
        pick: Which network of a run.
        finetune_minutes: Of each variant that is fine-tuned; as the run's finalists if None.
    """

    variants: tuple[str, ...] = ()
    max_loss: float = 0.01
    data: str | None = None
    pick: str | None = None
    finetune_minutes: float | None = None

    def __post_init__(self) -> None:
        for name in self.variants:
            if name not in VARIANTS:
                raise ConfigError(f"unknown variant {name!r}; {closest(name, VARIANTS)}")
        if not self.max_loss >= 0:
            raise ConfigError(f"max_loss is {self.max_loss}; expected 0 or more")
        if self.finetune_minutes is not None and not self.finetune_minutes > 0:
            raise ConfigError(f"finetune_minutes is {self.finetune_minutes}; expected more than 0")


def sweep_network(
    source: str | Path,
    targets: Sequence[str],
    options: SweepOptions | None = None,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Sweep:
    """Make the variants of a network, judge and time each, and choose the fastest that is allowed.

    Args:
        source: A run's folder, a bundle's, or an ONNX file.
        targets: Names of targets or of devices, e.g. ``"cpu-onnxruntime-b1-t1"``. Formats are what
            a sweep chooses, so that of a target does not matter.
        options: What to try, and what may be lost.
        out: Folder to make: a bundle with the chosen variant as its first artifact and all others
            that may be shipped; of an ONNX file the chosen file.
        reporter: Who tells the user what happens.

    Raises:
        ConfigError: A target or a variant is unknown, or there is not what it needs.
        DataError: The images do not fit the network.
        ArtifactError: The network is damaged.
        DeviceError: A target cannot be used on this machine.
        StorageError: ``out`` exists already or cannot be written.
    """
    options, reporter = options or SweepOptions(), reporter or make_reporter()
    devices = list(dict.fromkeys(_device(target) for target in targets))
    if out is not None and Path(out).exists():
        raise StorageError(f"{out} exists already; choose another --out")
    with _opened(Path(source), options) as network, tempfile.TemporaryDirectory() as folder:
        if network.images is None:
            reporter.note("no images to judge by: what computes something else is timed only")
        with reporter.stage("sweep") as advance:
            found = _swept(network, devices, options, Path(folder), advance)
        if out is not None:
            write_variants(network.bundle or network.model, found, Path(out))
    return found


@dataclass(frozen=True)
class _Images:
    """What a network is judged by."""

    task: Task
    data: ImageData
    preprocessing: Preprocessing


@dataclass(frozen=True)
class _Network:
    """A network, and what is known of it."""

    model: Path
    bundle: Bundle | None = None
    images: _Images | None = None
    retrain: Callable[[Conversion, Path], Path] | None = None


def _device(name: str) -> Device:
    """Read the name of a target, or of a device: the same without a format."""
    parts = name.split("-")
    if len(parts) == _PARTS_OF_A_DEVICE:
        parts.insert(2, "fp32")
    return Target.parse("-".join(parts)).device


@contextlib.contextmanager
def _opened(source: Path, options: SweepOptions) -> Iterator[_Network]:
    if (source / "run.json").is_file():
        with _run(source) as job:
            yield _of_run(job, _picked(job, options.pick), options)
        return
    if options.pick is not None:
        raise ConfigError("--pick is for the networks of a run; give the run's folder")
    if not source.is_dir():
        yield _Network(source, images=_images_of_file(source, options.data))
        return
    bundle = Bundle.load(source)
    run = _run_around(bundle.folder)
    if options.data is None and run is not None:
        with _run(run) as job:
            yield _of_run(job, bundle, options)
        return
    yield _Network(bundle.onnx_file, bundle, _images_of_bundle(bundle, options.data))


@contextlib.contextmanager
def _run(path: Path) -> Iterator[Job]:
    folder = RunFolder.open(path)
    with imports_from(folder.recipe_folder), folder:
        cache = folder.path / "cache"
        ingredients = Ingredients.prepare(folder.recipe, folder.recipe_folder, cache)
        yield Job(ingredients, folder, make_reporter())


def _run_around(folder: Path) -> Path | None:
    """The run that a folder lies in, at most four levels down."""
    parents = folder.absolute().parents[:4]
    return next((parent for parent in parents if (parent / "run.json").is_file()), None)


def _picked(job: Job, pick: str | None) -> Bundle:
    found = picked(job, Goal(job.recipe.objective), pick, None)
    if isinstance(found, Bundle):
        return found
    raise ConfigError(
        f"network {found.candidate.id} is no finalist; take it out of the run by `hwnas export "
        f"{job.folder.path} --pick {found.candidate.id} --out DIR` and sweep DIR"
    )


def _of_run(job: Job, bundle: Bundle, options: SweepOptions) -> _Network:
    if options.data is not None:
        raise ConfigError("--data does not apply: a run has its images")
    ingredients = job.ingredients
    images = _Images(ingredients.task, ingredients.data, bundle.preprocessing)
    config = _fine_tuning(job, options.finetune_minutes)
    retrain = None if config is None else retraining(ingredients, bundle, config)
    return _Network(bundle.onnx_file, bundle, images, retrain)


def _fine_tuning(job: Job, minutes: float | None) -> TrainConfig | None:
    config = job.recipe.fine_tuning
    if minutes is None:
        return config
    deploy = replace(job.recipe.deploy, finetune_epochs=None, finetune_minutes=minutes)
    return replace(job.recipe, deploy=deploy).fine_tuning


def _images_of_bundle(bundle: Bundle, source: str | None) -> _Images | None:
    if source is None:
        return None
    name = bundle.description["task"]
    if name not in TASKS:
        raise ConfigError(
            f"{bundle.folder} is for task {name!r}, which is known in its run only; give the run"
        )
    size = bundle.preprocessing.height
    data = _read(source, size)
    task = TASKS[name](data=data)
    ours, theirs = bundle.outputs.labels, task.meaning.labels
    if len(ours) != len(theirs) or (ours != theirs and theirs != _numbers(len(theirs))):
        raise DataError(
            f"{source} has {len(theirs)} classes {theirs[:5]} and the network {len(ours)} "
            f"{ours[:5]}; give the images that it was made for"
        )
    return _Images(task, data, bundle.preprocessing)


def _images_of_file(model: Path, source: str | None) -> _Images | None:
    """Images for a network of which nothing is known but its input; prepared as hwnas does it."""
    if source is None:
        return None
    session = RUNTIMES["onnxruntime"].load(model, Target(Device("cpu", "onnxruntime")))
    if len(session.input_shape) != 3:
        raise ArtifactError(f"{model} takes inputs of {session.input_shape}, which are no images")
    channels, height, width = session.input_shape
    data = _read(source, height if height == width else None)
    if data.image_shape[2] != channels:
        raise DataError(f"{source} has {data.image_shape[2]} channels and {model} takes {channels}")
    task = classification(data) if data.kind == "classes" else TASKS["segmentation"](data=data)
    return _Images(task, data, data.preprocessing.at(height, width))


def _read(source: str, size: int | None) -> ImageData:
    with tempfile.TemporaryDirectory() as cache:
        return load_data(DataConfig(source, size=size), Path(), 0, Path(cache))


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def _swept(
    network: _Network,
    devices: Sequence[Device],
    options: SweepOptions,
    folder: Path,
    advance: Advance,
) -> Sweep:
    images, batch = network.images, devices[0].batch
    if images is None:
        shape = RUNTIMES["onnxruntime"].load(network.model, Target(devices[0])).input_shape
        material = Material(network.model, random_batches(shape, batch))
        return sweep(material, _variants(options, material), devices, folder, progress=advance)
    # A file of the user's own may take batches of one size only.
    at_once = batch if network.bundle is None else _IMAGES_AT_ONCE
    examiner = partial(
        SplitExaminer, images.task, preprocessing=images.preprocessing, batch=at_once
    )
    validation = examiner(images.data.validation, "validation")
    material = Material(
        network.model,
        calibration_batches(images.data.train, images.preprocessing, at_once),
        _loss(network.model, validation),
        options.max_loss,
        network.retrain,
    )
    found = sweep(
        material,
        _variants(options, material),
        devices,
        folder,
        meaning=images.task.meaning,
        examiner=validation,
        progress=advance,
    )
    return replace(found, tested=_tested(network.model, found, examiner(images.data.test, "test")))


def _variants(options: SweepOptions, material: Material) -> list[Variant]:
    """Those that were asked for, or all that can be made."""
    if options.variants:
        return [VARIANTS[name] for name in dict.fromkeys(options.variants)]
    return [variant for variant in VARIANTS.values() if not variant.lacks(material)]


def _loss(model: Path, examiner: SplitExaminer) -> Callable[[Path], float]:
    expected = outputs_of(model, examiner.inputs())
    return lambda path: examiner.judge(outputs_of(path, examiner.inputs()), expected).loss


def _tested(model: Path, found: Sweep, examiner: SplitExaminer) -> Quality | None:
    """What the chosen variant is worth on images that chose nothing."""
    if not found.able:
        return None
    made, target = found.chosen.made, Target.parse(found.chosen.target)
    assert made is not None
    outputs = outputs_of(made.model, examiner.inputs(), target)
    return examiner.judge(outputs, outputs_of(model, examiner.inputs()))
