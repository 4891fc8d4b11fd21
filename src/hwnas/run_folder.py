"""What a run leaves behind, and how far it got."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

import psutil
import torch

from hwnas import __version__
from hwnas.atomic import storage_errors, write_json, write_text
from hwnas.deploy.catalogue import machine, versions
from hwnas.errors import RunError
from hwnas.recipe import Recipe, read_recipe

__all__ = ["RunFolder", "StageRecord"]

SCHEMA = 1
_LOST = "the folder is from another hwnas, or damaged; search in another one (--run DIR)"


@dataclass(frozen=True)
class StageRecord:
    """How far a stage is and what it cost.

    Attributes:
        state: ``"done"`` is never done again, as long as ``inputs`` is the same.
        inputs: Hash of all that the stage depends on.
        wall_s: Seconds, over all sessions that finished it.
        cpu_s: Seconds of CPU time of this process and its workers.
        gpu_s: Seconds on a GPU; None where there is none.
    """

    state: Literal["running", "done"]
    inputs: str
    wall_s: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float | None = None


class RunFolder:
    """A run's folder, in the hands of one process.

    Args:
        path: The folder.
        recipe: What the run is made from.
        about: The contents of ``run.json``.
    """

    def __init__(self, path: Path, recipe: Recipe, about: dict[str, Any]) -> None:
        self.path = path
        self.recipe = recipe
        self.about = about
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, recipe: Recipe, text: str, recipe_folder: Path) -> RunFolder:
        """Make the folder, or open the one that the same recipe has made.

        Raises:
            RunError: The folder holds a run of another recipe, or something else.
            StorageError: It cannot be written.
        """
        if (path / "run.json").exists():
            found = cls.open(path)
            if found.recipe.hash != recipe.hash:
                raise RunError(
                    f"{path} holds a run of another recipe; choose another folder with --run DIR, "
                    f"or go on with that one by `hwnas resume {path}`"
                )
            return found
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path} is not empty and holds no run; choose another with --run DIR")
        about = {
            "schema": SCHEMA,
            "name": recipe.name,
            "seed": recipe.seed,
            "recipe": recipe.hash,
            "recipe_folder": str(recipe_folder.absolute()),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "hwnas": __version__,
            "versions": versions(),
            "machine": machine(),
            "stages": {},
        }
        folder = cls(path, recipe, about)
        write_text(path / "recipe.toml", text)
        folder._save()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Open an existing run.

        Raises:
            RunError: There is none, or it is damaged.
        """
        if not (path / "run.json").is_file():
            raise RunError(f"{path} holds no run; `hwnas search RECIPE --run {path}` makes one")
        try:
            about = json.loads((path / "run.json").read_text(encoding="utf-8"))
            known = isinstance(about, dict) and about["schema"] == SCHEMA
            stages = {k: StageRecord(**v) for k, v in about["stages"].items()} if known else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{path / 'run.json'} cannot be read ({error}); {_LOST}") from error
        if stages is None:
            raise RunError(f"{path / 'run.json'} is of another schema; {_LOST}")
        recipe, _ = read_recipe(path / "recipe.toml")
        return cls(path, recipe, about)

    # Who works on it

    def __enter__(self) -> RunFolder:
        with storage_errors(self.path):
            self._lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another process works on {self.path}; wait for it, or stop it and "
                f"`hwnas resume {self.path}`"
            ) from None
        return self

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._lock.close()

    # Where things are

    @property
    def recipe_folder(self) -> Path:
        """Where relative paths of the recipe start."""
        return Path(self.about["recipe_folder"])

    def output(self, target: str | None) -> Path:
        """Where front, bundles and report are: the run itself, or one of its specialisations."""
        return self.path if target is None else self.path / "targets" / target

    @property
    def specialised(self) -> list[str]:
        """Names of the targets that were added to the run."""
        folder = self.path / "targets"
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []

    # How far it is

    @property
    def stages(self) -> dict[str, StageRecord]:
        """Records of the stages that were begun, in that order."""
        return {name: StageRecord(**record) for name, record in self.about["stages"].items()}

    def is_done(self, stage: str, inputs: str) -> bool:
        """Whether a stage was finished with these inputs."""
        record = self.stages.get(stage)
        return record is not None and (record.state, record.inputs) == ("done", inputs)

    def perform(self, stage: str, inputs: str, work: Callable[[], None]) -> None:
        """Do the work of a stage and record what it cost; killed half-way, it stays ``running``."""
        before = self.stages.get(stage)
        spent = (
            before
            if before is not None and before.inputs == inputs
            else StageRecord("running", inputs)
        )
        self._record(stage, StageRecord("running", inputs, spent.wall_s, spent.cpu_s, spent.gpu_s))
        meter = _Meter()
        state: Literal["running", "done"] = "running"
        try:
            work()
            state = "done"
        finally:
            wall_s, cpu_s, gpu_s = meter.read()
            record = StageRecord(
                state,
                inputs,
                spent.wall_s + wall_s,
                spent.cpu_s + cpu_s,
                None if gpu_s is None else (spent.gpu_s or 0.0) + gpu_s,
            )
            self._record(stage, record)

    def _record(self, stage: str, record: StageRecord) -> None:
        self.about["stages"][stage] = asdict(record)
        self._save()

    def _save(self) -> None:
        write_json(self.path / "run.json", self.about)


class _Meter:
    """Wall time and CPU time of this process and its children, Ray's workers among them."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()

    def read(self) -> tuple[float, float, float | None]:
        wall = time.perf_counter() - self._wall
        cpu = max(0.0, _cpu_seconds() - self._cpu)
        return wall, cpu, wall if torch.cuda.is_available() else None


def _cpu_seconds() -> float:
    processes = [psutil.Process(os.getpid())]
    processes += processes[0].children(recursive=True)
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        # Times of children count once they have ended and their parent has noticed.
        total += times.user + times.system
        total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def stage_seconds(stages: Mapping[str, StageRecord], *names: str) -> float:
    """Wall time of some stages, in seconds."""
    return sum(record.wall_s for name, record in stages.items() if name in names)
