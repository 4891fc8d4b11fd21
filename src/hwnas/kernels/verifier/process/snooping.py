"""Monitor of what a kernel's file reads and changes besides its inputs and outputs.

A kernel has no use for the stack, the environment, files or processes; one that reads them can
tell a check from real work. The monitor sees what the file does, by itself or through Python's
library, and not what PyTorch does.
"""

from __future__ import annotations

import _thread
import collections
import enum
import os
import random
import sys
import sysconfig
import threading
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import triton

import hwnas

__all__ = ["FileAccessRecord", "State", "asking_line"]

_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen", "<string>")
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_OTHERS = (*_INSTALLED, *(str(Path(str(m.__file__)).parent) for m in (torch, triton, hwnas)))
_WATCHED = {
    "sys._getframe": "the stack",
    "sys._current_frames": "the stack",
    "gc.get_objects": "all objects",
    "gc.get_referrers": "the referrers of an object",
    "open": "a file",
    "os.listdir": "a folder",
    "os.scandir": "a folder",
    "os.system": "other processes",
    "os.fork": "other processes",
    "os.exec": "other processes",
    "os.posix_spawn": "other processes",
    "subprocess.Popen": "other processes",
    "socket.connect": "the network",
    "sys.addaudithook": "audit events",
    "sys.settrace": "each executed line",
    "sys.setprofile": "each executed function",
}
_FRAMES = ("tb_frame", "gi_frame", "cr_frame")
# These modules read a frame to name the module of a class that they make, and do not pass it on.
_NAMING = tuple(str(Path(str(module.__file__))) for module in (collections, enum, typing))
_MODULES: tuple[str, ...] = (
    "time",
    "torch",
    "torch.cuda",
    "torch.testing",
    "torch.linalg",
    "torch.nn.functional",
)
_MODULES += ("triton.testing", "numpy", "os", "gc", "sys", "builtins")


class FileAccessRecord:
    """Record of what a file reads besides its inputs."""

    def __init__(self) -> None:
        self._busy = False
        self._seen: dict[str, None] = {}

    def install(self) -> None:
        """Install the hooks permanently: Python does not allow an audit hook to be removed."""
        kind = type(os.environ)
        watched = type("_Environ", (kind,), {"__getitem__": self._reading(kind.__getitem__)})
        os.environ.__class__ = watched
        for owner, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
            setattr(owner, name, self._starting(getattr(owner, name)))
        sys.addaudithook(self._hook)

    def taken(self) -> list[str]:
        """Return what was recorded since the last call, and clear the record."""
        seen, self._seen = list(self._seen), {}
        return seen

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        what = _WATCHED.get(event)
        if event == "object.__getattr__" and len(args) > 1 and args[1] in _FRAMES:
            what = "the stack"
        if what is not None and not self._busy:
            self._note(what)

    def _reading(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def get(environment: Any, name: Any) -> Any:
            self._note(f"the environment ({name})")
            return read(environment, name)

        return get

    def _starting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return `start` with a record of the thread, which Python audits only from 3.12 on."""

        def start_new_thread(*args: Any, **kwargs: Any) -> Any:
            self._note("threads")
            return start(*args, **kwargs)

        return start_new_thread

    def _note(self, what: str) -> None:
        self._busy = True
        try:
            line = asking_line(sys._getframe(2))
            if what == "the stack" and sys._getframe(2).f_code.co_filename in _NAMING:
                line = None
            if line is not None:
                self._seen[f"line {line} looks at {what}"] = None
        finally:
            self._busy = False


def asking_line(frame: FrameType | None) -> int | None:
    """Return the line of a user's file that called, by itself or through Python's library.

    It is None if an installed library or hwnas called.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if "importlib" in name or name.startswith(_OTHERS):
            return None
        if not name.startswith(_LIBRARY):
            return frame.f_lineno
        frame = frame.f_back
    return None


class State:
    """Snapshot of functions that others rely on, settings and random states of this process."""

    def __init__(self) -> None:
        self._functions = {
            (owner, name): value
            for owner, module in _owners()
            for name, value in vars(module).items()
            if callable(value)
        }
        self._settings = _settings()

    def changes(self) -> list[str]:
        """Return what differs from the snapshot, as texts; nothing is restored."""
        owners = dict(_owners())
        replaced = [
            f"{owner}.{name} was replaced"
            for (owner, name), value in self._functions.items()
            if (now := vars(owners[owner]).get(name)) is not value and not _of_others(now)
        ]
        settings = _settings()
        changed = [name for name, value in self._settings.items() if settings[name] != value]
        return replaced + [f"{name} was changed" for name in changed]


def _of_others(function: Any) -> bool:
    """Return whether a library or hwnas defines a function: PyTorch replaces some by itself."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_OTHERS)


def _owners() -> Iterator[tuple[str, Any]]:
    for name in _MODULES:
        if name in sys.modules:
            yield name, sys.modules[name]
    yield "torch.Tensor", torch.Tensor
    yield "torch.cuda.Event", torch.cuda.Event


def _settings() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=True)
    return {
        "the random state of PyTorch": torch.get_rng_state().numpy().tobytes(),
        "the random state of Python": hash(random.getstate()),
        "the random state of numpy": (state[0], bytes(state[1].data), *state[2:]),
        "the default type": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "the gradient mode": torch.is_grad_enabled(),
        "the precision of matrix products": torch.get_float32_matmul_precision(),
        "the flushing of subnormal numbers": (torch.tensor(1e-310, dtype=torch.float64) * 1).item(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the clock": time.perf_counter.__name__,
    }
