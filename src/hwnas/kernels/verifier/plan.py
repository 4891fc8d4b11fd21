"""Which calls are made of a kernel, and of what each is meant to show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

import torch
from torch import Generator, Tensor

from hwnas.errors import KernelError
from hwnas.kernels.operator import Inputs, Sizes, dtype_name
from hwnas.kernels.verifier.calls import FENCED, MODES, NAN, SMALL, Call
from hwnas.kernels.verifier.specification import Specification
from hwnas.kernels.verifier.variations import (
    all_options,
    large_sizes,
    of_few_bits,
    similar_inputs,
    smallest_sizes,
    switch_sizes,
)

__all__ = ["LATE", "LOW_BITS", "Question", "Trial", "plan"]

_LENGTHS = (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 33, 37, 41, 43, 47, 53, 59, 61, 67)
_VARIED, _TRIED = 4, 24
# What needs the interpreter, tensors that are on no card, or pages of memory.
_ON_CPU = (
    "backwards",
    "shuffled",
    "interleaved",
    "orders",
    "crowd",
    "disguised",
    "fence",
    "readonly",
)
LATE = ("large", "crowd", "many")  # aims of calls that take long
_WIDER = 8  # times as large as examples, which are of about 1
_CHUNK = 125  # calls that are told of together
LOW_BITS = 2.0**-12  # relative; half of what float16, and TF32, can still tell apart is twice that


@dataclass(frozen=True)
class Question:
    """Inputs whose outputs a kernel has to know.

    Attributes:
        about: What is special about them.
        sizes: Of the inputs.
        dtype: Of the first input.
        seed: That the file or operator made them from.
        inputs: By name.
    """

    about: str
    sizes: Sizes
    dtype: torch.dtype
    seed: int
    inputs: Inputs

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
        return f"{dtype_name(self.dtype)} at {sizes} (seed {self.seed})"


@dataclass(frozen=True)
class Trial:
    """A call and why it is made.

    Attributes:
        aim: Name of what it shall show.
        question: Whose outputs are right.
        call: Without a word of these.
        plain: Whether it is made in a process in which nothing of PyTorch or Triton is replaced.
    """

    aim: str
    question: Question
    call: Call
    plain: bool = False


def plan(specification: Specification, random: Random, *, on_card: bool, calls: int) -> list[Trial]:
    """Return all calls of a kernel, in their order; those come last that can end its process.

    Args:
        specification: What the kernel is to compute.
        random: Draws all inputs.
        on_card: Whether it runs on a GPU, where nobody sees single accesses to memory.
        calls: How often it is called one after the other, at least.

    Raises:
        KernelError: There are no inputs of sizes that are listed.
    """
    listed = [*specification.sizes, specification.sizes[0]]
    others = [_other_sizes(specification.sizes, random) for _ in range(_TRIED)]
    sizes = [*listed, *(each for each in others if each not in listed)]
    asked = [
        (each, dtype, random.getrandbits(62)) for dtype in specification.dtypes for each in sizes
    ]
    made = iter(zip(asked, specification.examples(asked), strict=True))
    trials: list[Trial] = []
    for _ in specification.dtypes:
        questions = [_question(*next(made)) for _ in listed]
        varied = [_question(*each) for each in islice(made, len(sizes) - len(listed)) if each[1]]
        trials += [_trial("values", question) for question in questions[:-1]]
        trials += [_trial("shapes", question) for question in varied[:_VARIED]]
        trials += _orders([*questions[1:-1], *varied[:2]], random)
        trials += _closely(questions[0], questions[-1], random)
        trials += _plainly(questions, varied, random)
    trials += _options(specification, random)
    trials += _large(specification, random)
    trials += _similar(specification, random)
    trials += _many(specification, random, calls)
    if on_card:
        trials = [trial for trial in trials if trial.aim not in _ON_CPU]
    return sorted(trials, key=lambda trial: trial.call.layout in FENCED)


def _question(asked: tuple[Sizes, torch.dtype, int], inputs: Inputs | None) -> Question:
    sizes, dtype, seed = asked
    if inputs is None:
        raise KernelError(f"there are no inputs of {dict(sizes)} in {dtype_name(dtype)}")
    return Question("", sizes, dtype, seed, inputs)


def _trial(aim: str, question: Question, **options: Any) -> Trial:
    return Trial(aim, question, Call(question.inputs, **{"slot": f"{id(question)}"} | options))


def _other_sizes(listed: Sequence[Sizes], random: Random) -> Sizes:
    """Sizes like some that are listed: one, primes, not multiples of blocks.

    What is never more than 1 is a switch, and stays.
    """
    base = random.choice(listed)
    work = 2 * max(math.prod(max(1, size) for size in sizes.values()) for sizes in listed)
    other = dict(base)
    for name in random.sample(sorted(base), len(base)):
        most = max(sizes.get(name, 0) for sizes in listed)
        others = math.prod(max(1, size) for size in other.values()) // max(1, other[name])
        lengths = [n for n in _LENGTHS if n <= max(3, 1.5 * most) and n * others <= work]
        if most > 1 and lengths:
            other[name] = random.choice(lengths)
    return other


def _closely(first: Question, second: Question, random: Random) -> Iterator[Trial]:
    """All that is done with inputs of one size and type."""
    slot = {"slot": f"{id(first)} again"}
    yield _trial("first", first, **slot)
    yield _trial("again", first, **slot)
    yield _trial("backwards", first, **slot, backwards=True)
    for order in ("shuffled", "interleaved", "interleaved"):
        yield _trial(order, first, **slot, order=order, order_seed=random.getrandbits(30))
    yield _trial("around", first, **slot, around=SMALL)
    yield _trial("unwritten", first, **slot, fresh=SMALL)
    yield _trial("disguised", first, **slot, disguised=True)
    yield _trial("refilled", second, **slot)
    yield _trial("elsewhere", first, slot=f"{id(first)} elsewhere", around=NAN)
    for layout in ("shifted", "apart", "transposed"):
        yield _trial("layouts", second, slot=f"{id(first)} {layout}", layout=layout)
    for question in _extremes(first, random):
        yield _trial("extremes", question, **slot)
    for question in _not_finite(first, random):
        yield _trial("not finite", question, **slot)
    for question in _low_bits(first):
        yield _trial("low bits", question, **slot)
    for layout in FENCED:
        yield _trial("readonly" if layout == "readonly" else "fence", second, layout=layout)


def _orders(questions: Sequence[Question], random: Random) -> Iterator[Trial]:
    """Programs in other orders, at sizes of which some have more of them than others."""
    for question in questions:
        seed = random.getrandbits(30)
        yield _trial("orders", question, order="interleaved", order_seed=seed)
        yield _trial("orders", question, order="shuffled", order_seed=seed)


def _plain_trial(aim: str, question: Question, **options: Any) -> Trial:
    return replace(_trial(aim, question, **options), plain=True)


def _plainly(
    questions: Sequence[Question], varied: Sequence[Question], random: Random
) -> Iterator[Trial]:
    """What the watched process is asked, in short, where nothing is watched or replaced."""
    first, second = questions[0], questions[-1]
    slot = {"slot": f"{id(first)} plain"}
    for question in (first, first, second):
        yield _plain_trial("plain", question, **slot)
    for question in (*questions[1:-1], *varied[:2]):
        yield _plain_trial("plain", question)
    for layout in ("shifted", "transposed"):
        yield _plain_trial("plain", second, slot=f"{id(first)} {layout} plain", layout=layout)
    for question in (*_extremes(first, random), *_not_finite(first, random)):
        yield _plain_trial("plain extremes", question, **slot)
    for mode in MODES:
        yield _plain_trial("modes", second, slot=f"{id(first)} {mode}", mode=mode)


def _made(
    specification: Specification, sizes: Sequence[Sizes], dtype: torch.dtype, random: Random
) -> list[Question]:
    """Questions of those sizes that are taken."""
    asked = [(each, dtype, random.getrandbits(62)) for each in sizes]
    examples = specification.examples(asked)
    return [
        Question("", *each, inputs)
        for each, inputs in zip(asked, examples, strict=True)
        if inputs is not None
    ]


def _options(specification: Specification, random: Random) -> Iterator[Trial]:
    """Every value of every option, with all and with none of what can be left out."""
    for count, dtype in enumerate(specification.dtypes):
        wanted = switch_sizes(specification.sizes)
        bases = _made(specification, wanted, dtype, random)
        bases = bases or _made(specification, specification.sizes[:1], dtype, random)
        for place, base in enumerate(bases[: None if count == 0 else 1]):
            yield _plain_trial("options", base)
            values = specification.options(base.inputs)
            alone = count == place == 0
            together = 16 if alone else 6
            varied = all_options(base.inputs, values, random, alone=alone, together=together)
            for about, inputs in varied:
                question = replace(base, about=about, inputs=inputs)
                yield _plain_trial("options", question)
                if place == 0:
                    yield from _wider(question)


def _wider(question: Question) -> Iterator[Trial]:
    """The same options where values reach both ends of every activation."""
    name, value = _main(question)
    if value.is_floating_point():
        about = f"{question.about}, {name} times {_WIDER}"
        yield _plain_trial("wide options", _with(question, about, name, value * _WIDER))


def _large(specification: Specification, random: Random) -> Iterator[Trial]:
    """Lengths of several blocks, one at a time; the shortest of them are watched, too."""
    dtypes = specification.dtypes
    wanted = []
    for place, tried in large_sizes(specification.sizes, random):
        shortest = place == 0
        if place > specification.longest:
            continue
        for dtype in dtypes if shortest else [random.choice(dtypes)]:
            wanted.append((tried, dtype, shortest and dtype is dtypes[0]))
    asked = [
        (sizes, dtype, random.getrandbits(62)) for tried, dtype, _ in wanted for sizes in tried
    ]
    made = iter(zip(asked, specification.examples(asked), strict=True))
    for tried, _, watched in wanted:
        taken = [Question("", *a, i) for a, i in islice(made, len(tried)) if i is not None]
        for question in taken[:1]:
            yield _plain_trial("large", question)
            if watched:
                slot = {"slot": f"{id(question)} crowd"}
                yield _trial("crowd", question, **slot)
                seed = random.getrandbits(30)
                yield _trial("crowd", question, **slot, order="interleaved", order_seed=seed)


def _similar(specification: Specification, random: Random) -> Iterator[Trial]:
    """The very same tensors, with values that have much in common with those before."""
    dtype = random.choice(specification.dtypes)
    for made in _made(specification, specification.sizes[:1], dtype, random):
        base = replace(made, inputs=of_few_bits(made.inputs))
        slot = {"slot": f"{id(base)} similar"}
        yield _plain_trial("similar", base, **slot)
        for about, inputs in similar_inputs(base.inputs, random):
            yield _plain_trial("similar", replace(base, about=about, inputs=inputs), **slot)
        yield _plain_trial("similar", base, **slot)


def _many(specification: Specification, random: Random, calls: int) -> Iterator[Trial]:
    """So many calls that nobody counts them, and how many, nobody knows before."""
    dtype = random.choice(specification.dtypes)
    made = _made(specification, smallest_sizes(specification.sizes), dtype, random)
    if not made or not calls:
        return
    smallest = made[0]
    total = calls + random.randrange(calls // 2)
    times = []
    while total > 0:
        times.append(min(total, _CHUNK + random.randrange(_CHUNK)))
        total -= times[-1]
    questions = _made(specification, [smallest.sizes] * len(times), dtype, random)
    for question, each in zip(questions, times, strict=False):
        yield _plain_trial("many", question, times=each)


def _main(question: Question) -> tuple[str, Tensor]:
    """The first tensor of the inputs, which is what the others work on."""
    return next((k, v) for k, v in question.inputs.items() if isinstance(v, Tensor))


def _extremes(question: Question, random: Random) -> Iterator[Question]:
    """Zeros, values near the largest and the smallest that the type has."""
    name, value = _main(question)
    if not value.is_floating_point():
        if value.dtype == torch.int8:
            generator = Generator().manual_seed(random.getrandbits(62))
            ends = torch.randint(0, 2, value.shape, generator=generator) * 255 - 128
            yield _with(question, "the least and the greatest", name, ends.to(value.dtype))
        yield _with(question, "zeros", name, torch.zeros_like(value))
        return
    most, large = torch.finfo(value.dtype).max, 1e4 if value.dtype == torch.float16 else 1e15
    tiny = torch.finfo(value.dtype).tiny / 4
    yield _with(question, "zeros", name, torch.zeros_like(value))
    for about, factor in (("very large", large), ("subnormal", tiny)):
        scaled = (value.double() * factor).clamp(-most, most).to(value.dtype)
        yield _with(question, about, name, scaled)


def _not_finite(question: Question, random: Random) -> Iterator[Question]:
    """Not-a-number somewhere in each tensor of the type, and infinities in the first."""
    tensors = {
        name: value
        for name, value in question.inputs.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel()
    }
    for place, (name, value) in enumerate(tensors.items()):
        for special in (math.nan, math.inf, -math.inf)[: 1 if place else 3]:
            changed = value.clone()
            changed.view(-1)[random.randrange(value.numel())] = special
            yield _with(question, f"{special:g} in {name}", name, changed)


def _low_bits(question: Question) -> Iterator[Question]:
    """Inputs of few bits, and the same with lower bits in one of them that narrow types lose."""
    if question.dtype != torch.float32:
        return
    tensors = {
        name: value.bfloat16().to(value.dtype)
        for name, value in question.inputs.items()
        if isinstance(value, Tensor) and value.dtype == torch.float32
    }
    coarse = replace(question, about="few bits", inputs=question.inputs | tensors)
    yield coarse
    for name, value in tensors.items():
        yield _with(coarse, f"low bits in {name}", name, value * (1 + LOW_BITS))


def _with(question: Question, about: str, name: str, value: Tensor) -> Question:
    return replace(question, about=about, inputs=question.inputs | {name: value})
