"""Detection of conflicting accesses of the programs of one grid to the same address.

Each access is stored with its program, the program's clock, and what the program knew of the clocks
of the other programs, as in FastTrack (Flanagan and Freund, PLDI 2009). A program learns the clocks
of others by an atomic operation with acquire semantics on an address where these had one with
release semantics. Two accesses to an address are in conflict if neither program knew of the other
access, one of them writes, and they are not both atomic. So an atomic operation orders what comes
before it in one program and after it in the other, and nothing else. With relaxed semantics, or in
the scope of a program, it orders nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

__all__ = ["Accesses", "Kind"]


class Kind(IntEnum):
    """Kind of a memory access."""

    READ = 0
    WRITE = 1
    ATOMIC = 2
    ATOMIC_READ = 3


@dataclass(frozen=True)
class _Event:
    kind: Kind
    places: np.ndarray
    values: np.ndarray
    size: int
    program: int
    clock: int
    known: int


class Accesses:
    """Memory accesses of the programs of one grid, in the order in which they were made.

    Attributes:
        programs: Number of programs; 1 until it is known.
        atomic: Whether there was an atomic operation.
    """

    def __init__(self, kernel: str) -> None:
        self.programs = 1
        self.atomic = False
        self._kernel = kernel
        self._events: list[_Event] = []
        self._found: dict[str, None] = {}
        self._clock: dict[int, int] = {}
        self._known: list[np.ndarray] = []
        self._knows: dict[int, int] = {}
        self._released: dict[int, np.ndarray] = {}

    def note(
        self,
        kind: Kind,
        places: np.ndarray,
        values: np.ndarray | None,
        size: int,
        program: int,
        semantics: str = "",
        scope: str = "",
    ) -> None:
        """Record an access of a program to byte addresses, of `size` bytes at each of them."""
        places = np.ascontiguousarray(places, np.uint64).reshape(-1)
        if not len(places):
            return
        if not self._known:
            self._known.append(np.zeros(self.programs, np.int32))
        atomic = kind in (Kind.ATOMIC, Kind.ATOMIC_READ)
        self.atomic |= atomic
        if atomic and "CTA" in scope.upper():  # not atomic for threads of other programs
            kind = Kind.WRITE if kind is Kind.ATOMIC else Kind.READ
            semantics = "RELAXED"
        name = semantics.upper()
        if atomic and "ACQUIRE" in name:
            self._acquire(places, program)
        bits = np.zeros(len(places), np.uint64) if values is None else _bits(values)
        if kind is Kind.WRITE and len(places) > 1:
            self._look_within(places, bits)
        clock = self._clock.setdefault(program, 1)
        known = self._knows.get(program, 0)
        self._events.append(_Event(kind, places, bits, size, program, clock, known))
        if kind is Kind.ATOMIC and "RELEASE" in name:
            self._release(places, program)

    def conflicts(self) -> list[str]:
        """Return the conflicts between programs that run at the same time, as texts."""
        if any(event.kind is not Kind.READ for event in self._events):
            self._look_between()
        return list(self._found)

    def _acquire(self, places: np.ndarray, program: int) -> None:
        learnt = {id(v): v for p in places.tolist() if (v := self._released.get(p)) is not None}
        if learnt:
            before = self._known[self._knows.get(program, 0)]
            now = np.maximum.reduce([before, *learnt.values()])
            if (now != before).any():
                self._knows[program] = len(self._known)
                self._known.append(now)

    def _release(self, places: np.ndarray, program: int) -> None:
        """Publish a program's clocks at addresses, and advance the program's own clock.

        A program that acquires one of these addresses knows of the accesses before the release, and
        of none after it.
        """
        mine = self._known[self._knows.get(program, 0)].copy()
        mine[program] = self._clock[program]
        merged: dict[int, np.ndarray] = {}
        for place in places.tolist():
            before = self._released.get(place)
            if before is None:
                self._released[place] = mine
            else:
                new = merged.get(id(before))
                merged[id(before)] = new = np.maximum(before, mine) if new is None else new
                self._released[place] = new
        self._clock[program] += 1

    def _look_within(self, places: np.ndarray, values: np.ndarray) -> None:
        order = np.argsort(places, kind="stable")
        same = places[order][1:] == places[order][:-1]
        if (same & (values[order][1:] != values[order][:-1])).any():
            self._found[f"{self._kernel}: a program writes several values to one address"] = None

    def _look_between(self) -> None:
        events = self._events
        unit = int(np.gcd.reduce([event.size for event in events]))
        parts = [event.size // unit for event in events]
        counts = [len(event.places) * n for event, n in zip(events, parts, strict=True)]
        places = np.concatenate(
            [_spread(event.places, n, unit) for event, n in zip(events, parts, strict=True)]
        )
        which = np.repeat(np.arange(len(events)), counts)
        kinds = np.array([event.kind for event in events])[which]
        written = np.unique(places[(kinds == Kind.WRITE) | (kinds == Kind.ATOMIC)])
        taken = np.isin(places, written)
        values = np.concatenate(
            [np.repeat(event.values, n) for event, n in zip(events, parts, strict=True)]
        )[taken]
        places, which, kinds = places[taken], which[taken], kinds[taken]
        order = np.argsort(places, kind="stable")
        places, which, kinds, values = places[order], which[order], kinds[order], values[order]
        starts = np.concatenate([[True], places[1:] != places[:-1]])
        group = np.cumsum(starts)
        look = _Look(events, self._known, which, group)
        written = kinds == Kind.WRITE
        before = _last(written, group)
        apart = look.unordered(before)
        same = (values == values[before]) & written
        self._find(apart & written & ~same, "programs write different values to the same address")
        self._find(apart & (kinds == Kind.READ), "a program reads what another one writes")
        mixed = apart & ((kinds == Kind.ATOMIC) | (kinds == Kind.ATOMIC_READ))
        update = _last(kinds == Kind.ATOMIC, group)
        mixed |= look.unordered(update) & (kinds <= Kind.WRITE)
        seen = _last(kinds == Kind.ATOMIC_READ, group)
        mixed |= look.unordered(seen) & written
        self._find(mixed, "a program uses atomic operations where another one does not")
        # A read is compared with the next write only: a later access is ordered after that write,
        # or its conflict with that write is found.
        changed = written | (kinds == Kind.ATOMIC)
        later = len(changed) - 1 - _last(changed[::-1], group[::-1])[::-1]
        reads = (kinds == Kind.READ) & (later != np.arange(len(kinds)))
        clash = look.later_unordered(later) & reads
        self._find(clash, "a program reads what another one writes")

    def _find(self, where: np.ndarray, text: str) -> None:
        if where.any():
            self._found[f"{self._kernel}: {text}"] = None


class _Look:
    """Comparison of accesses with other accesses to the same address."""

    def __init__(
        self, events: list[_Event], known: list[np.ndarray], which: np.ndarray, group: np.ndarray
    ) -> None:
        self._program = np.array([event.program for event in events])[which]
        self._clock = np.array([event.clock for event in events])[which]
        self._knows = np.array([event.known for event in events])[which]
        self._known, self._group = known, group

    def unordered(self, before: np.ndarray) -> np.ndarray:
        """Return whether each access could coincide with an earlier one, given by its index."""
        own = np.arange(len(before))
        return np.asarray(self._clash(before, own) & (before != own))

    def later_unordered(self, later: np.ndarray) -> np.ndarray:
        """Return whether each access could coincide with a later one, given by its index."""
        return self._clash(np.arange(len(later)), later)

    def _clash(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        clash = np.flatnonzero(self._program[first] != self._program[second])
        first, second = first[clash], second[clash]
        found = np.zeros(len(self._program), bool)
        if not len(clash):
            return found
        order = np.argsort(self._knows[second], kind="stable")
        states, starts = np.unique(self._knows[second][order], return_index=True)
        for state, same in zip(states.tolist(), np.split(order, starts[1:]), strict=True):
            knew = self._known[state][self._program[first[same]]] >= self._clock[first[same]]
            found[clash[same[~knew]]] = True
        return found


def _last(chosen: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each element the index of the last chosen one before it in the same group.

    An element without such a predecessor gets its own index.
    """
    own = np.arange(len(chosen))
    at = np.maximum.accumulate(np.where(chosen, own, -1))
    at = np.concatenate([[-1], at[:-1]])
    there = (at >= 0) & (group[at] == group)
    return np.where(there, at, own)


def _spread(places: np.ndarray, parts: int, unit: int) -> np.ndarray:
    if parts == 1:
        return places
    steps = np.arange(parts, dtype=np.uint64) * np.uint64(unit)
    return np.asarray(places[:, None] + steps).reshape(-1)


def _bits(values: np.ndarray) -> np.ndarray:
    """Return values as integers that are equal where the bits of the values are equal."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return np.asarray(flat.view(f"u{flat.dtype.itemsize}"), np.uint64)
