"""Inputs that differ in what a wrong kernel may leave out: options, lengths, and single values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Generator, Tensor

from hwnas.kernels.operator import Inputs, Sizes

__all__ = [
    "all_options",
    "large_sizes",
    "of_few_bits",
    "similar_inputs",
    "smallest_sizes",
    "switch_sizes",
]

_ELEMENTS = 30_000  # product of sizes, which bounds the time that the interpreter takes
_OPTION_ELEMENTS = 25_000  # likewise, for each value of an option
_ALL_ELEMENTS = 40_000  # likewise, where all sizes are large at once
_LENGTHS = ((65, 120), (260, 520), (1025, 1400))
_ALIGNED = ((), (256, 512), (1024,))  # multiples of all blocks, for which some kernels differ
_WINDOWS = ("kernel", "kernel_size", "window", "stride", "dilation", "groups", "gates", "blocks")


def switch_sizes(listed: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes with each combination of switches: of sizes that are never more than 1.

    They are the most work of those listed that does not take long, so that outputs are many values.
    """
    quick = [sizes for sizes in listed if _product(sizes) <= _OPTION_ELEMENTS]
    base = _with_least_windows(max(quick, key=_product) if quick else _base(listed), listed)
    switches = [n for n in base if max(each.get(n, 0) for each in listed) <= 1]
    switches = [n for n in switches if min(each.get(n, 0) for each in listed) == 0][:3]
    return [
        {**base, **dict(zip(switches, values, strict=True))}
        for values in itertools.product((1, 0), repeat=len(switches))
    ]


def smallest_sizes(listed: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes for calls that take no time, the smallest first; not all may be taken."""
    base = min(listed, key=_product)
    return [
        *({name: min(size, most) for name, size in base.items()} for most in (1, 2, 3, 4, 8)),
        base,
    ]


def large_sizes(listed: Sequence[Sizes], random: Random) -> Iterator[tuple[int, list[Sizes]]]:
    """Yield sizes of which one is several times those of blocks: no multiple of them, then one.

    At last all of them are, as far as that does not take too long.

    Yields:
        How large it is, from 0 to 2, and such sizes, in the order in which they should be tried.
    """
    base = _base(listed)
    grown = [name for name in base if _grows(name, listed)]
    for name in grown:
        for place, (low, high) in enumerate(_LENGTHS):
            yield place, _lengthened(base, name, random.randrange(low | 1, high, 2))
            if _ALIGNED[place]:
                yield place, _lengthened(base, name, random.choice(_ALIGNED[place]))
    if len(grown) > 1:
        most = int(_ALL_ELEMENTS ** (1 / len(grown)))
        longer = {name: random.randrange(most * 3 // 4 | 1, most, 2) for name in grown}
        yield 2, [{**base, **longer}]


def _lengthened(base: Sizes, name: str, length: int) -> list[Sizes]:
    """Sizes of which one has a length, with smaller and smaller others."""
    tried: list[Sizes] = []
    for most in (None, 4, 2, 1):
        others = {n: s if most is None else min(s, most) for n, s in base.items()}
        sizes = {**others, name: length}
        if _product(sizes) <= _ELEMENTS and sizes not in tried:
            tried.append(sizes)
    return tried


def _grows(name: str, listed: Sequence[Sizes]) -> bool:
    """Whether a size is a length, and neither a switch nor that of a window."""
    most = max(each.get(name, 0) for each in listed)
    if most <= 1 and name in _switches(listed):
        return False
    return not (name in _WINDOWS and most <= 16)


def all_options(
    inputs: Inputs,
    values: Mapping[str, Sequence[Any]],
    random: Random,
    *,
    alone: bool,
    together: int,
) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs with each value of each option, and some of them together.

    Args:
        inputs: What is varied.
        values: That an option can have, by its name.
        random: Chooses which go together.
        alone: Whether each value is tried for itself.
        together: How many that are chosen at random are tried together.
    """
    for name, options in values.items() if alone else ():
        for value in options:
            if value != inputs[name]:
                yield f"{name}={value!r}", inputs | {name: value}
    mixed = list(itertools.islice(itertools.product(*values.values()), 4096))
    if values:
        for chosen in random.sample(mixed, min(len(mixed), together)):
            named = dict(zip(values, chosen, strict=True))
            yield ", ".join(f"{k}={v!r}" for k, v in named.items()), inputs | named


def of_few_bits(inputs: Inputs) -> Inputs:
    """Return inputs with floating-point values of seven bits, whose sums are exact in any order.

    What is not zero stays so, and keeps its sign.
    """
    return {name: _of_few_bits(value) for name, value in inputs.items()}


def _of_few_bits(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.any():
        return value
    exact = value.double()
    unit = _largest_power(exact) / 64
    steps = (exact / unit).round()
    steps = torch.where((steps == 0) & (exact != 0), exact.sign(), steps)
    return (steps * unit).to(value.dtype)


def _largest_power(exact: Tensor) -> float:
    """The largest power of two that is at most the largest value; 1 where all are zero."""
    most = exact.abs().max().item()
    return 2.0 ** math.floor(math.log2(most)) if most else 1.0


def similar_inputs(inputs: Inputs, random: Random) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs that agree with others in sums, sets of values or nearly all values.

    Args:
        inputs: Of few bits (`of_few_bits`), so that equal sums are the same numbers.
        random: Chooses the values.
    """
    for name, value in inputs.items():
        if not isinstance(value, Tensor) or value.numel() < 2 or value.dtype == torch.bool:
            continue
        generator = Generator().manual_seed(random.getrandbits(62))
        flat = value.reshape(-1)
        order = torch.randperm(value.numel(), generator=generator)
        yield f"values of {name} permuted", inputs | {name: flat[order].reshape(value.shape)}
        for axis in range(value.dim()):
            if value.shape[axis] > 1:
                moved = value.roll(random.randrange(1, value.shape[axis]), axis)
                yield f"{name} moved along axis {axis}", inputs | {name: moved.contiguous()}
        one, other = random.sample(range(value.numel()), 2)
        swapped = flat.clone()
        swapped[one], swapped[other] = flat[other], flat[one]
        yield f"two values of {name} swapped", inputs | {name: swapped.reshape(value.shape)}
        for _ in range(3):
            place = random.randrange(value.numel())
            changed = flat.clone()
            changed[place] = _another(flat, place)
            yield f"one value of {name} changed", inputs | {name: changed.reshape(value.shape)}
        for about, changed in _of_equal_sums(value, random):
            yield f"{about} of {name}", inputs | {name: changed}
        if value.is_floating_point():
            yield f"{name} negated", inputs | {name: -value}


def _of_equal_sums(value: Tensor, random: Random) -> Iterator[tuple[str, Tensor]]:
    """Yield values with the same sums along one axis; then with the same values along two."""
    place = [random.randrange(size) for size in value.shape]
    other = [
        (at + random.randrange(1, max(2, size))) % size
        for at, size in zip(place, value.shape, strict=True)
    ]
    long = [axis for axis, size in enumerate(value.shape) if size > 1]

    def corner(*axes: int) -> tuple[int, ...]:
        return tuple(other[a] if a in axes else place[a] for a in range(value.dim()))

    for axis in long if value.is_floating_point() else ():
        moved, step = value.double(), _largest_power(value.double())
        moved[corner()] += step
        moved[corner(axis)] -= step
        yield f"two values with the same sum along axis {axis}", moved.to(value.dtype)
    one = value[corner()]
    others = value[value != one]
    for first, second in itertools.combinations(long, 2) if len(others) else ():
        another = others[random.randrange(len(others))]
        for pair in ((one, another), (another, one)):
            square = value.clone()
            square[corner()] = square[corner(first, second)] = pair[0]
            square[corner(first)] = square[corner(second)] = pair[1]
            yield f"four values with the same ones along axes {first} and {second}", square


def _base(listed: Sequence[Sizes]) -> Sizes:
    """The sizes of least work: those listed that have it, with windows as small as any."""
    return _with_least_windows(min(listed, key=_product), listed)


def _with_least_windows(sizes: Sizes, listed: Sequence[Sizes]) -> Sizes:
    least = {n: min(each.get(n, 0) for each in listed) for n in _WINDOWS if n in listed[0]}
    return {**sizes, **least}


def _another(flat: Tensor, place: int) -> Any:
    if flat.is_floating_point():
        return -2 * flat[place] - 2 * flat.double().abs().max().clamp(min=0.5).to(flat.dtype)
    if flat.dtype == torch.int8:
        return -flat[place] if abs(int(flat[place])) > 50 else 100
    least, most = int(flat.min()), int(flat.max())
    return least if int(flat[place]) != least else most


def _switches(listed: Sequence[Sizes]) -> set[str]:
    return {n for n in listed[0] if {each.get(n, 0) for each in listed} <= {0, 1}}


def _product(sizes: Sizes) -> int:
    return math.prod(max(1, size) for size in sizes.values())
