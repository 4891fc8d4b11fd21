"""Monitor of the memory accesses of kernels in Triton's interpreter, by program and in order.

An access is out of bounds if it touches no tensor that the kernel was launched with. Module
`conflicts` judges the accesses of the programs of one grid to the same address. The interpreter
runs programs first to last, one after the other. Here they also run last to first, shuffled, and
interleaved: each program pauses before each atomic operation and lets others run. This exposes a
kernel that is right only while its programs run one by one.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
from torch import Tensor

from hwnas.kernels.launch import interpreting
from hwnas.kernels.verifier.calls import Order
from hwnas.kernels.verifier.process.conflicts import Accesses, Kind
from hwnas.kernels.verifier.process.memory import Memory

__all__ = ["MemoryMonitor"]

_ACCESSES = ("create_masked_load", "create_masked_store", "set_grid_idx", "create_atomic_rmw")
_TOGETHER = 48  # programs that are interleaved at a time

Index = tuple[int, ...]


class MemoryMonitor:
    """Monitor of the memory accesses of interpreted kernels.

    Attributes:
        active: Whether the monitor is installed in Triton's interpreter.
        stray: Accesses out of bounds, as texts.
        conflicts: Conflicts between programs, as texts.
        atomics: Names of kernels with atomic operations.
    """

    def __init__(self, memory: Memory) -> None:
        self.active = False
        self.stray: list[str] = []
        self.conflicts: list[str] = []
        self.atomics: list[str] = []
        self._memory = memory
        self._order: Order = ""
        self._random = Random(0)
        self._program = 0
        self._launch: _Launch | None = None
        self._turns: _Turns | None = None

    @staticmethod
    def possible() -> bool:
        """Return whether the monitor can be installed in this version of Triton."""
        from triton.runtime import interpreter

        return all(hasattr(interpreter.InterpreterBuilder, name) for name in _ACCESSES)

    def install(self) -> None:
        """Install the monitor permanently, if kernels are interpreted and it is possible."""
        if not interpreting() or not self.possible():
            return
        from triton.runtime import interpreter

        builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
        self._watch_accesses(builder)
        self._watch_atomics(builder)
        self._watch_launches(builder, executor)
        self.active = True

    @contextmanager
    def during(self, order: Order, seed: int) -> Iterator[None]:
        """Clear the records, and set the order in which programs run inside the context."""
        self.stray, self.conflicts, self.atomics = [], [], []
        self._order, self._random = order, Random(seed)
        yield

    def _watch_accesses(self, builder: Any) -> None:
        load, store = builder.create_masked_load, builder.create_masked_store

        def masked_load(this: Any, pointers: Any, mask: Any, *rest: Any, **named: Any) -> Any:
            return load(this, pointers, self._seen(Kind.READ, pointers, mask), *rest, **named)

        def masked_store(
            this: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **named: Any
        ) -> Any:
            mask = self._seen(Kind.WRITE, pointers, mask, value)
            return store(this, pointers, value, mask, *rest, **named)

        builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
        self._plain = load, store

    def _watch_atomics(self, builder: Any) -> None:
        update, swap = builder.create_atomic_rmw, builder.create_atomic_cas
        load, store = self._plain

        def atomic_rmw(
            this: Any, kind: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any
        ) -> Any:
            self._yield()
            mask = self._seen(Kind.ATOMIC, pointers, mask, value, sem, scope)
            return update(this, kind, pointers, value, mask, sem, scope)

        def atomic_cas(
            this: Any, pointers: Any, expected: Any, value: Any, sem: Any, scope: Any
        ) -> Any:
            self._yield()
            self._in_bounds(pointers)
            found = swap(this, pointers, expected, value, sem, scope)
            swapped = np.asarray(found.data) == np.asarray(expected.data)
            self._noted(Kind.ATOMIC, pointers, swapped, sem, scope)
            self._noted(Kind.ATOMIC_READ, pointers, ~swapped, sem, scope)
            return found

        def atomic_load(this: Any, pointers: Any, mask: Any, sem: Any, scope: Any) -> Any:
            self._yield()
            mask = self._seen(Kind.ATOMIC_READ, pointers, mask, None, sem, scope)
            return load(this, pointers, mask, None, None, True)

        def atomic_store(
            this: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any
        ) -> Any:
            self._yield()
            mask = self._seen(Kind.ATOMIC, pointers, mask, value, sem, scope)
            return store(this, pointers, value, mask, None)

        builder.create_atomic_rmw, builder.create_atomic_cas = atomic_rmw, atomic_cas
        for name, made in (("load", atomic_load), ("store", atomic_store)):
            if hasattr(builder, f"create_atomic_{name}"):
                setattr(builder, f"create_atomic_{name}", made)

    def _watch_launches(self, builder: Any, executor: Any) -> None:
        set_index, start = builder.set_grid_idx, executor.__call__

        def set_grid_idx(this: Any, *index: int) -> None:
            dims = tuple(this.grid_dim)
            launch = self._launch
            if launch is not None:
                launch.sized(int(np.prod(dims)))
            self._program = int(np.ravel_multi_index(index, dims))
            set_index(this, *index)
            if launch is not None and self._order:
                launch.wait(index)

        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            named = [*zip(this.arg_names, args, strict=False), *kwargs.items()]
            bounds = {name: self._memory.bounds(tensor) for name, tensor in _tensors(named)}
            self._launch = launch = _Launch(this.fn.__name__, bounds)
            original = this.fn

            def wait(index: Index) -> None:
                if not launch.waiting:  # by now the interpreter has read the signature
                    this.fn = self._ordered(original, launch)
                launch.waiting.append(index)

            launch.wait = wait
            try:
                return start(this, *args, **kwargs)
            finally:
                this.fn = original
                self._launch = None
                self.stray += launch.stray[:3]
                self.conflicts += launch.accesses.conflicts()
                if launch.accesses.atomic:
                    self.atomics.append(launch.kernel)

        self._set_index = set_index
        builder.set_grid_idx, executor.__call__ = set_grid_idx, call

    def _ordered(self, kernel: Callable[..., Any], launch: _Launch) -> Callable[..., Any]:
        """Return a kernel that collects its programs, and then runs them in another order."""
        from triton.runtime.interpreter import interpreter_builder

        def program(**arguments: Any) -> None:
            if len(launch.waiting) < launch.programs:
                return
            indices = launch.waiting
            if self._order == "backwards":
                indices.reverse()
            else:
                self._random.shuffle(indices)

            def entered(index: Index) -> None:
                dims = tuple(interpreter_builder.grid_dim)
                self._program = int(np.ravel_multi_index(index, dims))
                self._set_index(interpreter_builder, *index)

            if self._order != "interleaved":
                for index in indices:
                    entered(index)
                    kernel(**arguments)
                return
            for first in range(0, len(indices), _TOGETHER):
                self._turns = _Turns(lambda: kernel(**arguments), entered, self._random)
                try:
                    self._turns.run(indices[first : first + _TOGETHER])
                finally:
                    self._turns = None

        return program

    def _yield(self) -> None:
        if self._turns is not None:
            self._turns.pause()

    def _seen(
        self,
        kind: Kind,
        pointers: Any,
        mask: Any,
        value: Any = None,
        sem: Any = None,
        scope: Any = None,
    ) -> Any:
        """Record an access, and return the mask of its elements that are in bounds.

        With this mask an access out of bounds does not crash the process.
        """
        if self._launch is None:
            return mask
        wanted = np.broadcast_to(mask.data, np.shape(pointers.data)).astype(bool)
        allowed = self._launch.inside(np.asarray(pointers.data), wanted, _bytes(pointers), kind)
        self._noted(kind, pointers, allowed, sem, scope, value)
        return type(mask)(allowed, mask.dtype)

    def _noted(
        self,
        kind: Kind,
        pointers: Any,
        mask: np.ndarray,
        sem: Any,
        scope: Any,
        value: Any = None,
    ) -> None:
        if self._launch is None:
            return
        places = np.asarray(pointers.data)
        values = None if value is None else np.broadcast_to(value.data, places.shape)[mask]
        self._launch.accesses.note(
            kind, places[mask], values, _bytes(pointers), self._program, f"{sem}", f"{scope}"
        )

    def _in_bounds(self, pointers: Any) -> None:
        if self._launch is None:
            return
        places = np.asarray(pointers.data)
        wanted = np.ones(places.shape, bool)
        if not self._launch.inside(places, wanted, _bytes(pointers), Kind.ATOMIC).all():
            raise IndexError("an atomic operation out of bounds")


class _Turns:
    """Programs in threads, of which one runs at a time until it lets others run."""

    def __init__(
        self, program: Callable[[], None], enter: Callable[[Index], None], random: Random
    ) -> None:
        self._program, self._enter, self._random = program, enter, random
        self._back = threading.Semaphore(0)
        self._own: dict[int, threading.Semaphore] = {}
        self._failed: BaseException | None = None

    def run(self, indices: Sequence[Index]) -> None:
        """Run the programs of all indices to their ends."""
        going = {number: index for number, index in enumerate(indices)}
        threads = []
        self._mine = threading.local()
        for number in going:
            self._own[number] = threading.Semaphore(0)
            context = contextvars.copy_context()
            threads.append(threading.Thread(target=context.run, args=(self._one, number)))
        self._done: set[int] = set()
        for thread in threads:
            thread.daemon = True
            thread.start()
        fair = self._random.random() < 0.5  # round robin, or a random program each time
        while going and self._failed is None:
            turn = list(going) if fair else [self._random.choice(list(going))]
            for number in turn:
                self._enter(going[number])
                self._own[number].release()
                self._back.acquire()
                if number in self._done:
                    del going[number]
        if self._failed is not None:
            raise self._failed

    def pause(self) -> None:
        """Pause the program of the calling thread, and let others run."""
        number = self._mine.number
        self._back.release()
        self._own[number].acquire()

    def _one(self, number: int) -> None:
        self._own[number].acquire()
        self._mine.number = number
        try:
            self._program()
        except BaseException as error:
            self._failed = error
        self._done.add(number)
        self._back.release()


class _Launch:
    """Launch of a kernel: the programs of one grid and their accesses."""

    def __init__(self, kernel: str, bounds: dict[str, tuple[int, int]]) -> None:
        self.kernel = kernel
        self.programs = 0
        self.waiting: list[Index] = []
        self.wait: Callable[[Index], None] = self.waiting.append
        self.stray: list[str] = []
        self.accesses = Accesses(kernel)
        self._bounds = bounds

    def sized(self, programs: int) -> None:
        """Set the number of programs."""
        self.programs = self.accesses.programs = programs

    def inside(self, addresses: np.ndarray, mask: np.ndarray, size: int, kind: Kind) -> np.ndarray:
        """Return the mask of the elements in bounds, and record the others."""
        found = np.zeros(addresses.shape, bool)
        for first, behind in self._bounds.values():
            found |= (addresses >= np.uint64(first)) & (addresses + np.uint64(size) <= behind)
        if (mask & ~found).any():
            verb = "loads" if kind in (Kind.READ, Kind.ATOMIC_READ) else "stores"
            self._note_stray(addresses[mask & ~found], verb)
        return mask & found

    def _note_stray(self, addresses: np.ndarray, verb: str) -> None:
        place = int(addresses[0])

        def distance(name: str) -> tuple[int, str]:
            first, behind = self._bounds[name]
            if place < first:
                return first - place, f"{first - place} bytes before {name}"
            return place - behind, f"{max(0, place - behind)} bytes behind the end of {name}"

        where = min(map(distance, self._bounds), default=(0, "nowhere near a tensor"))[1]
        self.stray.append(f"{self.kernel} {verb} {len(addresses)} values, the first {where}")


def _bytes(pointers: Any) -> int:
    bits: int = pointers.get_element_ty().primitive_bitwidth
    return max(1, bits // 8)


def _tensors(named: list[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among a kernel's arguments, also those that Triton has wrapped."""
    for name, value in named:
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, tuple | list):
            yield from _tensors([(name, each) for each in value])
        elif hasattr(value, "base"):
            yield from _tensors([(name, value.base)])
