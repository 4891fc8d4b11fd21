"""What kernels do in Triton's interpreter: each access to memory, by which program, in which order.

An access is out of bounds where it touches no tensor that the kernel was started with. Programs of
one grid are in conflict where one writes what another reads, or writes otherwise: on a graphics
card they run at the same time. Where atomic operations are used they may wait for each other, and
only their results are compared, of programs run first to last and last to first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from hwnas.kernels.launch import interpreting
from hwnas.kernels.verifier.memory import Memory

__all__ = ["Watch"]

_ACCESSES = ("create_masked_load", "create_masked_store", "set_grid_idx")
_ATOMIC: tuple[str, ...] = ("create_atomic_rmw", "create_atomic_cas", "create_atomic_poll")
_ATOMIC += ("create_atomic_load", "create_atomic_store")


class Watch:
    """Sees what interpreted kernels do.

    Attributes:
        active: Whether it could be put into this version of Triton's interpreter.
        stray: Accesses out of bounds, as texts.
        conflicts: Between programs, as texts.
    """

    def __init__(self, memory: Memory) -> None:
        self.active = False
        self.stray: list[str] = []
        self.conflicts: list[str] = []
        self._memory = memory
        self._backwards = False
        self._program = 0
        self._launch: _Launch | None = None

    def install(self) -> None:
        """Put it into the interpreter, for good."""
        if not interpreting():
            return
        from triton.runtime import interpreter

        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        if not all(hasattr(builder, name) for name in _ACCESSES):
            return
        self._watch_accesses(builder)
        self._watch_programs(builder)
        self._watch_launches(executor)
        self.active = True

    @contextmanager
    def during(self, backwards: bool) -> Iterator[None]:
        """While a kernel runs."""
        self.stray, self.conflicts, self._backwards = [], [], backwards
        yield

    def _watch_accesses(self, builder: Any) -> None:
        load, store = builder.create_masked_load, builder.create_masked_store

        def masked_load(this: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            mask = self._seen(pointers, mask, None)
            return load(this, pointers, mask, *rest, **named)

        def masked_store(
            this: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any
        ) -> Any:
            mask = self._seen(pointers, mask, value)
            return store(this, pointers, value, mask, *rest, **named)

        builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
        for name in _ATOMIC:
            if hasattr(builder, name):
                setattr(builder, name, self._noting_atomic(getattr(builder, name)))

    def _noting_atomic(self, original: Any) -> Any:
        def atomic(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._launch is not None:
                self._launch.atomic = True
            return original(this, *args, **kwargs)

        return atomic

    def _watch_programs(self, builder: Any) -> None:
        set_index = builder.set_grid_idx

        def set_grid_idx(this: Any, *index: int) -> None:
            dims = tuple(this.grid_dim)
            if self._backwards:
                index = tuple(n - 1 - i for n, i in zip(dims, index, strict=True))
            self._program = int(np.ravel_multi_index(index, dims))
            set_index(this, *index)

        builder.set_grid_idx = set_grid_idx

    def _watch_launches(self, executor: Any) -> None:
        start = executor.__call__

        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            named = [*zip(this.arg_names, args, strict=False), *kwargs.items()]
            bounds = {name: self._memory.bounds(tensor) for name, tensor in _tensors(named)}
            self._launch = launch = _Launch(this.fn.__name__, bounds)
            try:
                return start(this, *args, **kwargs)
            finally:
                self._launch = None
                self.stray += launch.stray[:3]
                self.conflicts += launch.conflicts()

        executor.__call__ = call

    def _seen(self, pointers: Any, mask: Any, value: Any) -> Any:
        """Note an access; the mask of what is in bounds, so that the process lives on."""
        if self._launch is None:
            return mask
        bits = pointers.get_element_ty().primitive_bitwidth
        allowed = self._launch.access(
            np.asarray(pointers.data),
            np.broadcast_to(mask.data, np.shape(pointers.data)).astype(bool),
            None if value is None else np.broadcast_to(value.data, np.shape(pointers.data)),
            max(1, bits // 8),
            self._program,
        )
        return type(mask)(allowed, mask.dtype)


class _Launch:
    """Accesses of the programs of one grid."""

    def __init__(self, kernel: str, bounds: dict[str, tuple[int, int]]) -> None:
        self.kernel = kernel
        self.atomic = False
        self.stray: list[str] = []
        self._bounds = bounds
        self._reads: list[tuple[np.ndarray, int]] = []
        self._writes: list[tuple[np.ndarray, int, np.ndarray]] = []

    def access(
        self, addresses: np.ndarray, mask: np.ndarray, value: np.ndarray | None, size: int, by: int
    ) -> np.ndarray:
        """Note it, and give the mask of what is in bounds."""
        inside = np.zeros(addresses.shape, bool)
        for first, behind in self._bounds.values():
            inside |= (addresses >= np.uint64(first)) & (addresses + np.uint64(size) <= behind)
        if (mask & ~inside).any():
            verb = "loads" if value is None else "stores"
            self._note_stray(addresses[mask & ~inside], verb)
        mask = mask & inside
        if value is None:
            self._reads.append((addresses[mask], by))
        else:
            self._writes.append((addresses[mask], by, _bits(value[mask])))
        return mask

    def conflicts(self) -> list[str]:
        """Where programs that run at the same time meet; see the module."""
        if self.atomic or not self._writes:
            return []
        places = np.concatenate([places for places, _, _ in self._writes])
        by = np.concatenate([np.full(len(places), by) for places, by, _ in self._writes])
        values = np.concatenate([values for _, _, values in self._writes])
        order = np.argsort(places, kind="stable")
        places, by, values = places[order], by[order], values[order]
        meet = (places[1:] == places[:-1]) & (by[1:] != by[:-1]) & (values[1:] != values[:-1])
        found = []
        if meet.any():
            found.append(f"{self.kernel}: programs write other values to the same place")
        if any(self._read_by_others(places, by, read, reader) for read, reader in self._reads):
            found.append(f"{self.kernel}: a program reads what another one writes")
        return found

    @staticmethod
    def _read_by_others(places: np.ndarray, by: np.ndarray, read: np.ndarray, reader: int) -> bool:
        others = places[by != reader]
        return bool(np.isin(read, others).any())

    def _note_stray(self, addresses: np.ndarray, verb: str) -> None:
        place = int(addresses[0])

        def distance(name: str) -> tuple[int, str]:
            first, behind = self._bounds[name]
            if place < first:
                return first - place, f"{first - place} bytes before {name}"
            return place - behind, f"{max(0, place - behind)} bytes behind the end of {name}"

        where = min(map(distance, self._bounds), default=(0, "nowhere near a tensor"))[1]
        self.stray.append(f"{self.kernel} {verb} {len(addresses)} values, the first {where}")


def _bits(values: np.ndarray) -> np.ndarray:
    """Values as integers, such that equal bits are equal."""
    flat = np.ascontiguousarray(values)
    size = flat.dtype.itemsize
    return flat.view(f"u{size}").astype(np.uint64)


def _tensors(named: list[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Tensors among what a kernel is started with, also inside what Triton wraps them in."""
    for name, value in named:
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, tuple | list):
            yield from _tensors([(name, each) for each in value])
        elif hasattr(value, "base"):
            yield from _tensors([(name, value.base)])
