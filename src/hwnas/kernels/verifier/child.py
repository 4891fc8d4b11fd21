"""The processes in which kernels run: one that has all imported, and copies of it, one for a job.

A copy does what it is asked, part by part, and tells of each before it goes on; when it ends,
however that be, its parent says so.
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

from hwnas.kernels.catalogue import OPERATORS
from hwnas.kernels.launch import interpreting
from hwnas.kernels.pointwise import pointwise
from hwnas.kernels.tolerance import in_float64
from hwnas.kernels.verifier.calls import Call, as_tuple
from hwnas.kernels.verifier.sandbox import Supervisor, Unsupported, confine
from hwnas.kernels.verifier.session import Session, error_text
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
_COMMON = (  # what kernels import
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
_LARGEST_FILE = 16 * 2**20  # of what is printed


def main() -> None:
    """Serve the socket that is standard input until it is closed."""
    control = socket.socket(fileno=os.dup(0))
    if interpreting():
        triton.knobs.runtime.interpret = True  # so that the environment need not tell it
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
        with contextlib.suppress(ProcessLookupError):  # what it may have started itself
            os.killpg(job, signal.SIGKILL)
        text = json.dumps(seen).encode()
        control.sendall(os.waitstatus_to_exitcode(status).to_bytes(_WORD, "little", signed=True))
        control.sendall(len(text).to_bytes(_WORD, "little") + text)


def _warm_up() -> None:
    """Have PyTorch and Triton import now what they import when they are first used."""
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
    """Watch a job to its end, and say what it was refused; it begins with what it wants."""
    wanted, files, _, _ = socket.recv_fds(channel, 2**16, 1)
    if not wanted or wanted == b"-":
        return {"refused": [], "unguarded": "" if wanted else "it ended too early"}
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
    """What a supervisor is told by a process before it imports a file."""

    path: str | None
    readable: Sequence[str]
    threads: bool


def _guard(channel: socket.socket, header: Mapping[str, Any]) -> None:
    """Have this process watched, if that is wanted and can be."""
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
    """Do a job in this process, which ends with it."""
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
        source = None if header["path"] is None else Source.read(header["path"])
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
class Source:
    """A file as it was before anything of it ran, so that it need not be opened again."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> Source:
        """Read it, as Python would, and let Python's library know its lines."""
        with tokenize.open(path) as file:
            text = file.read()
        lines = text.splitlines(keepends=True)
        linecache.cache[path] = (len(text), None, lines, path)
        return cls(path, text)


def _limit(memory_bytes: int | None) -> None:
    """Let this process have so much more memory than it has, and leave no core behind."""
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
    """Inputs of the file's own, one message for each that was asked for."""

    def job(module: Any, parts: _Parts, tell: _Tell) -> None:
        for asked, _ in parts:
            generator = Generator().manual_seed(asked["seed"])
            try:
                inputs = module.inputs(asked["sizes"], DTYPES[asked["dtype"]], generator)
                told, tensors = inputs_to(dict(inputs))
            except Exception as error:
                tell(message({"error": error_text(error, header["path"])}))
            else:
                tell(message({"inputs": told}, tensors))

    return job


def _truths(header: Mapping[str, Any]) -> _Job:
    """What the file's reference gives for inputs: in float64, and as they are."""

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
            except RuntimeError:  # PyTorch has not every function for every type
                plain = ()
            tell(message({"exact": len(exact)}, [*exact, *plain]))

    return job


def _calls(header: Mapping[str, Any]) -> _Job:
    """Outcomes of calls of a kernel."""
    session = Session(
        torch.device(header["device"]), header["path"], header["process"], header["readable"]
    )
    session.hide()

    def job(module: Any, parts: _Parts, tell: _Tell) -> None:
        session.run = OPERATORS[header["operator"]] if module is None else module.run
        for told, tensors in parts:
            tell(session.outcome(Call.received(told, tensors)).message())

    return job


_ROLES: dict[str, Callable[[Mapping[str, Any]], _Job]] = {
    "examples": _examples,
    "truths": _truths,
    "calls": _calls,
}


def _load(source: Source, beside: Sequence[str], tell: _Tell) -> Any:
    """The module of a file; how that went is the first thing that is told."""
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
