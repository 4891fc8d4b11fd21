"""Optuna study in an SQLite file, written one finished trial at a time."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial
from sqlalchemy import exc

from hwnas.atomic import storage_errors
from hwnas.errors import RunError, StorageError
from hwnas.search.objectives.objective import Objective
from hwnas.search.study.storage import write_ahead
from hwnas.search.study.study_identity import other_objectives, study_of

__all__ = ["StudyFile"]

_DATABASE_ERRORS = (
    exc.SQLAlchemyError,
    sqlite3.Error,
    optuna.exceptions.StorageInternalError,
    RuntimeError,  # a schema of another version
    ValueError,  # damaged JSON
)
_TABLES = (
    "trials",
    "trial_values",
    "trial_intermediate_values",
    "trial_params",
    "trial_user_attributes",
    "trial_system_attributes",
)
_SUPERSEDED = " superseded-"
_REFUSALS = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_BUSY")


class StudyFile:
    """Study in an SQLite file, which may hold other studies as well.

    Optuna creates and reads the file. Trials are inserted by this class, each in one transaction:
    Optuna queries the database about every row before it writes the row, which takes longer than
    all other work for a trial and grows with the study.

    Args:
        path: Path of the file; created if it does not exist.
        name: Name of the study; created if it does not exist.
        objectives: Objectives of the study.
        supersede: Whether to replace a study of this name with other objectives. The old study
            stays in the file as history, under its name plus ``superseded-1`` or a higher number.

    Raises:
        RunError: The file is damaged, or it holds a study of this name with other objectives and
            ``supersede`` is false.
        StorageError: The file cannot be written.
    """

    def __init__(
        self, path: Path, name: str, objectives: Sequence[Objective], supersede: bool = False
    ) -> None:
        self._path, self._name = path, name
        with self._own_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._storage = _storage(path)
            self._tables = sqlalchemy.MetaData()
            self._tables.reflect(self._storage.engine, only=_TABLES)
            self._id = study_of(self._storage, name, objectives)
            difference = other_objectives(self._storage, self._id, objectives)
            if difference is not None and supersede:
                self._rename(name)
                self._id = study_of(self._storage, name, objectives)
                difference = None
        if difference is not None:
            self.close()
            raise RunError(
                f"{path}: study {name!r} has other objectives: {difference}; `hwnas resume "
                f"{path.parent}` searches for the new objectives and reuses the existing "
                "evaluations"
            )

    def _rename(self, name: str) -> None:
        number = len(self._superseded(name)) + 1
        with self._storage.engine.begin() as connection:
            connection.execute(
                sqlalchemy.text("UPDATE studies SET study_name = :new WHERE study_name = :old"),
                {"new": f"{name}{_SUPERSEDED}{number}", "old": name},
            )

    def _superseded(self, name: str) -> list[int]:
        studies = self._storage.get_all_studies()
        return [s._study_id for s in studies if s.study_name.startswith(name + _SUPERSEDED)]

    def trials(self) -> list[FrozenTrial]:
        """Return all trials of the study."""
        with self._own_errors():
            return self._storage.get_all_trials(self._id)

    def superseded(self) -> list[FrozenTrial]:
        """Return all trials of the studies that this one has superseded."""
        with self._own_errors():
            return [
                trial
                for study_id in self._superseded(self._name)
                for trial in self._storage.get_all_trials(study_id)
            ]

    def set_attribute(self, name: str, values: Mapping[int, Any]) -> None:
        """Set a user attribute of finished trials, which Optuna itself does not allow.

        Args:
            name: Name of the attribute; a trial that already has the attribute keeps its value.
            values: JSON values by trial id.
        """
        table = self._tables.tables["trial_user_attributes"]
        with self._own_errors(), self._storage.engine.begin() as connection:
            taken = sqlalchemy.select(table.c.trial_id).where(table.c.key == name)
            known = {row[0] for row in connection.execute(taken)}
            rows = [
                {"trial_id": trial_id, "key": name, "value_json": json.dumps(value)}
                for trial_id, value in values.items()
                if trial_id not in known
            ]
            if rows:
                connection.execute(sqlalchemy.insert(table), rows)

    def add(self, trial: FrozenTrial) -> None:
        """Write a finished trial in one transaction."""
        with self._own_errors(), self._storage.engine.begin() as connection:
            insert = sqlalchemy.insert(self._tables.tables["trials"])
            made = connection.execute(insert, {"study_id": self._id, **_row(trial)})
            assert made.inserted_primary_key is not None
            (trial_id,) = made.inserted_primary_key
            for name, rows in _rows_beside(trial).items():
                if rows:
                    insert = sqlalchemy.insert(self._tables.tables[name])
                    connection.execute(insert, [{"trial_id": trial_id, **row} for row in rows])

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Turn database errors into errors of hwnas."""
        with storage_errors(self._path):
            try:
                yield
            except _DATABASE_ERRORS as error:
                raise _translated(self._path, error) from error


def _row(trial: FrozenTrial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": trial.state.name,
        "datetime_start": trial.datetime_start,
        "datetime_complete": trial.datetime_complete,
    }


def _rows_beside(trial: FrozenTrial) -> dict[str, list[dict[str, Any]]]:
    """Return a trial's rows of the other tables, without the trial's id."""
    return {
        "trial_values": [
            {"objective": objective, "value": value, "value_type": "FINITE"}
            for objective, value in enumerate(trial.values or ())
        ],
        "trial_intermediate_values": [
            {"step": step, "intermediate_value": value, "intermediate_value_type": "FINITE"}
            for step, value in trial.intermediate_values.items()
        ],
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


def _attributes(values: Mapping[str, Any]) -> list[dict[str, str]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in values.items()]


def _storage(path: Path) -> RDBStorage:
    creator = partial(write_ahead, path)
    return RDBStorage(f"sqlite:///{path.absolute()}", engine_kwargs={"creator": creator})


def _translated(path: Path, error: BaseException) -> RunError | StorageError:
    while error.__cause__ is not None:
        error = error.__cause__
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    if getattr(error, "sqlite_errorname", "").startswith(_REFUSALS):
        return StorageError(
            f"cannot write {path}: {reason}. Free some space or make the file writable, then run "
            "`hwnas resume`"
        )
    return RunError(
        f"{path} is not a readable Optuna study ({reason}); restore it, or remove it to search "
        "again with the same supernet"
    )
