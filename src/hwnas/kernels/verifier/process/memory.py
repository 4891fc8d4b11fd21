"""Guarded tensors, which reveal accesses out of bounds and reads of uninitialised memory.

They do what a tool like compute-sanitizer does, on any device, for all tensors that a kernel is
given or requests from PyTorch. The memory around a tensor holds a known value, which must neither
change nor affect the outputs.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hwnas.kernels.verifier.calls import KernelCall, Layout
from hwnas.kernels.verifier.process.disguise import is_on_host, put_on_host
from hwnas.kernels.verifier.wire import flat_bytes

__all__ = ["GuardedTensor", "Memory", "extent", "fenced", "laid", "same_bytes"]

_AROUND = 4096  # bytes before and after a tensor; a multiple of every alignment
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_FILLED: tuple[str, ...] = ("zeros", "ones", "full", "zeros_like", "ones_like", "full_like")
_FILLED += ("new_zeros", "new_ones", "new_full")
_allocate = torch.empty  # before it is replaced
_PROT_NONE, _PROT_READ = 0, 1


class GuardedTensor:
    """Tensor in the middle of a larger buffer, whose other bytes have a known value.

    Attributes:
        tensor: Tensor in the middle of the buffer.
        bounds: First address of the tensor, and the first address behind it.
    """

    def __init__(self, like: Tensor, layout: Layout | None, around: int) -> None:
        strides = like.stride() if layout is None else _strides(like, layout)
        values = sum((n - 1) * s for n, s in zip(like.shape, strides, strict=True)) + 1
        size = values * like.itemsize if like.numel() else 0
        first = _AROUND + (like.itemsize if layout == "shifted" else 0)
        whole = first + -(-size // 64) * 64 + _AROUND
        self._buffer = _allocate(whole, dtype=torch.uint8, device=like.device)
        self._before = self._buffer  # a copy, once it is filled
        self._inside = slice(first, first + size)
        self._place = (like.dtype, like.shape, strides)
        self._around = around
        self.tensor = self._view(self._buffer)
        start = self._buffer.data_ptr() + first
        self.bounds = (start, start + size)
        self._buffer.fill_(around)

    def fill(self, values: Tensor, around: int) -> None:
        """Write values, and a byte all around, without changing PyTorch's version counter."""
        self._around = around
        self._buffer.data.fill_(around)
        self._view(self._buffer.data).copy_(values)
        self._before = self._buffer.data.clone()

    def fill_bytes(self, byte: int) -> None:
        """Fill the tensor with a byte."""
        self._buffer[self._inside] = byte

    def written(self) -> bool:
        """Return whether the values differ from those that `fill` wrote."""
        return not same_bytes(self.tensor, self._view(self._before))

    def written_around(self) -> bool:
        """Return whether anything in the buffer but the values has changed since `fill`."""
        after = self._buffer.data.clone()
        self._view(after).copy_(self._view(self._before))
        return not torch.equal(after, self._before)

    def written_outside(self) -> bool:
        """Return whether anything before the first or behind the last value has changed.

        Unlike `written_around`, this works for a tensor that `fill` has not written.
        """
        before, behind = self._buffer[: self._inside.start], self._buffer[self._inside.stop :]
        return bool((before != self._around).any() or (behind != self._around).any())

    def _view(self, buffer: Tensor) -> Tensor:
        dtype, shape, strides = self._place
        flat = buffer[self._inside].view(dtype)
        return flat.as_strided(shape, strides, flat.storage_offset())


class Memory:
    """Guarded new tensors that a kernel requests from PyTorch, never zero by chance."""

    def __init__(self) -> None:
        self._made: list[GuardedTensor] = []
        self._call: KernelCall | None = None
        self._bounds: dict[int, tuple[int, int]] = {}

    def install(self) -> None:
        """Make PyTorch's functions for new tensors return guarded ones inside `during`."""
        for name in _EMPTY + _FILLED:
            owner = torch.Tensor if name.startswith("new_") else torch
            setattr(owner, name, self._guarding(getattr(owner, name), name in _EMPTY))

    @contextmanager
    def during(self, inputs: Sequence[GuardedTensor], call: KernelCall) -> Iterator[None]:
        """Guard new tensors while a kernel runs inside the context."""
        self._made = []
        self._bounds = {_storage(each.tensor): each.bounds for each in inputs}
        self._call = call
        try:
            yield
        finally:
            self._call = None

    def written_outside(self) -> list[str]:
        """Return the new tensors around which something was written, as texts, and forget all."""
        made, self._made = self._made, []
        return [f"new {tuple(each.tensor.shape)}" for each in made if each.written_outside()]

    def bounds(self, tensor: Tensor) -> tuple[int, int]:
        """Return the first address that may be accessed through a tensor, and the first behind."""
        start = _storage(tensor)
        return self._bounds.get(start, (start, start + tensor.untyped_storage().nbytes()))

    def _guarding(self, make: Callable[..., Any], empty: bool) -> Callable[..., Any]:
        def guarding(*args: Any, **kwargs: Any) -> Any:
            call = self._call
            made = make(*args, **kwargs)
            with torch._C.DisableTorchFunction():  # the mode that disguises a call
                if call is None or not _is_plain(made):
                    return made
                guarded = GuardedTensor(made, None, call.around)
                if empty:
                    guarded.fill_bytes(call.fresh)
                else:
                    guarded.tensor.copy_(made)
                self._made.append(guarded)
                self._bounds[_storage(guarded.tensor)] = guarded.bounds
            if is_on_host(made):
                put_on_host(guarded.tensor)
            return guarded.tensor

        return guarding


def _is_plain(made: Any) -> bool:
    """Return whether a value is a tensor with memory of its own, and no proxy of one."""
    return (
        type(made) is Tensor
        and made.device.type in ("cpu", "cuda")
        and made.layout == torch.strided
        and made.numel() > 0
        and not made.requires_grad
    )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _strides(like: Tensor, layout: Layout) -> tuple[int, ...]:
    """Return the strides of a layout, in values and not in bytes."""
    axes = list(range(like.dim()))  # from the slowest to the fastest
    if layout == "transposed":
        axes[:2] = axes[:2][::-1]
    elif layout == "reversed":
        axes.reverse()
    elif layout == "channels last":
        axes.append(axes.pop(1) if len(axes) > 1 else axes.pop())
    strides, step = [1] * like.dim(), 2 if layout == "apart" else 1
    for axis in reversed(axes):
        strides[axis] = step
        step *= max(1, like.shape[axis])
    return tuple(strides)


def laid(like: Tensor, layout: Layout) -> Tensor:
    """Return a new, uninitialised tensor of another one's shape and type in a layout."""
    if layout == "contiguous" or not like.numel():
        return _allocate(like.shape, dtype=like.dtype, device=like.device)
    strides = _strides(like, layout)
    first = 1 if layout == "shifted" else 0
    size = first + 1 + sum((n - 1) * s for n, s in zip(like.shape, strides, strict=True))
    whole = _allocate(size, dtype=like.dtype, device=like.device)
    return whole.as_strided(like.shape, strides, first)


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor's values, and the first behind; equal if it is empty."""
    start = tensor.data_ptr()
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + ((last + 1) * tensor.itemsize if tensor.numel() else 0)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Return whether values are equal bit by bit, NaNs included."""
    return torch.equal(flat_bytes(one), flat_bytes(other))


def fenced(like: Tensor, layout: Layout) -> Tensor:
    """Return a CPU tensor next to protected memory, access to which ends the process.

    Args:
        like: Values of the tensor.
        layout: ``after`` for a tensor directly after protected memory, ``before`` for one directly
            before it, or ``readonly`` for one whose own memory cannot be written.
    """
    size = like.numel() * like.itemsize
    if not size:
        return like.clone()
    page = mmap.PAGESIZE
    pages = -(-size // page)
    region = mmap.mmap(-1, (pages + 2) * page)
    offset = page if layout == "after" else (pages + 1) * page - size
    tensor = torch.frombuffer(region, dtype=torch.uint8, count=size, offset=offset)
    start = tensor.data_ptr() - offset
    made = tensor.view(like.dtype).reshape(like.shape)
    made.copy_(like)
    if layout == "readonly":
        _protect(start + page, pages * page, _PROT_READ)
    else:
        for border in (start, start + (pages + 1) * page):
            _protect(border, page, _PROT_NONE)
    return made


def _protect(start: int, size: int, protection: int) -> None:
    address, length = ctypes.c_void_p(start), ctypes.c_size_t(size)
    if ctypes.CDLL(None).mprotect(address, length, protection) != 0:
        raise OSError("memory cannot be protected")
