"""The processes in which kernels run: one that has all imported, and copies of it, one for a job.

A copy does what it is asked, part by part, and tells of each before it goes on; when it ends,
however that be, its parent says so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib.util
import os
import resource
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import triton
from torch import Generator, Tensor

from hwnas.kernels.catalogue import OPERATORS
from hwnas.kernels.launch import interpreting
from hwnas.kernels.tolerance import in_float64
from hwnas.kernels.verifier.calls import Call, as_tuple
from hwnas.kernels.verifier.session import Session, error_text
from hwnas.kernels.verifier.wire import DTYPES, inputs_from, inputs_to, message, messages

__all__ = ["main"]

_WORD = 8
_LARGEST_FILE = 4 * 2**30


def main() -> None:
    """Serve the socket that is standard input until it is closed."""
    control = socket.socket(fileno=os.dup(0))
    if interpreting():
        triton.knobs.runtime.interpret = True  # so that the environment need not tell it
        os.environ.pop("TRITON_INTERPRET", None)
    gc.freeze()
    while True:
        order, files, _, _ = socket.recv_fds(control, 1, 3)
        if not order:
            return
        job = os.fork()
        if job == 0:
            control.close()
            _do(*files)
        for file in files:
            os.close(file)
        control.sendall(job.to_bytes(_WORD, "little"))
        _, status = os.waitpid(job, 0)
        with contextlib.suppress(ProcessLookupError):  # what it may have started itself
            os.killpg(job, signal.SIGKILL)
        control.sendall(os.waitstatus_to_exitcode(status).to_bytes(_WORD, "little", signed=True))


def _do(job: int, results: int, log: int) -> NoReturn:
    """Do a job in this process, which ends with it."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    faulthandler.enable(2)
    [(header, _), *rest] = messages(_content(job))
    _limit(header["memory_bytes"])

    def tell(text: bytes) -> None:
        while text:
            text = text[os.write(results, text) :]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _ROLES[header["role"]](header, rest, tell)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _content(file: int) -> bytes:
    with os.fdopen(file, "rb") as stream:
        stream.seek(0)
        return stream.read()


def _limit(memory_bytes: int | None) -> None:
    """Let this process have so much more memory than it has, and leave no core behind."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    if memory_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


_Parts = Sequence[tuple[dict[str, Any], list[Tensor]]]
_Tell = Callable[[bytes], None]


def _examples(header: Mapping[str, Any], parts: _Parts, tell: _Tell) -> None:
    """Inputs of the file's own, one message for each that was asked for."""
    module = _load(header["path"], tell)
    for asked, _ in parts:
        generator = Generator().manual_seed(asked["seed"])
        try:
            inputs = module.inputs(asked["sizes"], DTYPES[asked["dtype"]], generator)
            told, tensors = inputs_to(dict(inputs))
        except Exception as error:
            tell(message({"error": error_text(error, header["path"])}))
        else:
            tell(message({"inputs": told}, tensors))


def _truths(header: Mapping[str, Any], parts: _Parts, tell: _Tell) -> None:
    """What the file's reference gives for inputs: in float64, and as they are."""
    module = _load(header["path"], tell)
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


def _calls(header: Mapping[str, Any], parts: _Parts, tell: _Tell) -> None:
    """Outcomes of calls of a kernel."""
    session = Session(torch.device(header["device"]), header["path"])
    session.hide()
    if header["path"] is None:
        session.run = OPERATORS[header["operator"]]
    else:
        session.run = _load(header["path"], tell).run
    for told, tensors in parts:
        tell(session.outcome(Call.received(told, tensors)).message())


_ROLES: dict[str, Callable[[Mapping[str, Any], _Parts, _Tell], None]] = {
    "examples": _examples,
    "truths": _truths,
    "calls": _calls,
}


def _load(path: str, tell: _Tell) -> Any:
    """The module of a file; how that went is the first thing that is told."""
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        tell(message({"unloadable": error_text(error, path)}))
        os._exit(0)
    tell(message({"loaded": path}))
    return module


if __name__ == "__main__":
    main()
