"""Lifetimes of the values of a program, and the memory that follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hwnas.deploy.finetuning.program import ProgramStep

__all__ = ["peak_bytes", "with_frees"]


def with_frees(steps: Sequence[ProgramStep], stay: Iterable[int]) -> list[ProgramStep]:
    """Return steps that free each value after the last step that reads it.

    Args:
        steps: Steps in order.
        stay: Numbers of values that are never freed.
    """
    last = {number: place for place, step in enumerate(steps) for number in step.reads}
    for number in stay:
        last.pop(number, None)
    frees: dict[int, list[int]] = {}
    for number, place in last.items():
        frees.setdefault(place, []).append(number)
    return [_freeing(step, frees[i]) if i in frees else step for i, step in enumerate(steps)]


def _freeing(step: ProgramStep, frees: Sequence[int]) -> ProgramStep:
    # `dataclasses.replace` takes several times as long, and thousands of schemes are compiled.
    arguments = step.arguments, step.reads, step.number, step.pieces
    return ProgramStep(step.name, step.function, *arguments, tuple(frees))


def peak_bytes(steps: Sequence[ProgramStep], sizes: Mapping[int, int], at_first: int) -> int:
    """Return the most bytes that exist at once, while one of the steps runs.

    Args:
        steps: Steps in order, with what they free.
        sizes: Size of each piece of memory in bytes; pieces without a size do not count.
        at_first: Bytes that exist all the time.
    """
    pieces = {step.number: step.pieces for step in steps}
    users: Counter[int] = Counter()
    now = most = at_first
    for step in steps:
        for piece in step.pieces:
            now += 0 if users[piece] else sizes.get(piece, 0)
            users[piece] += 1
        most = max(most, now)
        for number in step.frees:
            for piece in pieces[number]:
                users[piece] -= 1
                now -= 0 if users[piece] else sizes.get(piece, 0)
    return most
