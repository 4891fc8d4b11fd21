"""Training of a supernet, in this process or on Ray Train workers."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch

from hwnas.atomic import appending, storage_errors
from hwnas.errors import ConfigError, DeviceError, HwnasError, WorkerError
from hwnas.search.data.image_data import ImageData, Split
from hwnas.search.engine.devices import UNUSABLE, device_here
from hwnas.search.engine.placement import live_nodes
from hwnas.search.engine.remote_files import fetched, send
from hwnas.search.tasks.task import Task, smoothed
from hwnas.search.training.checkpoint import save_weights
from hwnas.search.training.start import StartWeights
from hwnas.search.training.steps import Teacher, TrainingStep
from hwnas.search.training.trainer import SupernetStep, TrainConfig, TrainingPoint, fit
from hwnas.search.training.workers import Workers
from hwnas.search_spaces import SearchSpace, Supernet

__all__ = ["SupernetTraining", "read_rows", "teacher_of", "train_supernet"]

WEIGHTS, CHECKPOINT, ROWS = "weights.safetensors", "checkpoint.safetensors", "training.jsonl"
_LOST_WORKERS_BORNE = 3
_ROW_SECONDS = 0.5


@dataclass(frozen=True)
class SupernetTraining:
    """Inputs of a supernet's training.

    Attributes:
        space: Space of the supernet.
        task: Task with preprocessing and losses.
        data: Images, of which only the training split is used.
        config: Training settings.
        seed: Seed of the random numbers.
        run: Hash of the above; a checkpoint of another hash is refused.
        folder: Folder of checkpoint, weights and training curve.
        start: Trained weights to start from; None for the space's own.
        learned: What is learned beside the weights; None for nothing.
    """

    space: SearchSpace
    task: Task
    data: ImageData
    config: TrainConfig
    seed: int
    run: str
    folder: Path
    start: StartWeights | None = None
    learned: LearnedBeside | None = None


class LearnedBeside(Protocol):
    """Something that is learned while a supernet is trained, beside its weights."""

    def begin(
        self, supernet: Supernet, task: Task, split: Split, config: TrainConfig, seed: int
    ) -> tuple[TrainingStep, Split]:
        """Return the step of the training, and the images that the weights are trained on.

        What is to be part of checkpoints is added to the supernet as a child.
        """
        ...

    def save(self, supernet: Supernet, folder: Path) -> None:
        """Write what was learned into the folder of the training."""


def train_supernet(
    training: SupernetTraining, on_row: Callable[[TrainingPoint], None] = lambda row: None
) -> Path:
    """Train a supernet, or resume from the checkpoint in the folder.

    Args:
        training: Inputs of the training. If ``config.workers`` is above 0, Ray must be running.
        on_row: Function that is called at intervals with the latest point of the training curve.

    Returns:
        File of the trained weights, which are the state of ``Supernet.shared``.

    Raises:
        DivergedError: A loss is not finite.
        DeviceError: Memory ran out, even with half as many images at a time.
        WorkerError: Workers died repeatedly.
        StorageError: The folder cannot be written.
    """
    with storage_errors(training.folder):
        training.folder.mkdir(parents=True, exist_ok=True)
    if training.config.workers == 0 or training.config.epochs == 0:
        _train(training, Workers(), device_here(training.config.gpus_per_worker), on_row)
    else:
        with _following(training.folder / ROWS, on_row):
            # Workers run in their own folder, so a relative path would be wrong.
            _train_on_ray(replace(training, folder=training.folder.absolute()))
    return training.folder / WEIGHTS


def read_rows(folder: Path) -> list[TrainingPoint]:
    """Read the training curve; after a resumption, each step appears once."""
    path = folder / ROWS
    rows: dict[int, TrainingPoint] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = TrainingPoint(**json.loads(line))
        except (ValueError, TypeError):
            continue  # a line that was cut off by a kill
        rows = {step: kept for step, kept in rows.items() if step < row.step}
        rows[row.step] = row
    return list(rows.values())


def _train(
    training: SupernetTraining,
    workers: Workers,
    device: torch.device,
    on_row: Callable[[TrainingPoint], None],
) -> None:
    try:
        supernet = _trained(training, workers, device, on_row)
        if workers.rank == 0:
            save_weights(training.folder / WEIGHTS, supernet.shared.state_dict())
            if training.learned is not None:
                training.learned.save(supernet, training.folder)
    except Exception as error:
        workers.agree(error)  # raises the error once all workers know of it
        raise
    workers.agree()


def _trained(
    training: SupernetTraining,
    workers: Workers,
    device: torch.device,
    on_row: Callable[[TrainingPoint], None],
) -> Supernet:
    torch.manual_seed(training.seed)
    config = training.config
    supernet = training.space.supernet()
    sampling = config.sampling
    if training.start is not None:
        supernet.shared.load_state_dict(training.start.tensors, strict=False)
        sampling = "sandwich" if sampling == "auto" else sampling
    if config.epochs == 0:
        return supernet
    supernet.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    task = smoothed(training.task, config.label_smoothing)
    split = training.data.train
    step: TrainingStep
    if training.learned is not None:
        step, split = training.learned.begin(supernet, task, split, config, training.seed)
    else:
        teacher = teacher_of(training.space, config)
        if teacher is not None:
            teacher = teacher.to(device).prepared(config.teacher_sees, task, split, workers)
        step = SupernetStep(
            supernet,
            task,
            sampling,
            config.random_subnets,
            config.distillation,
            config.distillation_loss,
            teacher,
            chained=config.teacher == "previous",
            weight_distribution=config.weight_distribution,
            noise=config.quantisation == "noise",
        )
    rows = training.folder / ROWS
    if workers.rank == 0:
        fetched(rows)
    with appending(rows) as file:
        curve = _Curve(file, on_row)
        fit(
            supernet,
            step,
            split,
            config,
            training.seed,
            checkpoint=training.folder / CHECKPOINT,
            run=training.run,
            rank=workers.rank,
            world=workers.world,
            on_row=curve.add if workers.rank == 0 else lambda row: None,
        )
        curve.finish()
    return supernet


def teacher_of(space: SearchSpace, config: TrainConfig) -> Teacher | None:
    """Return the trained teacher of a space; None if the largest network teaches during training.

    Raises:
        ConfigError: The settings ask for the original and the space has none, or they ask for
            stored outputs and the teacher is trained along with the others.
    """
    original = None if config.teacher in ("largest", "previous") else space.teacher()
    if original is None and config.teacher == "original":
        raise ConfigError(
            f"train.teacher is 'original', but space {space.name} starts with random weights; give "
            "space.weights, or set train.teacher = 'largest'"
        )
    if original is None and config.teacher_sees == "plain":
        raise ConfigError(
            "train.teacher_sees is 'plain', which stores the outputs of a trained teacher, but "
            "here the teacher is the largest network while it is trained; leave train.teacher_sees "
            "out, or give space.weights and no train.teacher = 'largest'"
        )
    return None if original is None else Teacher(original, space.input_shape(space.largest()))


class _Curve:
    """Writer of the training curve: points at intervals, points with notes, and the last point."""

    def __init__(self, file: TextIO, on_row: Callable[[TrainingPoint], None]) -> None:
        self._file, self._on_row = file, on_row
        self._last = -_ROW_SECONDS
        self._skipped: TrainingPoint | None = None

    def add(self, row: TrainingPoint) -> None:
        self._skipped = row
        if row.note or row.seconds - self._last >= _ROW_SECONDS:
            self._last = row.seconds
            self.finish()

    def finish(self) -> None:
        if self._skipped is not None:
            self._file.write(json.dumps(asdict(self._skipped)) + "\n")
            self._file.flush()
            send(Path(self._file.name))
            self._on_row(self._skipped)
            self._skipped = None


def _train_on_ray(training: SupernetTraining) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    config = training.config
    each = config.worker_resources(live_nodes())
    worker: Any = _ray_worker  # Ray's types do not allow a result of the worker
    trainer = TorchTrainer(
        worker,
        train_loop_config={
            "training": ray.put(training),
            "threads": each.cpus,
            "gpus": each.gpus,
        },
        scaling_config=ScalingConfig(
            num_workers=config.workers,
            use_gpu=each.gpus > 0,
            resources_per_worker={"CPU": each.cpus} | ({"GPU": each.gpus} if each.gpus else {}),
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(training.folder),
            failure_config=FailureConfig(max_failures=_LOST_WORKERS_BORNE),
        ),
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="ray")  # Ray's warnings about itself
            result: Any = trainer.fit()
    except Exception as error:
        raise _cause(error) from error
    if result.return_value is not None:
        raise result.return_value


def _ray_worker(config: dict[str, Any]) -> HwnasError | None:
    """Train; return an hwnas error instead of raising it, since Ray would retry in vain."""
    import ray
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    torch.set_num_threads(config["threads"])
    training: SupernetTraining = ray.get(config["training"])
    device = ray.train.torch.get_device()
    workers = Workers(context.get_world_rank(), context.get_world_size(), device)
    try:
        with storage_errors(training.folder):  # this machine may have another disk
            training.folder.mkdir(parents=True, exist_ok=True)
        if config["gpus"] and device.type == "cpu":
            raise DeviceError(UNUSABLE)
        _train(training, workers, device, lambda row: None)
    except HwnasError as error:
        return error
    return None


def _cause(error: BaseException) -> HwnasError:
    """Return a worker's error, unwrapped from the errors of Ray around it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, HwnasError):
            return inner
        failures = getattr(inner, "worker_failures", None) or {}
        wrapped = [getattr(inner, "cause", None), *failures.values(), inner.__cause__]
        inner = next((e for e in wrapped if isinstance(e, BaseException) and e is not inner), None)
    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    reason = reason.removesuffix(".")
    return WorkerError(f"the training workers failed: {reason}. `hwnas resume` goes on from there")


class _following:
    """Context in which a callback receives the rows that another process appends to a file."""

    def __init__(self, path: Path, on_row: Callable[[TrainingPoint], None]) -> None:
        self._path, self._on_row = path, on_row
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _follow(self) -> None:
        position = self._path.stat().st_size if self._path.exists() else 0
        while not self._done.wait(0.5):
            if not self._path.exists():
                continue
            with self._path.open("rb") as file:
                file.seek(position)
                whole, newline, _ = file.read().rpartition(b"\n")
            position += len(whole) + len(newline)
            rows = [TrainingPoint(**json.loads(line)) for line in whole.splitlines()]
            for row in rows:
                if row.note or row is rows[-1]:
                    self._on_row(row)
