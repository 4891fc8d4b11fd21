"""Optuna storages, opened by URL, of studies that several searches share."""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, GrpcStorageProxy, RDBStorage
from sqlalchemy import exc

from hwnas.errors import ConfigError, StorageError

__all__ = ["check_storage", "close_storage", "open_storage", "reason_of", "write_ahead"]

_SCHEMES = ("sqlite", "postgresql", "grpc")
_EXAMPLES = "sqlite:////folder/study.db, postgresql://user@host/database or grpc://host:13000"
_PATIENCE_SECONDS = 20
_TRIES = 5
_LOCK = 4_859_201
_URL = re.compile(r"(?P<scheme>[a-z0-9]+)(\+\w+)?://(?P<rest>.*)", re.DOTALL)
_INSTALL = "pip install 'hwnas[cluster]'"


def check_storage(url: str) -> None:
    """Check that a URL is the address of a storage and holds no password.

    A recipe is copied into its run folder and its report, so it must not hold a password. Instead,
    a part such as ``$DATABASE_PASSWORD`` stands for an environment variable; PostgreSQL also takes
    passwords from ``PGPASSWORD`` and ``~/.pgpass``.

    Raises:
        ConfigError: The URL is not the address of a storage, or holds a password.
    """
    if url.startswith("$"):
        return
    found = _URL.fullmatch(url)
    if found is None or found["scheme"] not in _SCHEMES:
        scheme = "" if found is None else f" ({found['scheme']!r})"
        raise ConfigError(
            f"search.storage is not a supported address{scheme} of a study; expected {_EXAMPLES}"
        )
    authority = found["rest"].partition("/")[0].rpartition("@")[0]
    _, colon, password = authority.partition(":")
    query = re.search(r"[?&]password=([^&]*)", found["rest"])
    for given in (password if colon else "", query[1] if query else ""):
        if given and not given.startswith("$"):
            raise ConfigError(
                "search.storage holds a password, which would be copied into the run's folder; "
                "write $NAME in its place and set that variable, or use PGPASSWORD"
            )


def open_storage(url: str) -> BaseStorage:
    """Open the storage at a URL.

    Args:
        url: URL that `check_storage` accepts.

    Raises:
        ConfigError: An environment variable or a package is missing, or the URL is wrong.
        StorageError: No storage answers at the URL, or it refuses the connection.
    """
    check_storage(url)
    address = _expanded(url)
    try:
        if address.startswith("grpc:"):
            return _proxy(address)
        return _database(address)
    except ImportError as error:
        raise ConfigError(f"search.storage {url}: {error}; {_INSTALL}") from error
    except (exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError) as error:
        raise StorageError(f"cannot open the storage {url}: {reason_of(error)}") from None


def close_storage(storage: BaseStorage) -> None:
    """Close the connections that `open_storage` has opened."""
    if isinstance(storage, GrpcStorageProxy):
        storage.close()
    backend = getattr(storage, "_backend", None)
    if isinstance(backend, RDBStorage):
        backend.remove_session()
        backend.engine.dispose()


def reason_of(error: BaseException) -> str:
    """Return the reason of a database error in one line, without the address it was given."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, exc.ArgumentError):
        return f"the address is wrong; expected {_EXAMPLES}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _expanded(url: str) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise ConfigError(f"search.storage names ${name}, which is not set")
        return os.environ[name]

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, url)


def _proxy(address: str) -> BaseStorage:
    host, _, port = address.removeprefix("grpc://").rstrip("/").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError("search.storage: expected grpc://HOST:PORT")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        proxy = GrpcStorageProxy(host=host, port=int(port))
    proxy.wait_server_ready(timeout=_PATIENCE_SECONDS)
    return proxy


def _database(address: str) -> BaseStorage:
    storage = _sqlite(address) if address.startswith("sqlite") else _postgresql(address)
    # get_storage() adds a cache of finished trials, so that polling reads only new ones.
    return optuna.storages.get_storage(storage)


def _postgresql(address: str) -> RDBStorage:
    address = re.sub(r"^postgresql(\+\w+)?:", "postgresql+psycopg:", address)
    timeout = {"connect_timeout": _PATIENCE_SECONDS}
    alone = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool, connect_args=timeout)
    with alone.connect() as connection:  # a lock, so that only one process creates the tables
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({_LOCK})")
        return RDBStorage(address, {"pool_pre_ping": True, "connect_args": timeout})


def write_ahead(path: str | Path, **options: Any) -> sqlite3.Connection:
    """Connect to an SQLite file with a write-ahead log.

    A trial then takes one write to disk, and readers never wait.
    """
    connection: sqlite3.Connection = sqlite3.connect(
        path, timeout=60, check_same_thread=False, **options
    )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _sqlite(address: str) -> RDBStorage:
    path = sqlalchemy.make_url(address).database or ""

    def connect() -> sqlite3.Connection:
        return write_ahead(path, isolation_level=None)

    for attempt in itertools.count():
        try:
            storage = RDBStorage(address, {"creator": connect})
            break
        except (exc.IntegrityError, exc.OperationalError) as error:
            # Two processes that open a new file at the same time both try to create its tables.
            if attempt == _TRIES or not re.search("exist|UNIQUE|locked", str(error)):
                raise
            time.sleep(0.5 + attempt)
    # Python's own transactions take the lock at the first write only. Two processes that finish the
    # same trial would then both have read that it is unfinished.
    sqlalchemy.event.listen(storage.engine, "begin", _begin)
    return storage


def _begin(connection: sqlalchemy.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
