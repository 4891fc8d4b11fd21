"""Values that a program keeps from its forward to its backward pass, and how it keeps them.

A value that the backward pass reads is kept as it is, or packed into fewer bits, or not kept at all
but computed again: an activation or a product whose inputs are kept anyway.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hwnas.deploy.finetuning.joint_graph import GraphOperator, JointGraph, ValueOf, replaced
from hwnas.deploy.finetuning.program import ProgramStep, SavedValue
from hwnas.deploy.finetuning.saved_values import (
    BITS,
    FOUR_BITS,
    GROUP,
    INDICES,
    SHAPE,
    SIGNS,
    Packing,
)

__all__ = ["KeptValues"]

_SIGN, _SHAPE = "sign", "shape"
_NEEDED = {
    "aten.threshold_backward.default": _SIGN,
    "aten.avg_pool2d_backward.default": _SHAPE,
    "aten.max_pool2d_with_indices_backward.default": _SHAPE,
}
"""What a backward operator needs of its second argument, if not all of it."""
_EXACT = {"mask": BITS, "indices": INDICES}
"""Packings that lose nothing, by the kind of a value."""
_QUICK = {
    f"aten.{name}"
    for name in ("elu.default", "gelu.default", "hardsigmoid.default", "hardswish.default",
                 "leaky_relu.default", "mish.default", "mul.Tensor", "silu.default")
}  # fmt: skip
"""Operators on single elements that are computed again rather than kept."""
_VIEWS = {
    f"aten.{name}"
    for name in ("_unsafe_view.default", "expand.default", "permute.default", "select.int",
                 "slice.Tensor", "squeeze.dims", "t.default", "transpose.int", "unsqueeze.default",
                 "view.default")
}  # fmt: skip
"""Operators whose value lies in the memory of their input."""
Place = tuple[int, tuple[int, ...]]
"""Number of a value, and the pieces of memory that it lies in."""


@dataclass(frozen=True, eq=False)
class KeptValues:
    """Values that backward operators read from before the loss.

    Attributes:
        graph: Graph of the operators.
        forward: Numbers of the operators before the backward ones, in order.
        backward: Numbers of the backward operators, in order.
        numbers: Numbers of the read values; parameters are not among them.
        packings: Way to keep each value that is packed, by number.
        recomputed: Numbers of the values that are computed again.
        packed: What is kept of each packed value, by number.
        restored: Unpacked or recomputed value, by number.
        sizes: Sizes of the pieces of memory of these, in bytes.
    """

    graph: JointGraph
    forward: Sequence[int]
    backward: Sequence[int]
    numbers: tuple[int, ...]
    packings: Mapping[int, Packing]
    recomputed: frozenset[int]
    packed: Mapping[int, Place]
    restored: Mapping[int, Place]
    sizes: Mapping[int, int]

    @classmethod
    def of(
        cls, graph: JointGraph, forward: Sequence[int], backward: Sequence[int], bits: int
    ) -> KeptValues:
        """Return the kept values of two phases of operators.

        Args:
            graph: Graph of the operators.
            forward: Numbers of the operators before the backward ones, in order.
            backward: Numbers of the backward operators, in order.
            bits: Bits of a kept activation, 32 or 4.
        """
        readers = _readers(graph, forward, backward)
        views = _with_bases(graph, readers)
        recomputed = views | _quick(graph, readers, views)
        for number in recomputed - views:
            for read in graph.operators[number].reads:
                readers[read].append(number)
        kept = {number: by for number, by in readers.items() if number not in recomputed}
        packings = _packings(graph, kept, bits)
        places = _Places(graph)
        packed, restored = places.of_packed(packings)
        restored |= places.of_recomputed(recomputed, views, restored)
        numbers, sizes = tuple(sorted(readers)), places.sizes
        return cls(graph, forward, backward, numbers, packings, recomputed, packed, restored, sizes)

    @cached_property
    def saved(self) -> tuple[SavedValue, ...]:
        """Values that are read after the loss, and what is kept of each."""
        seen = set(self.graph.fixed_storages)
        found = []
        for number in self.numbers:
            each = self.graph.operators[number]
            if number in self.recomputed:
                found.append(SavedValue(each.name, each.shape, "recomputed", 0))
                continue
            packing = self.packings.get(number)
            pieces = each.storages if packing is None else self.packed[number][1]
            new = [piece for piece in pieces if piece not in seen]
            size = sum(self.sizes.get(p, self.graph.storage_bytes.get(p, 0)) for p in new)
            plain = "as it is" if new else "view"
            form = plain if packing is None else packing.name
            found.append(SavedValue(each.name, each.shape, form, size))
            seen.update(pieces)
        return tuple(found)

    def forward_steps(self) -> Iterator[ProgramStep]:
        """Yield the forward steps, each with the packing of its value after it."""
        for number in self.forward:
            yield self._step(number, {})
            if (packing := self.packings.get(number)) is not None:
                new, pieces = self.packed[number]
                arguments: tuple[Any, Any] = ((ValueOf(number),), {})
                name = f"keep in {packing.name}"
                yield ProgramStep(name, packing.pack, arguments, (number,), new, pieces)

    def backward_steps(self) -> Iterator[ProgramStep]:
        """Yield the backward steps; values are restored before they are first read."""
        renamed: dict[int, int] = {}
        for number in self.backward:
            for read in self.graph.operators[number].reads:
                yield from self._restoring(read, renamed)
            yield self._step(number, renamed)

    def _restoring(self, number: int, renamed: dict[int, int]) -> Iterator[ProgramStep]:
        """Yield the steps that restore a value, unless it is kept as it is or there already."""
        if number not in self.restored or number in renamed:
            return
        new, pieces = self.restored[number]
        if number in self.recomputed:
            for read in self.graph.operators[number].reads:
                yield from self._restoring(read, renamed)
            yield replace(self._step(number, renamed), number=new, pieces=pieces)
        else:
            packing, (packed, _) = self.packings[number], self.packed[number]
            arguments: tuple[Any, Any] = (ValueOf(packed), self.graph.operators[number].shape), {}
            name = f"restore from {packing.name}"
            yield ProgramStep(name, packing.unpack, arguments, (packed,), new, pieces)
        renamed[number] = new

    def _step(self, number: int, renamed: Mapping[int, int]) -> ProgramStep:
        each = self.graph.operators[number]
        assert each.function is not None
        arguments, reads = each.arguments, each.reads
        if renamed and not renamed.keys().isdisjoint(reads):
            arguments = replaced(arguments, lambda n: ValueOf(renamed.get(n, n)))
            reads = tuple(renamed.get(n, n) for n in reads)
        return ProgramStep(each.name, each.function, arguments, reads, number, each.storages)


class _Places:
    """Maker of values beside those of a graph.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: JointGraph) -> None:
        self._graph = graph
        self._number, self._piece = max(graph.operators) + 1, max(graph.storage_bytes) + 1
        self.sizes: dict[int, int] = {}

    def of_packed(
        self, packings: Mapping[int, Packing]
    ) -> tuple[dict[int, Place], dict[int, Place]]:
        """Return what is kept of packed values, and the unpacked values, by number."""
        packed, restored = {}, {}
        for number, packing in packings.items():
            elements = math.prod(self._graph.operators[number].shape)
            packed[number] = self.new(packing.sizes(elements))
            restored[number] = self.new([packing.restored_bytes(elements)])
        return packed, restored

    def of_recomputed(
        self, recomputed: Iterable[int], views: Collection[int], restored: Mapping[int, Place]
    ) -> dict[int, Place]:
        """Return values that are computed again, by number; views lie where their base does."""
        found: dict[int, Place] = {}
        for number in sorted(recomputed):
            each = self._graph.operators[number]
            if number in views:
                own = (each.reads[0], each.storages)
                _, pieces = found.get(each.reads[0], restored.get(each.reads[0], own))
                found[number] = self.view(pieces)
            else:
                sizes = [self._graph.storage_bytes[piece] for piece in each.storages]
                found[number] = self.new(sizes)
        return found

    def new(self, sizes: Sequence[int]) -> Place:
        """Return a value in pieces of memory of given sizes in bytes."""
        pieces = tuple(range(self._piece, self._piece + len(sizes)))
        self.sizes |= dict(zip(pieces, sizes, strict=True))
        self._piece += len(sizes)
        return self.view(pieces)

    def view(self, pieces: tuple[int, ...]) -> Place:
        """Return a value in the memory of another one."""
        self._number += 1
        return self._number - 1, pieces


def _readers(
    graph: JointGraph, forward: Sequence[int], backward: Sequence[int]
) -> dict[int, list[int]]:
    """Return the backward operators that read each kept value, by its number."""
    before = {*forward, graph.images, graph.targets}
    found: dict[int, list[int]] = {}
    for number in backward:
        for read in graph.operators[number].reads:
            pieces = graph.operators[read].storages
            if read in before and not graph.fixed_storages.issuperset(pieces):
                found.setdefault(read, []).append(number)
    return found


def _with_bases(graph: JointGraph, readers: dict[int, list[int]]) -> frozenset[int]:
    """Return the read values that are views; what they are views of is then read, too."""
    waiting, found = [*readers], set()
    while waiting:
        number = waiting.pop()
        each = graph.operators[number]
        if each.name in _VIEWS and number not in found:
            [base] = each.reads
            found.add(number)
            readers.setdefault(base, []).append(number)
            waiting.append(base)
    return frozenset(found)


def _quick(
    graph: JointGraph, readers: Mapping[int, Sequence[int]], views: Collection[int]
) -> frozenset[int]:
    """Return the read values that are quickly computed of values that are read, too.

    Values that share their memory with another one are not among them.
    """
    users = _users(graph, [number for number in readers if number not in views])
    found = set()
    for number in readers:
        each = graph.operators[number]
        alone = len(each.storages) == 1 and users[each.storages[0]] == 1
        if each.name in _QUICK and alone and all(read in readers for read in each.reads):
            found.add(number)
    return frozenset(found)


def _users(graph: JointGraph, numbers: Iterable[int]) -> Counter[int]:
    """Return how many of some values lie in each piece of memory."""
    return Counter(piece for number in numbers for piece in graph.operators[number].storages)


def _packings(
    graph: JointGraph, readers: Mapping[int, Sequence[int]], bits: int
) -> dict[int, Packing]:
    """Return how values are kept that are not kept as they are, by number.

    Values that share their memory are kept as they are: that of the others would stay anyway.
    """
    users = _users(graph, readers)
    found = {}
    for kept, reading in readers.items():
        pieces = graph.operators[kept].storages
        if len(pieces) == 1 and users[pieces[0]] == 1:
            packing = _packing(graph, kept, reading, bits)
            if packing is not None:
                found[kept] = packing
    return found


def _packing(graph: JointGraph, kept: int, reading: Sequence[int], bits: int) -> Packing | None:
    each = graph.operators[kept]
    if each.kind in _EXACT:
        return _EXACT[each.kind]
    if each.kind != "activation":
        return None
    needs = {_need(graph.operators[number], kept) for number in reading}
    if needs <= {_SIGN, _SHAPE}:
        return SIGNS if _SIGN in needs else SHAPE
    return FOUR_BITS if bits == 4 and math.prod(each.shape) >= GROUP else None


def _need(operator: GraphOperator, kept: int) -> str:
    """Return what an operator needs of a value; empty if all of it."""
    arguments, _ = operator.arguments
    places = [place for place, each in enumerate(arguments) if each == ValueOf(kept)]
    return _NEEDED.get(operator.name, "") if places == [1] else ""
