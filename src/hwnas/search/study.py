"""An Optuna study that is fast to ask, and on disk whole or not at all.

Optuna's SQL storage writes every parameter of a running trial in a transaction of its own, which
costs several times what a sampler does. Here the sampler works on a study in memory; a trial that
is finished is added to the study on disk in one go. What is on disk is an ordinary Optuna study of
finished trials: a kill loses none, and `optuna-dashboard` opens it.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import exc

from hwnas.atomic import storage_errors
from hwnas.errors import RunError, StorageError
from hwnas.plugin import build, resolve
from hwnas.search.objective import Objective

__all__ = ["SAMPLERS", "SearchStudy", "make_sampler"]

optuna.logging.set_verbosity(optuna.logging.WARNING)

_POPULATION = 20
_DATABASE_ERRORS = (
    exc.SQLAlchemyError,
    sqlite3.Error,
    optuna.exceptions.StorageInternalError,
    RuntimeError,  # a schema of another version
)


def _nsga2(seed: int, population_size: int = _POPULATION) -> BaseSampler:
    return optuna.samplers.NSGAIISampler(population_size=population_size, seed=seed)


def _nsga3(seed: int, population_size: int = _POPULATION) -> BaseSampler:
    return optuna.samplers.NSGAIIISampler(population_size=population_size, seed=seed)


def _tpe(seed: int, n_startup_trials: int = 20, multivariate: bool = True) -> BaseSampler:
    return optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=n_startup_trials, multivariate=multivariate
    )


def _gp(seed: int, n_startup_trials: int = 20) -> BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=n_startup_trials)


def _random(seed: int) -> BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


SAMPLERS: Mapping[str, Callable[..., BaseSampler]] = {
    "gp": _gp,
    "nsga2": _nsga2,
    "nsga3": _nsga3,
    "random": _random,
    "tpe": _tpe,
}
"""Optuna's samplers by name. A user's own is ``"package.module:factory"``, called with a seed."""


def make_sampler(name: str, seed: int, options: Mapping[str, Any]) -> BaseSampler:
    """A sampler by its name in a recipe.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return build("search.options", resolve("sampler", name, SAMPLERS), options, seed=seed)


class SearchStudy:
    """Asks a sampler for trials and keeps the finished ones.

    Args:
        name: Of the study.
        objectives: Give the directions.
        sampler: Makes the sampler, given how many trials there are already: a resumed search must
            not draw the same random numbers again.
        path: The SQLite file; None keeps the study in memory only.

    Raises:
        RunError: The file is damaged or holds a study of other objectives.
    """

    def __init__(
        self,
        name: str,
        objectives: Sequence[Objective],
        sampler: Callable[[int], BaseSampler],
        path: Path | None = None,
    ) -> None:
        directions = [o.direction for o in objectives]
        self._disk: tuple[RDBStorage, int] | None = None
        self._path = path
        finished: list[FrozenTrial] = []
        if path is not None:
            self._disk = _open(path, name, directions)
            finished = self._disk[0].get_all_trials(self._disk[1])
        self.study = optuna.create_study(
            storage=InMemoryStorage(), directions=directions, sampler=sampler(len(finished))
        )
        self.study.add_trials(finished)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials of this session and earlier ones, by number."""
        return self.study.get_trials(deepcopy=False)

    @property
    def complete(self) -> list[FrozenTrial]:
        """Those that were evaluated."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    def ask(self, values: Mapping[str, Any] | None = None) -> Trial:
        """A new trial: the sampler's proposal, or the one with the given values."""
        if values is not None:
            self.study.enqueue_trial(dict(values))
        return self.study.ask()

    def tell(self, trial: Trial, values: Sequence[float] | None) -> FrozenTrial:
        """Finish a trial: with its values, or as PRUNED if there are none.

        Raises:
            StorageError: The study cannot be written.
        """
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED
        frozen = self.study.tell(trial, values, state=state)
        if self._disk is None:
            return frozen
        storage, study_id = self._disk
        assert self._path is not None
        with storage_errors(self._path):
            try:
                storage.create_new_trial(study_id, frozen)
            except _DATABASE_ERRORS as error:
                raise StorageError(
                    f"cannot write {self._path}: {_reason(error)}. Free some space, then "
                    "`hwnas resume` the run"
                ) from error
        return frozen

    def close(self) -> None:
        """Let go of the file."""
        if self._disk is not None:
            self._disk[0].remove_session()
            self._disk[0].engine.dispose()


def _open(path: Path, name: str, directions: Sequence[str]) -> tuple[RDBStorage, int]:
    wanted = [StudyDirection[direction.upper()] for direction in directions]
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            storage = _storage(path)
            try:
                study_id = storage.get_study_id_from_name(name)
            except KeyError:
                return storage, storage.create_new_study(wanted, name)
            known = storage.get_study_directions(study_id)
        except _DATABASE_ERRORS as error:
            raise RunError(
                f"{path} is not a readable Optuna study ({_reason(error)}); restore it, or remove it "
                "to search anew with the same supernet"
            ) from error
    if known != wanted:
        raise RunError(f"{path}: study {name!r} has other objectives; use another run folder")
    return storage, study_id


def _storage(path: Path) -> RDBStorage:
    def connect() -> sqlite3.Connection:
        # A write-ahead log: one write to disk a trial, and readers never wait.
        connection = sqlite3.connect(path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    return RDBStorage(f"sqlite:///{path.absolute()}", engine_kwargs={"creator": connect})


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).splitlines() or [type(error).__name__])[0]
