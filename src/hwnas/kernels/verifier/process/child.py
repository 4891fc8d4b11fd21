"""Processes in which kernels run: a fork server that has everything imported, and its forks.

Each fork runs one job part by part, and reports on each part before it continues. When a fork ends,
in whatever way, the server reports its exit status.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib.util
import json
import linecache
import os
import resource
import signal
import socket
import sys
import tokenize
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import triton
from torch import Generator, Tensor

from hwnas.kernels.launch import interpreting
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.suite.tolerance import in_float64
from hwnas.kernels.verifier.calls import KernelCall, as_tuple
from hwnas.kernels.verifier.process.sandbox import Supervisor, Unsupported, confine
from hwnas.kernels.verifier.process.session import KernelSession, error_text
from hwnas.kernels.verifier.wire import (
    DTYPES,
    frame,
    inputs_from,
    inputs_to,
    message,
    messages,
    received,
)

__all__ = ["main"]

_WORD = 8
_OPERATORS = dict(OPERATORS)  # imported here, before the process is confined
_COMMON = (  # modules that kernels import
    "abc",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "logging",
    "math",
    "numbers",
    "operator",
    "torch.fft",
    "torch.nn.functional",
    "torch.special",
    "triton.language.extra.libdevice",
    "typing",
)
_LARGEST_FILE = 16 * 2**20  # bytes of printed text


def main() -> None:
    """Run jobs for the socket on standard input until it is closed."""
    control = socket.socket(fileno=os.dup(0))
    if interpreting():
        triton.knobs.runtime.interpret = True  # so that the environment does not reveal it
        os.environ.pop("TRITON_INTERPRET", None)
    _warm_up()
    gc.freeze()
    while True:
        order, files, _, _ = socket.recv_fds(control, 1, 2)
        if not order:
            return
        mine, theirs = socket.socketpair()
        job = os.fork()
        if job == 0:
            control.close()
            mine.close()
            _do(theirs, *files)
        theirs.close()
        for file in files:
            os.close(file)
        control.sendall(job.to_bytes(_WORD, "little"))
        seen = _watched(mine, job)
        mine.close()
        _, status = os.waitpid(job, 0)
        with contextlib.suppress(ProcessLookupError):  # processes that the job has started
            os.killpg(job, signal.SIGKILL)
        text = json.dumps(seen).encode()
        control.sendall(os.waitstatus_to_exitcode(status).to_bytes(_WORD, "little", signed=True))
        control.sendall(len(text).to_bytes(_WORD, "little") + text)


def _warm_up() -> None:
    """Make PyTorch and Triton import now what they import on first use."""
    x = torch.ones(2, 2)
    torch.nn.functional.gelu(torch.linalg.inv(x + torch.eye(2)) @ x).softmax(1).sum().item()
    repr(x)
    inputs = pointwise.example(
        pointwise.checked[0], torch.float32, Generator(), torch.device("cpu")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pointwise(**inputs)  # through PyTorch's registry of operators
    np.random.get_state()
    for name in _COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _watched(channel: socket.socket, job: int) -> dict[str, Any]:
    """Supervise a job to its end if it asks for that, and return its refused system calls."""
    wanted, files, _, _ = socket.recv_fds(channel, 2**16, 1)
    if not wanted or wanted == b"-":
        return {"refused": [], "unguarded": "" if wanted else "the process ended too early"}
    if not files:
        return {"refused": [], "unguarded": wanted.decode(errors="replace")}
    header = _Watching(**json.loads(channel.recv(2**16)))
    supervisor = Supervisor(header.path, header.readable, header.threads)
    try:
        channel.sendall(b"!")
        supervisor.watch(files[0], job)
    finally:
        os.close(files[0])
    return {"refused": list(supervisor.notes), "unguarded": ""}


@dataclass(frozen=True)
class _Watching:
    """Settings that a process sends to its supervisor before it imports a file."""

    path: str | None
    readable: Sequence[str]
    threads: bool


def _guard(channel: socket.socket, header: Mapping[str, Any]) -> None:
    """Have this process supervised, if that is requested and supported."""
    if not header.get("guard"):
        channel.sendall(b"-")
        return
    try:
        confine(channel)
    except Unsupported as error:
        channel.sendall(f"{error}".encode())
        return
    names = ("path", "readable", "threads")
    os.write(channel.fileno(), json.dumps({name: header.get(name) for name in names}).encode())
    os.read(channel.fileno(), 1)


def _do(guard: socket.socket, channel: int, log: int) -> NoReturn:
    """Run a job in this process, and end the process."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    faulthandler.enable(2)

    def parts() -> _Parts:
        while (data := received(lambda size: os.read(channel, size))) is not None:
            [part] = messages(data)
            yield part

    def tell(text: bytes) -> None:
        text = frame(text)
        while text:
            text = text[os.write(channel, text) :]

    try:
        asked = parts()
        header, _ = next(asked)
        job = _ROLES[header["role"]](header)
        _limit(header["memory_bytes"])
        source = None if header["path"] is None else SourceText.read(header["path"])
        _guard(guard, header)
        guard.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = None if source is None else _load(source, header.get("readable", ()), tell)
            if source is None:
                tell(message({"loaded": None, "callable": True}))
            job(module, asked, tell)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


@dataclass(frozen=True)
class SourceText:
    """Text of a file, read before any of its code runs so that it need not be opened again."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> SourceText:
        """Read a file as Python would, and store its lines in ``linecache``."""
        with tokenize.open(path) as file:
            text = file.read()
        lines = text.splitlines(keepends=True)
        linecache.cache[path] = (len(text), None, lines, path)
        return cls(path, text)


def _limit(memory_bytes: int | None) -> None:
    """Limit this process's additional memory and its files, and disable core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    if memory_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


_Parts = Iterator[tuple[dict[str, Any], list[Tensor]]]
_Tell = Callable[[bytes], None]
_Job = Callable[[Any, _Parts, _Tell], None]


def _examples(header: Mapping[str, Any]) -> _Job:
    """Return a job that makes inputs with the file's ``inputs``, one message per request."""

    def job(module: Any, parts: _Parts, tell: _Tell) -> None:
        for asked, _ in parts:
            generator = Generator().manual_seed(asked["seed"])
            try:
                inputs = module.inputs(asked["sizes"], DTYPES[asked["dtype"]], generator)
                content, tensors = inputs_to(dict(inputs))
            except Exception as error:
                tell(message({"error": error_text(error, header["path"])}))
            else:
                tell(message({"inputs": content}, tensors))

    return job


def _truths(header: Mapping[str, Any]) -> _Job:
    """Return a job that computes the file's reference, in float64 and in the inputs' types."""

    def job(module: Any, parts: _Parts, tell: _Tell) -> None:
        for asked, tensors in parts:
            inputs = inputs_from(asked["inputs"], tensors)
            try:
                exact = as_tuple(module.reference(**in_float64(inputs)))
            except Exception as error:
                tell(message({"error": error_text(error, header["path"])}))
                continue
            try:
                plain = as_tuple(module.reference(**inputs))
            except RuntimeError:  # PyTorch does not have every function for every type
                plain = ()
            tell(message({"exact": len(exact)}, [*exact, *plain]))

    return job


def _calls(header: Mapping[str, Any]) -> _Job:
    """Return a job that calls a kernel, and sends the outcome of each call."""
    session = KernelSession(
        torch.device(header["device"]), header["path"], header["process"], header["readable"]
    )
    session.hide()

    def job(module: Any, parts: _Parts, tell: _Tell) -> None:
        session.run = _OPERATORS[header["operator"]] if module is None else module.run
        for content, tensors in parts:
            tell(session.outcome(KernelCall.received(content, tensors)).message())

    return job


_ROLES: dict[str, Callable[[Mapping[str, Any]], _Job]] = {
    "examples": _examples,
    "truths": _truths,
    "calls": _calls,
}


def _load(source: SourceText, beside: Sequence[str], tell: _Tell) -> Any:
    """Import a file as a module, report the result, and end the process if it failed."""
    path = source.path
    if beside or not path:
        sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        exec(compile(source.text, path, "exec"), vars(module))
    except Exception as error:
        tell(message({"unloadable": error_text(error, path)}))
        os._exit(0)
    tell(message({"loaded": path, "callable": callable(getattr(module, "run", None))}))
    return module


if __name__ == "__main__":
    main()
