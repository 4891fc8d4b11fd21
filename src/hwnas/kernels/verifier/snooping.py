"""What a kernel's file looks at and changes besides its inputs and outputs.

A kernel has no use for the stack, the environment, files or processes; one that looks at them can
tell a check from real work. The same holds for the device, of which it can be told another. All
this sees what the file itself does, by itself or through Python's library, not what PyTorch does.
"""

from __future__ import annotations

import _thread
import os
import random
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton

import hwnas

__all__ = ["CARD", "Snooping", "State", "disguised"]

CARD = torch.device("cuda", 0)  # what disguised tensors say they are on
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=2**37,
    warp_size=32,
    L2_cache_size=50 * 2**20,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=2**16,
    shared_memory_per_block=48 * 2**10,
    shared_memory_per_block_optin=227 * 2**10,
    shared_memory_per_multiprocessor=228 * 2**10,
)
_done = SimpleNamespace(query=lambda: True, synchronize=lambda: None, wait=lambda *_: None)
STREAM = SimpleNamespace(
    cuda_stream=0,
    device=CARD,
    device_index=0,
    query=lambda: True,
    synchronize=lambda: None,
    wait_stream=lambda stream: None,
    wait_event=lambda event: None,
    record_event=lambda event=None: event or _done,
)
_LIBRARY = (sysconfig.get_path("stdlib"), "<frozen", "<string>")
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_OTHERS = (*_INSTALLED, *(str(Path(str(m.__file__)).parent) for m in (torch, triton, hwnas)))
_WATCHED = {
    "sys._getframe": "the stack",
    "sys._current_frames": "the stack",
    "gc.get_objects": "all objects",
    "gc.get_referrers": "who holds an object",
    "open": "a file",
    "os.listdir": "a folder",
    "os.scandir": "a folder",
    "os.system": "other processes",
    "os.fork": "other processes",
    "os.exec": "other processes",
    "os.posix_spawn": "other processes",
    "subprocess.Popen": "other processes",
    "socket.connect": "the network",
    "sys.addaudithook": "what is audited",
    "sys.settrace": "each line that is run",
    "sys.setprofile": "each function that is run",
}
_FRAMES = ("tb_frame", "gi_frame", "cr_frame")
_MODULES: tuple[str, ...] = (
    "time",
    "torch",
    "torch.cuda",
    "torch.testing",
    "torch.linalg",
    "torch.nn.functional",
)
_MODULES += ("triton.testing", "numpy", "os", "gc", "sys", "builtins")


class Snooping:
    """Notes what a file looks at."""

    def __init__(self) -> None:
        self._busy = False
        self._seen: dict[str, None] = {}

    def install(self) -> None:
        """For good: Python lets nobody take such a hook away."""
        kind = type(os.environ)
        watched = type("_Environ", (kind,), {"__getitem__": self._reading(kind.__getitem__)})
        os.environ.__class__ = watched
        for owner, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
            setattr(owner, name, self._starting(getattr(owner, name)))
        sys.addaudithook(self._hook)

    def taken(self) -> list[str]:
        """What was seen since the last time."""
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
        """Python tells its hooks of new threads from version 3.12 on only."""

        def start_new_thread(*args: Any, **kwargs: Any) -> Any:
            self._note("threads")
            return start(*args, **kwargs)

        return start_new_thread

    def _note(self, what: str) -> None:
        self._busy = True
        try:
            line = _asking_line(sys._getframe(2))
            if line is not None:
                self._seen[f"line {line} looks at {what}"] = None
        finally:
            self._busy = False


def _asking_line(frame: FrameType | None) -> int | None:
    """The line of a file of the user's that asks, by itself or through Python's library."""
    while frame is not None:
        name = frame.f_code.co_filename
        if "importlib" in name or name.startswith(_OTHERS):
            return None
        if not name.startswith(_LIBRARY):
            return frame.f_lineno
        frame = frame.f_back
    return None


class State:
    """Functions that others rely on, settings and random numbers of this process."""

    def __init__(self) -> None:
        self._functions = {
            (owner, name): value
            for owner, module in _owners()
            for name, value in vars(module).items()
            if callable(value)
        }
        self._settings = _settings()

    def changes(self) -> list[str]:
        """What is another than at first; nothing is put back."""
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
    """Whether it was written by neither the user nor us: PyTorch replaces some by itself."""
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
        "whether gradients are kept": torch.is_grad_enabled(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "the flushing of subnormal numbers": (torch.tensor(1e-310, dtype=torch.float64) * 1).item(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the clock": time.perf_counter.__name__,
    }


def _is_cpu(*arguments: Any) -> bool:
    return any(isinstance(each, str | torch.device) and str(each) == "cpu" for each in arguments)


@contextmanager
def disguised(disguise: bool) -> Iterator[None]:
    """Let tensors of the CPU tell files of the user's, and no others, that they are on a card."""
    if not disguise:
        yield
        return
    tensor, cuda = torch.Tensor, torch.cuda
    attributes: dict[str, Any] = {"device": CARD, "is_cuda": True, "is_cpu": False}
    functions: dict[str, Any] = {"is_available": True, "device_count": 1, "current_device": 0}
    functions |= {"is_initialized": True, "get_device_capability": (9, 0)}
    functions |= {"get_device_name": "NVIDIA H200", "is_bf16_supported": True}
    functions |= {"get_device_properties": PROPERTIES, "mem_get_info": (2**37, 2**37)}
    functions |= {"current_stream": STREAM, "default_stream": STREAM, "synchronize": None}
    functions |= {"device": nullcontext(), "device_of": nullcontext(), "stream": nullcontext()}
    methods: dict[str, Any] = {"get_device": 0, "__dlpack_device__": (2, 0), "is_pinned": False}
    others = ("type", "cpu", "to", "numpy", "__repr__")
    plain = {name: getattr(tensor, name) for name in (*methods, *others)}
    asked = torch.get_device
    true = {name: getattr(tensor, name) for name in attributes}
    really = {name: getattr(cuda, name) for name in functions}

    def attribute(name: str) -> property:
        def get(this: Any) -> Any:
            theirs = _asking_line(sys._getframe(1)) is not None
            return attributes[name] if theirs else true[name].__get__(this)

        return property(get)

    def function(name: str) -> Callable[..., Any]:
        def get(*args: Any, **kwargs: Any) -> Any:
            theirs = _asking_line(sys._getframe(1)) is not None
            return functions[name] if theirs else really[name](*args, **kwargs)

        return get

    def method(name: str) -> Callable[..., Any]:
        def get(this: Any, *args: Any, **kwargs: Any) -> Any:
            if _asking_line(sys._getframe(1)) is None:
                return plain[name](this, *args, **kwargs)
            if name == "type" and not args and not kwargs:
                return plain[name](this).replace("torch.", "torch.cuda.")
            if name == "cpu" or (name == "to" and _is_cpu(*args, *kwargs.values())):
                copy = plain[name](this, *args, **kwargs).clone()  # as of a GPU
                copy.is_copy = True
                return copy
            if name == "numpy" and not hasattr(this, "is_copy"):
                raise TypeError(f"can't convert {CARD} device type tensor to numpy")
            if name == "__repr__":
                return plain[name](this, *args, **kwargs)[:-1] + f", device='{CARD}')"
            return methods[name] if name in methods else plain[name](this, *args, **kwargs)

        return get

    try:
        for name in attributes:
            setattr(tensor, name, attribute(name))
        for name in functions:
            setattr(cuda, name, function(name))
        for name in plain:
            setattr(tensor, name, method(name))
        torch.get_device = method("get_device")
        yield
    finally:
        for name in attributes:
            delattr(tensor, name)
        for name in functions:
            setattr(cuda, name, really[name])
        torch.get_device = asked
        for name, value in plain.items():
            if hasattr(torch._C.TensorBase, name) and value is getattr(torch._C.TensorBase, name):
                delattr(tensor, name)
            else:
                setattr(tensor, name, value)
