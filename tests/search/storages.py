"""Real storages for tests: SQLite, PostgreSQL, and Optuna's proxy."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest

PASSWORD = "a-word-that-must-not-be-seen"
VARIABLE = "HWNAS_TEST_DATABASE_PASSWORD"


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def _program(name: str) -> str:
    """Return the path of a PostgreSQL program; Debian keeps most of them off the PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(places[-1]) if places else None)
    if found is None:
        pytest.skip(f"{name} is not there: it comes with PostgreSQL (apt-get install postgresql)")
    return found


@contextlib.contextmanager
def postgresql() -> Iterator[str]:
    """Start a temporary PostgreSQL on the loopback; yield the URL of an empty database.

    PostgreSQL refuses to run as root; for root, the server runs as the user nobody.
    """
    initdb, postgres = _program("initdb"), _program("postgres")
    pytest.importorskip("psycopg", reason="psycopg is not there: pip install 'hwnas[cluster]'")
    user = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="hwnas-postgres-"))
    port, data, word = free_port(), folder / "data", folder / "word"
    word.write_text(PASSWORD)
    if user is not None:
        os.chown(folder, user, -1)
        os.chown(word, user, -1)
    made = [initdb, "-D", data, "-U", "hwnas", "-A", "scram-sha-256", "--pwfile", word, "--no-sync"]
    subprocess.run(made, check=True, capture_output=True, user=user, cwd="/")
    settings = [f"port={port}", "listen_addresses=127.0.0.1", "unix_socket_directories="]
    options = [word for setting in (*settings, "fsync=off") for word in ("-c", setting)]
    server = subprocess.Popen(
        [postgres, "-D", data, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=user,
        cwd="/",
    )
    try:
        _wait_for(port)
        yield f"postgresql://hwnas:${VARIABLE}@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # which does not wait for clients to leave
        server.wait(30)
        shutil.rmtree(folder)


@contextlib.contextmanager
def database(server: str) -> Iterator[str]:
    """Create an empty database on a server; yield its URL."""
    import psycopg

    name = f"study{uuid.uuid4().hex[:8]}"
    with psycopg.connect(os.path.expandvars(server), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.replace("/postgres", f"/{name}")


@contextlib.contextmanager
def grpc_proxy(address: str) -> Iterator[str]:
    """Start Optuna's proxy in front of a database; yield the URL for clients."""
    pytest.importorskip("grpc", reason="grpcio is not there: pip install 'hwnas[cluster]'")
    from optuna.storages._grpc.server import make_server

    port = free_port()
    with warnings.catch_warnings(), ThreadPoolExecutor(10) as pool:
        warnings.simplefilter("ignore")
        server = make_server(optuna.storages.get_storage(address), "127.0.0.1", port, pool)
        server.start()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            time.sleep(0.5)
            return
        time.sleep(0.1)
    raise AssertionError("PostgreSQL does not start")
