"""Disguise of CPU tensors, which report to a kernel's file alone that they are on a GPU.

Tensors that the file copies to the host or creates there report the CPU. Tensors that it requests
on a GPU are created on the CPU. So a file that asks where it runs gets the answers of a GPU, and
has to be right with them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hwnas.kernels.verifier.calls import NO_ARRAY
from hwnas.kernels.verifier.process.snooping import asking_line

__all__ = ["FAKE_GPU", "disguised", "is_on_host", "put_on_host"]

FAKE_GPU = torch.device("cuda", 0)  # device that disguised tensors report
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
_EVENT = SimpleNamespace(query=lambda: True, synchronize=lambda: None, wait=lambda *_: None)
_STREAM = SimpleNamespace(
    cuda_stream=0,
    device=FAKE_GPU,
    device_index=0,
    query=lambda: True,
    synchronize=lambda: None,
    wait_stream=lambda stream: None,
    wait_event=lambda event: None,
    record_event=lambda event=None: event or _EVENT,
)
_ATTRIBUTES: dict[str, Any] = {"device": FAKE_GPU, "is_cuda": True, "is_cpu": False}
_METHODS: dict[str, Any] = {"get_device": 0, "__dlpack_device__": (2, 0), "is_pinned": False}
_METHODS |= {"is_shared": True}
_CHANGED = ("type", "numpy", "__array__", "__repr__")
_ON_CARD: dict[str, Any] = {
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "is_initialized": True,
    "get_device_capability": (9, 0),
    "get_device_name": "NVIDIA H200",
    "get_arch_list": ["sm_80", "sm_90"],
    "is_bf16_supported": True,
    "get_device_properties": PROPERTIES,
    "mem_get_info": (2**37, 2**37),
    "current_stream": _STREAM,
    "default_stream": _STREAM,
    "synchronize": None,
    "device": nullcontext(),
    "device_of": nullcontext(),
    "stream": nullcontext(),
}
_MARK = "_hwnas_host"


def is_on_host(tensor: Tensor) -> bool:
    """Return whether a tensor would be on the CPU if the others were on a GPU."""
    return hasattr(tensor, _MARK)


def put_on_host(tensor: Tensor) -> None:
    """Make a tensor report that it is on the CPU."""
    setattr(tensor, _MARK, True)


class _Devices(TorchFunctionMode):
    """Mode that runs requests for a GPU on the CPU, and marks tensors that belong on the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        wanted = [each for each in (*args, *kwargs.values()) if _is_device(each)]
        given = list(_tensors((*args, *kwargs.values())))
        if func is torch.Tensor.cuda:
            func, args, kwargs, wanted = torch.Tensor.to, args[:1], {}, [FAKE_GPU]
            args = (*args, "cpu")
        elif func is torch.Tensor.cpu:
            wanted = [torch.device("cpu")]
        made = func(*map(_here, args), **{name: _here(value) for name, value in kwargs.items()})
        if not isinstance(made, Tensor):
            return made
        on_gpu = str(wanted[0]).startswith("cuda") if wanted else None
        if on_gpu is None:
            on_gpu = any(not is_on_host(each) for each in given)
        moved = any(made is each and is_on_host(each) == on_gpu for each in given)
        if moved:  # PyTorch would copy the tensor
            made = made.clone()
        if not on_gpu:
            put_on_host(made)
        elif is_on_host(made) and not any(made is each for each in given):
            delattr(made, _MARK)
        return made


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (
        isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu")
    )


def _here(value: Any) -> Any:
    return "cpu" if _is_device(value) else value


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


@contextmanager
def disguised(disguise: bool) -> Iterator[None]:
    """Let CPU tensors report to the user's files, and to no others, that they are on a GPU."""
    if not disguise:
        yield
        return
    tensor, cuda, cudnn = torch.Tensor, torch.cuda, torch.backends.cudnn
    true = {name: getattr(tensor, name) for name in _ATTRIBUTES}
    plain = {name: getattr(tensor, name) for name in (*_METHODS, *_CHANGED)}
    asked, available = torch.get_device, cudnn.is_available
    functions = {name: getattr(cuda, name) for name in _ON_CARD}

    def attribute(name: str) -> property:
        def get(this: Any) -> Any:
            theirs = asking_line(sys._getframe(1)) is not None and not is_on_host(this)
            return _ATTRIBUTES[name] if theirs else true[name].__get__(this)

        return property(get)

    def function(real: Callable[..., Any], answer: Any) -> Callable[..., Any]:
        def get(*args: Any, **kwargs: Any) -> Any:
            theirs = asking_line(sys._getframe(1)) is not None
            return answer if theirs else real(*args, **kwargs)

        return get

    def method(name: str) -> Callable[..., Any]:
        def get(this: Any, *args: Any, **kwargs: Any) -> Any:
            if asking_line(sys._getframe(1)) is None or is_on_host(this):
                return plain[name](this, *args, **kwargs)
            if name in _METHODS:
                return _METHODS[name]
            if name in ("numpy", "__array__"):
                raise TypeError(f"can't convert {FAKE_GPU} {NO_ARRAY}")
            if name == "type" and not args and not kwargs:
                return plain[name](this).replace("torch.", "torch.cuda.")
            if name == "__repr__":
                return plain[name](this, *args, **kwargs)[:-1] + f", device='{FAKE_GPU}')"
            return plain[name](this, *args, **kwargs)

        return get

    try:
        for name in _ATTRIBUTES:
            setattr(tensor, name, attribute(name))
        for name, answer in _ON_CARD.items():
            setattr(cuda, name, function(functions[name], answer))
        cudnn.is_available = function(available, True)
        for name in plain:
            setattr(tensor, name, method(name))
        torch.get_device = method("get_device")
        with _Devices():
            yield
    finally:
        for name in _ATTRIBUTES:
            delattr(tensor, name)
        for name, real in functions.items():
            setattr(cuda, name, real)
        cudnn.is_available = available
        torch.get_device = asked
        _put_back(plain)


def _put_back(methods: Mapping[str, Any]) -> None:
    for name, value in methods.items():
        if hasattr(torch._C.TensorBase, name) and value is getattr(torch._C.TensorBase, name):
            delattr(torch.Tensor, name)
        else:
            setattr(torch.Tensor, name, value)
