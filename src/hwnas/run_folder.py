"""Folder of a run: its recipe, the records of its stages and their results."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

import psutil
import pydantic

from hwnas import __version__
from hwnas.atomic import recovered_folder, storage_errors, write_json, write_text
from hwnas.deploy.measurement.gpu_time import GpuClock
from hwnas.deploy.targets.machine import machine, versions
from hwnas.errors import ConfigError, RunError
from hwnas.given_objects import GivenObjects
from hwnas.identity import Identity, InputChange, may_reuse
from hwnas.recipe import Recipe, read_recipe
from hwnas.recipe.keys import parts_of, redone_by
from hwnas.recipe.reading import SCHEMA as RECIPE_SCHEMA

__all__ = ["IMAGES", "PLAN", "RunFolder", "StageRecord", "all_or_nothing", "is_run"]

PLAN = "plan.json"
"""Name of the file with the plan for the run's budget."""
IMAGES = "images.npz"
"""Name of the file with images that a Python program gave as arrays."""

SCHEMA = 2
_UNNAMED = 1
"""Schema in which a stage's record holds one hash of all inputs instead of inputs by name."""
_SAMPLE_SECONDS = 1.0
_ABOUT = {"recipe": str, "recipe_folder": str, "created": str, "versions": dict, "machine": dict}
_LOST = "the folder is damaged, or from another version of hwnas; search in another one (--run DIR)"


_NONE = GivenObjects()


@dataclass(frozen=True)
class StageRecord:
    """State, inputs and cost of a stage.

    Attributes:
        state: State of the stage; a stage that is ``"done"`` is not repeated as long as its inputs
            are the same.
        inputs: Inputs that the stage depends on, by name. For a run of an older hwnas one hash of
            all inputs, which cannot be compared with anything (`RunFolder.adopt`).
        wall_s: Wall-clock time in seconds, summed over all sessions that worked on the stage.
        cpu_s: CPU time of this process and its workers, in seconds.
        gpu_s: Seconds in which GPUs were busy while processes of the stage computed on them, summed
            over GPUs; None where none did, or where it cannot be determined (`GpuClock`).
        doubtful: Whether a result that the stage uses is being redone, so that it is unknown
            whether the stage's inputs are still the same.
    """

    state: Literal["running", "done"]
    inputs: dict[str, Any] | str
    wall_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float | None = None
    doubtful: bool = False

    @property
    def identity(self) -> Identity | None:
        """Identity of the inputs that the stage was done with; None where it is not known."""
        return None if isinstance(self.inputs, str) else Identity(self.inputs)


_STAGES = pydantic.TypeAdapter(dict[str, StageRecord])


class RunFolder:
    """Folder of a run, used by one process at a time.

    Args:
        path: Path of the folder.
        recipe: Recipe of the run.
        about: Contents of ``run.json``.
        objects: Objects that the recipe has no names for.
    """

    def __init__(
        self,
        path: Path,
        recipe: Recipe,
        about: dict[str, Any],
        objects: GivenObjects = _NONE,
    ) -> None:
        self.path = path
        self.recipe = recipe
        self.about = about
        self.objects = objects
        self._lock: IO[str] | None = None

    @classmethod
    def create(
        cls,
        path: Path,
        recipe: Recipe,
        text: str,
        recipe_folder: Path,
        objects: GivenObjects = _NONE,
    ) -> RunFolder:
        """Create the folder, or open the existing one of the same recipe.

        Raises:
            RunError: The folder holds a run of another recipe, or other files.
            StorageError: The folder cannot be written.
        """
        if (path / "run.json").exists():
            found = cls.open(path, objects)
            if found.recipe.hash != recipe.hash:
                raise RunError(
                    f"{path} holds a run of another recipe; choose another folder with --run DIR, "
                    f"continue that run with `hwnas resume {path}`, or change its recipe with "
                    f"`hwnas resume {path} --set KEY=VALUE`"
                )
            return found
        if path.exists() and not _is_fresh(path, text):
            raise RunError(
                f"{path} exists and holds no run; choose an empty or new folder with --run DIR"
            )
        about = {
            "schema": SCHEMA,
            "name": recipe.name,
            "seed": recipe.seed,
            "recipe": recipe.hash,
            "recipe_schema": RECIPE_SCHEMA,
            "recipe_values": dict(recipe.values),
            "recipe_folder": str(recipe_folder.absolute()),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "hwnas": __version__,
            "versions": versions(),
            "machine": machine(),
            "stages": {},
        }
        folder = cls(path, recipe, about, objects)
        write_text(path / "recipe.toml", text)
        folder._save()
        return folder

    @classmethod
    def open(cls, path: str | Path | RunFolder, objects: GivenObjects = _NONE) -> RunFolder:
        """Open an existing run.

        Args:
            path: Folder of the run, or the same run opened before, which has its objects.
            objects: Objects that the recipe has no names for.

        Raises:
            RunError: The folder holds no run, or a damaged one.
        """
        if isinstance(path, RunFolder):
            return cls.open(path.path, path.objects)
        path = Path(path)
        if not is_run(path):
            raise RunError(
                f"{path} holds no run; start one with `hwnas search RECIPE --run {path}`"
            )
        about = _read_about(path / "run.json")
        recipe, _ = read_recipe(path / "recipe.toml", schema=_recipe_schema(about))
        return cls(path, _with_own_images(recipe, path), about, objects)

    def revised(self, overrides: Sequence[str]) -> tuple[Recipe, str]:
        """Return the recipe with overrides, and its text; write nothing.

        Raises:
            ConfigError: An override is wrong.
        """
        path = self.path / "recipe.toml"
        recipe, text = read_recipe(path, overrides, _recipe_schema(self.about))
        recipe = _with_own_images(recipe, self.path)
        if recipe.run != self.recipe.run:
            raise ConfigError(
                "run.minutes was used to plan the run at its start, and has no effect now; set "
                "train.epochs and train.budget_minutes to train longer or search.trials to try "
                "more networks, or search in another folder"
            )
        return recipe, text

    def revise(self, recipe: Recipe, text: str | None = None) -> None:
        """Replace the run's recipe; a resume redoes the stages that become stale.

        Args:
            recipe: New recipe.
            text: Text of the recipe as TOML; None if the folder already has it, because the user
                edited the file.

        Raises:
            StorageError: The folder cannot be written.
        """
        changed = {stage for edit in self._edits(recipe) for stage in redone_by(edit.name)}
        self.doubt(name for name in self.stages if parts_of(name)[0] in changed)
        if text is not None:
            write_text(self.path / "recipe.toml", text)
            self.about["recipe_schema"] = RECIPE_SCHEMA
        self.recipe = recipe
        about = {"recipe": recipe.hash, "recipe_values": dict(recipe.values), "seed": recipe.seed}
        if text is not None or about != {name: self.about.get(name) for name in about}:
            self.about |= about
            self._save()

    @property
    def edits(self) -> tuple[InputChange, ...]:
        """Changes of the folder's recipe since the run was last worked on.

        A run that an older hwnas worked on has no known edits.
        """
        return self._edits(self.recipe)

    def _edits(self, recipe: Recipe) -> tuple[InputChange, ...]:
        before = self.about.get("recipe_values", recipe.values)
        return Identity(recipe.values).changes_since(Identity(before))

    # Locking

    def __enter__(self) -> RunFolder:
        with storage_errors(self.path):
            self._lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RunError(
                f"another process works on {self.path}; wait until it ends, or stop it and run "
                f"`hwnas resume {self.path}`"
            ) from None
        self.about = _read_about(self.path / "run.json")  # no other process writes it now
        _sweep(self.path)
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()

    # Paths

    @property
    def recipe_folder(self) -> Path:
        """Folder that relative paths of the recipe start from.

        If the run was moved without that folder, this is the folder that contains the run.
        """
        recorded = Path(self.about["recipe_folder"])
        return recorded if recorded.is_dir() else self.path.absolute().parent

    def output(self, target: str | None) -> Path:
        """Return the folder of front, bundles and report of the run or of an added target."""
        return self.path if target is None else self.path / "targets" / target

    @property
    def specialised(self) -> list[str]:
        """Names of the targets that were added to the run."""
        folder = self.path / "targets"
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []

    # Stages

    @property
    def stages(self) -> dict[str, StageRecord]:
        """Records of the stages that were started, in that order."""
        return {name: StageRecord(**record) for name, record in self.about["stages"].items()}

    def is_done(self, stage: str, inputs: Identity) -> bool:
        """Return whether a stage was finished with these inputs."""
        record = self.stages.get(stage)
        return record is not None and record.state == "done" and may_reuse(record.identity, inputs)

    @property
    def unnamed(self) -> list[str]:
        """Stages that an older hwnas recorded without the names of their inputs."""
        return [name for name, record in self.stages.items() if record.identity is None]

    def doubt(self, stages: Iterable[str]) -> None:
        """Record that results which these stages use are being redone, until `confirm`.

        Otherwise, if the process is killed before the stages are checked again, they would still
        count as current.
        """
        records = self.stages
        doubted = [n for n in stages if n in records and not records[n].doubtful]
        for name in doubted:
            self.about["stages"][name] = asdict(replace(records[name], doubtful=True))
        if doubted:
            self._save()

    def confirm(self, stage: str) -> None:
        """Record that a finished stage has the current inputs."""
        if (record := self.stages[stage]).doubtful:
            self._record(stage, replace(record, doubtful=False))

    def adopt(self, stage: str, inputs: Identity) -> None:
        """Record the inputs of a stage that an older hwnas finished."""
        self._record(stage, replace(self.stages[stage], inputs=dict(inputs.inputs)))

    def perform(self, stage: str, inputs: Identity, work: Callable[[], None]) -> None:
        """Run the work of a stage and record its cost; an interrupted stage stays ``running``."""
        before = self.stages.get(stage)
        named = dict(inputs.inputs)
        spent = (
            before
            if before is not None and may_reuse(before.identity, inputs)
            else StageRecord("running", named)
        )
        self._record(stage, StageRecord("running", named, spent.wall_s, spent.cpu_s, spent.gpu_s))
        state: Literal["running", "done"] = "running"
        meter = _Meter()
        try:
            with meter:
                work()
            state = "done"
        finally:
            wall_s, cpu_s, gpu_s = meter.spent
            record = StageRecord(
                state,
                named,
                spent.wall_s + wall_s,
                spent.cpu_s + cpu_s,
                spent.gpu_s if gpu_s is None else (spent.gpu_s or 0.0) + gpu_s,
            )
            self._record(stage, record)

    def _record(self, stage: str, record: StageRecord) -> None:
        self.about["stages"][stage] = asdict(record)
        self._save()

    def _save(self) -> None:
        self.about["schema"] = SCHEMA
        write_json(self.path / "run.json", self.about)


def is_run(path: Path) -> bool:
    """Return whether a path is the folder of a run."""
    return (path / "run.json").is_file()


@contextlib.contextmanager
def all_or_nothing(path: Path) -> Iterator[None]:
    """Remove the folder that the start of a run created, if it fails."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        if missing:
            shutil.rmtree(path, ignore_errors=True)
        for parent in missing[1:]:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _is_fresh(path: Path, text: str) -> bool:
    """Return whether a folder holds only what a start that was killed immediately leaves behind."""
    if not path.is_dir():
        return False
    names = {p.name for p in path.iterdir() if not p.name.endswith(".tmp")} - {
        "cache",  # decoded images of earlier versions
        PLAN,
        IMAGES,
    }
    recipe = path / "recipe.toml"
    return not names or (names == {recipe.name} and recipe.read_text(encoding="utf-8") == text)


def _sweep(folder: Path) -> None:
    """Remove partly written files of killed processes; `hwnas.atomic` defines their names."""
    for path in [*folder.rglob(".*.new")]:
        recovered_folder(path.with_name(path.name[1:].removesuffix(".new")))
    for path in folder.rglob(".*.tmp"):
        pid = path.name.split(".")[-2]
        if not pid.isdigit() or psutil.pid_exists(int(pid)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _with_own_images(recipe: Recipe, path: Path) -> Recipe:
    """Return a recipe that reads the arrays kept in the run's folder, even if it was moved."""
    kind, _, place = recipe.data.source.partition(":")
    kept = path.absolute() / IMAGES
    moved = kind == "npz" and Path(place).name == IMAGES and not Path(place).exists()
    if not (moved and kept.exists()):
        return recipe
    return replace(recipe, data=replace(recipe.data, source=f"npz:{kept}"))


def _recipe_schema(about: Mapping[str, Any]) -> int:
    return int(about.get("recipe_schema", 1))


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["schema"] not in (_UNNAMED, SCHEMA):
            raise ValueError(f"schema {about['schema']!r} is not {SCHEMA}")
        for key, kind in _ABOUT.items():
            if not isinstance(about[key], kind):
                raise TypeError(f"{key} is not a {kind.__name__}")
        _STAGES.validate_python(about["stages"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{path} cannot be read ({reason}); {_LOST}") from error
    assert isinstance(about, dict)
    return about


class _Meter:
    """Meter of the wall, CPU and GPU time of this process and its descendants, with Ray workers.

    The CPU time of a process is lost when it ends, so a thread samples all processes every second.
    """

    def __init__(self) -> None:
        self.spent: tuple[float, float, float | None] = (0.0, 0.0, None)
        self._seconds: dict[tuple[int, float], float] = {}
        self._gpu, self._sampled = GpuClock(), time.perf_counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._started = time.perf_counter()
        self._sample()
        self._before = sum(self._seconds.values())
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()
        wall = time.perf_counter() - self._started
        cpu = sum(self._seconds.values()) - self._before
        self.spent = wall, cpu, self._gpu.seconds

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        this = psutil.Process()
        processes = (this, *this.children(recursive=True))
        now = time.perf_counter()
        self._gpu.sample({process.pid for process in processes}, now - self._sampled)
        self._sampled = now
        for process in processes:
            with contextlib.suppress(psutil.Error):
                times, key = process.cpu_times(), (process.pid, process.create_time())
                self._seconds[key] = times.user + times.system
