"""An Optuna study that is fast to ask, and on disk whole or not at all.

Optuna's SQL storage writes every parameter of a running trial in a transaction of its own, which
costs several times what a sampler does. Here the sampler works on a study in memory; a trial that
is finished is added to the study on disk in one go. What is on disk is an ordinary Optuna study of
finished trials, with the same numbers: a kill loses none, and `optuna-dashboard` opens it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import event, exc
from sqlalchemy.orm import Session

from hwnas.atomic import storage_errors
from hwnas.errors import RunError, StorageError
from hwnas.plugin import build, resolve
from hwnas.search.objective import Objective

__all__ = ["SAMPLERS", "SearchStudy", "make_sampler"]

optuna.logging.set_verbosity(optuna.logging.WARNING)

_DATABASE_ERRORS = (
    exc.SQLAlchemyError,
    sqlite3.Error,
    optuna.exceptions.StorageInternalError,
    RuntimeError,  # a schema of another version
    ValueError,  # damaged JSON
)
_ROWS_OF_A_TRIAL = ("trial_params", "trial_user_attributes", "trial_system_attributes")
_REFUSALS = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_BUSY")


def _population(trials: int) -> int:
    """Ten generations, unless that makes them very small or slow to turn over.

    A small population in a long search converges, and then proposes what it has seen.
    """
    return min(max(trials // 10, 20), 100)


def _nsga2(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    size = population_size or _population(trials)
    return optuna.samplers.NSGAIISampler(population_size=size, seed=seed)


def _nsga3(seed: int, trials: int, population_size: int | None = None) -> BaseSampler:
    size = population_size or _population(trials)
    return optuna.samplers.NSGAIIISampler(population_size=size, seed=seed)


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
"""Optuna's samplers by name. A user's own is ``"package.module:factory"``, called with ``seed``
and, if it takes that, ``trials``."""


def make_sampler(
    name: str, seed: int, options: Mapping[str, Any], trials: int = 200
) -> BaseSampler:
    """A sampler by its name in a recipe.

    Args:
        name: A key of `SAMPLERS`, or ``"package.module:factory"``.
        seed: Of everything random in it.
        options: Keyword arguments of the factory.
        trials: How many candidates the search evaluates in all.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        factory = resolve("sampler", name, SAMPLERS)
        return build("search.options", factory, options, seed=seed, trials=trials)


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
        StorageError: The file cannot be written.
    """

    def __init__(
        self,
        name: str,
        objectives: Sequence[Objective],
        sampler: Callable[[int], BaseSampler],
        path: Path | None = None,
    ) -> None:
        directions = [o.direction for o in objectives]
        self._disk = None if path is None else _StudyFile(path, name, directions)
        finished = [] if self._disk is None else self._disk.trials()
        self.study = optuna.create_study(
            storage=InMemoryStorage(), directions=directions, sampler=sampler(len(finished))
        )
        self.study.add_trials(finished)
        self._on_disk = len(finished)
        self._waiting: dict[int, FrozenTrial] = {}

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

        It is on disk when this returns, unless a trial with a smaller number is not finished.

        Raises:
            StorageError: The study cannot be written.
        """
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED
        frozen = self.study.tell(trial, values, state=state)
        if self._disk is not None:
            self._waiting[frozen.number] = frozen
            while self._on_disk in self._waiting:
                self._disk.add(self._waiting.pop(self._on_disk))
                self._on_disk += 1
        return frozen

    def close(self) -> None:
        """Let go of the file."""
        if self._disk is not None:
            self._disk.close()


class _StudyFile:
    """One study in an SQLite file."""

    def __init__(self, path: Path, name: str, directions: Sequence[str]) -> None:
        wanted = [StudyDirection[direction.upper()] for direction in directions]
        self._path = path
        self._rows: dict[str, list[dict[str, Any]]] = {}
        with self._own_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._storage = _storage(path)
            self._tables = sqlalchemy.MetaData()
            self._tables.reflect(self._storage.engine, only=_ROWS_OF_A_TRIAL)
            try:
                self._id = self._storage.get_study_id_from_name(name)
            except KeyError:
                self._id = self._storage.create_new_study(wanted, name)
            known = self._storage.get_study_directions(self._id)
        event.listen(self._storage.scoped_session, "before_commit", self._insert_rows)
        if known != wanted:
            self.close()
            raise RunError(f"{path}: study {name!r} has other objectives; use another run folder")

    def trials(self) -> list[FrozenTrial]:
        """All that the file holds."""
        with self._own_errors():
            return self._storage.get_all_trials(self._id)

    def add(self, trial: FrozenTrial) -> None:
        """Write a finished trial, whole or not at all."""
        bare = copy.copy(trial)
        bare.params, bare.distributions, bare.user_attrs, bare.system_attrs = {}, {}, {}, {}
        self._rows = {
            "trial_params": [
                {
                    "param_name": name,
                    "param_value": trial.distributions[name].to_internal_repr(value),
                    "distribution_json": distribution_to_json(trial.distributions[name]),
                }
                for name, value in trial.params.items()
            ],
            "trial_user_attributes": _attributes(trial.user_attrs),
            "trial_system_attributes": _attributes(trial.system_attrs),
        }
        try:
            with self._own_errors():
                self._storage.create_new_trial(self._id, bare)
        finally:
            self._rows = {}

    def close(self) -> None:
        """Let go of the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _insert_rows(self, session: Session) -> None:
        """Add parameters and attributes of a new trial to the transaction that creates it.

        Optuna's storage would ask the database up to twice before it writes each of them, which
        takes longer than all else in a trial.
        """
        if not self._rows:
            return
        session.flush()
        newest = session.scalar(sqlalchemy.text("SELECT MAX(trial_id) FROM trials"))
        for name, rows in self._rows.items():
            if rows:
                table = self._tables.tables[name]
                session.execute(table.insert(), [{"trial_id": newest, **row} for row in rows])

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Turn what the database says into an error of ours."""
        with storage_errors(self._path):
            try:
                yield
            except _DATABASE_ERRORS as error:
                raise _translated(self._path, error) from error


def _attributes(values: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in values.items()]


def _storage(path: Path) -> RDBStorage:
    def connect() -> sqlite3.Connection:
        # A write-ahead log: one write to disk a trial, and readers never wait.
        connection = sqlite3.connect(path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    return RDBStorage(f"sqlite:///{path.absolute()}", engine_kwargs={"creator": connect})


def _translated(path: Path, error: BaseException) -> RunError | StorageError:
    while error.__cause__ is not None:
        error = error.__cause__
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if getattr(error, "sqlite_errorname", "").startswith(_REFUSALS):
        return StorageError(
            f"cannot write {path}: {reason}. Free some space, then `hwnas resume` the run"
        )
    return RunError(
        f"{path} is not a readable Optuna study ({reason}); restore it, or remove it to search "
        "anew with the same supernet"
    )
