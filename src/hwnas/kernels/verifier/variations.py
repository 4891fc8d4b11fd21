"""Variations of inputs that a wrong kernel may ignore: options, lengths, and single values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import Generator, Tensor

from hwnas.kernels.operator import Inputs, Sizes
from hwnas.kernels.suite.tolerance import TOLERANCES

__all__ = [
    "all_options",
    "crowded_sizes",
    "each_alone",
    "large_sizes",
    "largest_sizes",
    "on_a_grid",
    "similar_inputs",
    "smallest_sizes",
    "switch_sizes",
]

_ELEMENTS = 30_000  # largest product of sizes, which bounds the time that the interpreter takes
_ALL_ELEMENTS = 100_000  # likewise, where all sizes are large at once
_LENGTHS = ((65, 120), (260, 520), (1025, 1400))
_POWERS = ((), (512,), (1024,))  # a kernel may have a code path of its own for these
_PAIRS = 40
_MOST = (4100, 4400)
_WINDOWS = ("kernel", "kernel_size", "window", "stride", "dilation", "groups", "gates", "blocks")


def switch_sizes(listed: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes with each combination of up to three switches: sizes that are only 0 or 1."""
    base = _base(listed)
    switches = [n for n in base if max(each.get(n, 0) for each in listed) <= 1]
    switches = [n for n in switches if min(each.get(n, 0) for each in listed) == 0][:3]
    return [
        {**base, **dict(zip(switches, values, strict=True))}
        for values in itertools.product((1, 0), repeat=len(switches))
    ]


def smallest_sizes(listed: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes for calls that take little time, in the order in which they should be tried.

    Sizes of 1 come last: centring or normalising a single value gives the same for every value.
    """
    base = min(listed, key=_product)
    return [
        *({name: min(size, most) for name, size in base.items()} for most in (2, 3, 4, 8)),
        base,
        {name: min(size, 1) for name, size in base.items()},
    ]


def large_sizes(listed: Sequence[Sizes], random: Random) -> Iterator[tuple[int, list[Sizes]]]:
    """Yield sizes in which one length spans several blocks, and is a multiple of blocks or not.

    In the last sizes all lengths are large, as far as that does not take too long.

    Yields:
        Size class from 0 to 2, and such sizes in the order in which they should be tried; multiples
        of blocks come after other lengths.
    """
    base = _base(listed)
    grown = [name for name in base if _grows(name, listed)]
    for name in grown:
        for place, (low, high) in enumerate(_LENGTHS):
            lengths = random.randrange(low | 1, high, 2), _in_blocks(low, high, random)
            for length in (*lengths, *_POWERS[place]):
                yield place, _with_length(base, name, length)
    if len(grown) > 1:
        most = int(_ALL_ELEMENTS ** (1 / len(grown)))
        longer = {name: random.randrange(most * 4 // 5 | 1, most + 1, 2) for name in grown}
        yield 2, [{**base, **longer}]
        step = 64 if most >= 128 else 16
        blocks = max(1, most * 2 // 3 // step)
        yield 2, [{**base, **{name: blocks * step for name in grown}}]


def crowded_sizes(listed: Sequence[Sizes], random: Random) -> Iterator[Sizes]:
    """Yield sizes with one very large length, each in turn, and the others as large as allowed."""
    base = _base(listed)
    grown = [name for name in base if _grows(name, listed)]
    for name in grown if len(grown) > 1 else ():
        length = random.randrange(261, 340, 2)
        others = int((_ELEMENTS / length) ** (1 / (len(grown) - 1)))
        yield {**base, **{n: length if n == name else others for n in grown}}


def largest_sizes(listed: Sequence[Sizes], random: Random) -> Iterator[list[Sizes]]:
    """Yield sizes in which one length is larger still, for kernels that are fast at these."""
    base = _base(listed)
    for name in base:
        if _grows(name, listed):
            yield _with_length(base, name, random.randrange(*_MOST))


def _in_blocks(low: int, high: int, random: Random) -> int:
    """Return a multiple of blocks of 32, 64 or 128."""
    step = 128 if high > 1000 else 64
    return step * random.randrange(-(-low // step), high // step + 1) if high >= 2 * step else 96


def _with_length(base: Sizes, name: str, length: int) -> list[Sizes]:
    """Return sizes of which one has a given length; the others are kept, or reduced in steps."""
    tried: list[Sizes] = []
    for others in (None, 4, 2, 1):
        sizes: Sizes = {
            n: length if n == name else (s if others is None else min(s, others))
            for n, s in base.items()
        }
        if _product(sizes) <= _ELEMENTS and sizes not in tried:
            tried.append(sizes)
    return tried


def _grows(name: str, listed: Sequence[Sizes]) -> bool:
    """Return whether a size is a length, and neither a switch nor the size of a window."""
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
    """Yield inputs with each value of each option, and with some combinations of them.

    Args:
        inputs: Inputs to vary.
        values: Values that each option can have, by its name.
        random: Source of the random combinations.
        alone: Whether each value is tried alone, and in pairs with values of other options.
        together: Number of random combinations of all options.
    """
    if alone:
        yield from each_alone(inputs, values)
        pairs = list(_in_pairs(inputs, values))
        yield from random.sample(pairs, min(len(pairs), _PAIRS))
    mixed = list(itertools.islice(itertools.product(*values.values()), 4096))
    if values:
        for chosen in random.sample(mixed, min(len(mixed), together)):
            named = dict(zip(values, chosen, strict=True))
            yield ", ".join(f"{k}={v!r}" for k, v in named.items()), inputs | named


def each_alone(inputs: Inputs, values: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs with each value of each option, and all else unchanged."""
    for name, options in values.items():
        for value in options:
            if value is None or isinstance(inputs[name], Tensor) or value != inputs[name]:
                yield f"{name}={value!r}", inputs | {name: value}


def _in_pairs(inputs: Inputs, values: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs with two options changed, since some errors show only in combination.

    An example is an activation with the order of a residual.
    """
    for one, other in itertools.combinations(values, 2):
        for first, second in itertools.product(values[one], values[other]):
            if first != inputs[one] and second != inputs[other]:
                yield f"{one}={first!r}, {other}={second!r}", inputs | {one: first, other: second}


def on_a_grid(inputs: Inputs) -> Inputs:
    """Return inputs whose values have so few bits that all of their sums are exact."""
    gridded: dict[str, Any] = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            most = value.double().abs().max().item()
            if math.isfinite(most) and most > 0:
                step = _power_below(most) / 8
                steps = (value.double() / step).round()
                steps = torch.where((steps == 0) & (value != 0), value.double().sign(), steps)
                gridded[name] = (steps * step).to(value.dtype)
    return gridded


def similar_inputs(inputs: Inputs, random: Random) -> Iterator[tuple[str, Inputs]]:
    """Yield inputs that agree with the given ones in sums, sets of values or nearly all values."""
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
        if value.dim() > 1 and value.shape[-1] > 1:  # sums along the last axis stay the same
            turned = value.reshape(-1, value.shape[-1]).clone()
            row = random.randrange(len(turned))
            turned[row] = turned[row].roll(random.randrange(1, value.shape[-1]))
            yield f"{name} moved within a row", inputs | {name: turned.reshape(value.shape)}
        for _ in range(5):
            place = random.randrange(value.numel())
            changed = flat.clone()
            changed[place] = _another(flat, place)
            yield f"one value of {name} changed", inputs | {name: changed.reshape(value.shape)}
        if value.is_floating_point() and value.dtype in TOLERANCES:
            for times in (2, 2, 4):
                place = random.randrange(value.numel())
                changed = flat.clone()
                changed[place] = flat[place] + times * _little(flat, place)
                about = f"one value of {name} changed a little"
                yield about, inputs | {name: changed.reshape(value.shape)}
        for about, changed in _of_equal_sums(value, random):
            yield f"{about} of {name}", inputs | {name: changed}
        if value.is_floating_point():
            yield f"{name} negated", inputs | {name: -value}


def _of_equal_sums(value: Tensor, random: Random) -> Iterator[tuple[str, Tensor]]:
    """Yield values with the same sums along one axis, then with the same values along two axes."""
    place = [random.randrange(size) for size in value.shape]
    other = [
        (at + random.randrange(1, max(2, size))) % size
        for at, size in zip(place, value.shape, strict=True)
    ]
    long = [axis for axis, size in enumerate(value.shape) if size > 1]

    def corner(*axes: int) -> tuple[int, ...]:
        return tuple(other[a] if a in axes else place[a] for a in range(value.dim()))

    most = value.double().abs().max().item() if value.is_floating_point() else 0.0
    for axis in long if most else ():
        moved, step = value.double(), _power_below(most)
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


def _power_below(value: float) -> float:
    """Return the largest power of two that is at most a value above 0."""
    return 2.0 ** math.floor(math.log2(value))


def _base(listed: Sequence[Sizes]) -> Sizes:
    """Return the listed sizes of least work, with the smallest listed windows."""
    least = {n: min(each.get(n, 0) for each in listed) for n in _WINDOWS if n in listed[0]}
    smallest: Sizes = min(listed, key=_product)
    return {**smallest, **least}


def _another(flat: Tensor, place: int) -> Any:
    if flat.is_floating_point():
        return -2 * flat[place] - 2 * flat.double().abs().max().clamp(min=0.5).to(flat.dtype)
    if flat.dtype == torch.int8:
        return -flat[place] if abs(int(flat[place])) > 50 else 100
    least, most = int(flat.min()), int(flat.max())
    return least if int(flat[place]) != least else most


def _little(flat: Tensor, place: int) -> float:
    """Return the tolerance at a value, a change that a result of this value need not show."""
    tolerance = TOLERANCES[flat.dtype]
    size = abs(flat[place].item())
    return tolerance.absolute + tolerance.relative * size


def _switches(listed: Sequence[Sizes]) -> set[str]:
    return {n for n in listed[0] if {each.get(n, 0) for each in listed} <= {0, 1}}


def _product(sizes: Sizes) -> int:
    return math.prod(max(1, size) for size in sizes.values())
