"""Plan of the calls that verify a kernel, and of what each call is meant to show."""

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
from hwnas.kernels.verifier.calls import FENCED, NAN, SMALL, KernelCall, Layout, Process
from hwnas.kernels.verifier.specification import Specification
from hwnas.kernels.verifier.variations import (
    all_options,
    crowded_sizes,
    each_alone,
    large_sizes,
    largest_sizes,
    on_a_grid,
    similar_inputs,
    smallest_sizes,
    switch_sizes,
)

__all__ = ["LAST", "LATE", "LOW_BITS", "CheckedInputs", "VerificationCall", "plan"]

_LENGTHS = (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 33, 37, 41, 43, 47, 53, 59, 61, 67)
_VARIED, _TRIED = 4, 24
# Aims that need the interpreter, tensors on the CPU, or protection of memory pages.
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
LAST = ("largest", "most")  # aims of calls that are made of fast kernels only
_CHUNK, _LONG_CHUNK = 125, 2000  # calls whose outputs are sent together
_WIDER = 8  # factor on examples, whose values are about 1
_WIDE_ELEMENTS = 25_000  # largest product of sizes
LOW_BITS = 2.0**-12  # relative; half the largest rounding error of float16 and TF32


@dataclass(frozen=True)
class CheckedInputs:
    """Inputs for which a kernel has to give the right outputs.

    Attributes:
        about: Description of what is special about the inputs.
        sizes: Sizes of the inputs.
        dtype: Type of the first input.
        seed: Seed from which the file or operator made the inputs.
        inputs: Inputs by name.
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
class VerificationCall:
    """Planned call of a kernel, and its purpose.

    Attributes:
        aim: Name of what the call is meant to show.
        question: Inputs whose expected outputs the outputs of the call are compared with.
        call: Call as the kernel's process sees it, without aim and question.
        process: Kind of process in which the call is made.
    """

    aim: str
    question: CheckedInputs
    call: KernelCall
    process: Process = "memory"

    @property
    def plain(self) -> bool:
        """True if nothing of PyTorch or Triton is replaced in the process."""
        return self.process == "plain"


def plan(
    specification: Specification, random: Random, *, on_gpu: bool, calls: int
) -> list[VerificationCall]:
    """Return all calls of a kernel in order; calls that can crash its process come last.

    Args:
        specification: Definition of what the kernel has to compute.
        random: Source of all random inputs.
        on_gpu: Whether the kernel runs on a GPU, where single memory accesses are not observed.
        calls: Least number of repeated small calls; if 0, neither these nor the calls of the
            largest sizes are made.

    Raises:
        KernelError: There are no inputs for a listed size.
    """
    listed = [*specification.sizes, specification.sizes[0]]
    others = [_other_sizes(specification.sizes, random) for _ in range(_TRIED)]
    sizes = [*listed, *(each for each in others if each not in listed)]
    asked = [
        (each, dtype, random.getrandbits(62)) for dtype in specification.dtypes for each in sizes
    ]
    made = iter(zip(asked, specification.examples(asked), strict=True))
    trials: list[VerificationCall] = []
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
    trials += _crowds(specification, random)
    trials += _similar(specification, random)
    trials += _many(specification, random, calls)
    trials += _largest(specification, random) if calls else []
    if on_gpu:
        trials = [t for t in trials if t.aim not in _ON_CPU and t.process != "programs"]
    return sorted(trials, key=lambda trial: trial.call.layout in FENCED)


def _question(asked: tuple[Sizes, torch.dtype, int], inputs: Inputs | None) -> CheckedInputs:
    sizes, dtype, seed = asked
    if inputs is None:
        raise KernelError(f"there are no inputs for {dict(sizes)} in {dtype_name(dtype)}")
    if not any(isinstance(value, Tensor) for value in inputs.values()):
        raise KernelError(f"`inputs` gives no tensor for {dict(sizes)} in {dtype_name(dtype)}")
    return CheckedInputs("", sizes, dtype, seed, inputs)


def _trial(aim: str, question: CheckedInputs, **options: Any) -> VerificationCall:
    return VerificationCall(
        aim, question, KernelCall(question.inputs, **{"slot": f"{id(question)}"} | options)
    )


def _other_sizes(listed: Sequence[Sizes], random: Random) -> Sizes:
    """Return sizes like some of the listed ones: 1, primes, no multiples of block sizes.

    A size that is never more than 1 is a switch, and keeps its value.
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


def _closely(
    first: CheckedInputs, second: CheckedInputs, random: Random
) -> Iterator[VerificationCall]:
    """Yield all calls that are watched closely, with inputs of one size and type."""
    slot = {"slot": f"{id(first)} again"}
    yield _trial("first", first, **slot)
    yield _trial("again", first, **slot)
    for aim in ("in order", "in order again"):
        yield _in_programs(aim, first, **slot)
    yield _in_programs("backwards", first, **slot, backwards=True)
    for order in ("shuffled", "interleaved", "interleaved"):
        yield _in_programs(order, first, **slot, order=order, order_seed=random.getrandbits(30))
    yield _trial("around", first, **slot, around=SMALL)
    yield _trial("unwritten", first, **slot, fresh=SMALL)
    yield _trial("disguised", first, **slot, disguised=True)
    yield _trial("refilled", second, **slot)
    yield _trial("elsewhere", first, slot=f"{id(first)} elsewhere", around=NAN)
    for layout in ("shifted", "apart", "transposed", *_of_many_axes(second)):
        yield _trial("layouts", second, slot=f"{id(first)} {layout}", layout=layout)
    for question in _extremes(first, random):
        yield _trial("extremes", question, **slot)
    for question in _not_finite(first, random):
        yield _trial("not finite", question, **slot)
    for question in _low_bits(first):
        yield _trial("low bits", question, **slot)
    for layout in FENCED:
        yield _trial("readonly" if layout == "readonly" else "fence", second, layout=layout)


def _of_many_axes(question: CheckedInputs) -> tuple[Layout, ...]:
    """Return the layouts that are distinct only for tensors of more than two axes, if any."""
    most = max(v.dim() for v in question.inputs.values() if isinstance(v, Tensor))
    return ("reversed", "channels last") if most > 2 else ()


def _orders(questions: Sequence[CheckedInputs], random: Random) -> Iterator[VerificationCall]:
    """Yield calls with other orders of programs, at sizes with few and with many programs."""
    for question in questions:
        seed = random.getrandbits(30)
        yield _in_programs("orders", question, order="interleaved", order_seed=seed)
        yield _in_programs("orders", question, order="shuffled", order_seed=seed)


def _in_programs(aim: str, question: CheckedInputs, **options: Any) -> VerificationCall:
    return replace(_trial(aim, question, **options), process="programs")


def _plain_trial(aim: str, question: CheckedInputs, **options: Any) -> VerificationCall:
    return replace(_trial(aim, question, **options), process="plain")


def _plainly(
    questions: Sequence[CheckedInputs], varied: Sequence[CheckedInputs], random: Random
) -> Iterator[VerificationCall]:
    """Yield the main calls of the watched process for one in which nothing is replaced."""
    first, second = questions[0], questions[-1]
    slot = {"slot": f"{id(first)} plain"}
    for question in (first, first, second):
        yield _plain_trial("plain", question, **slot)
    for question in (*questions[1:-1], *varied[:2]):
        yield _plain_trial("plain", question)
    for layout in ("shifted", "transposed", *_of_many_axes(second)):
        yield _plain_trial("plain", second, slot=f"{id(first)} {layout} plain", layout=layout)
    for mode in ("no_grad", "inference"):
        yield _plain_trial("plain", first, slot=f"{id(first)} {mode} plain", mode=mode)
    for question in (*_extremes(first, random), *_not_finite(first, random)):
        yield _plain_trial("plain extremes", question, **slot)


def _made(
    specification: Specification, sizes: Sequence[Sizes], dtype: torch.dtype, random: Random
) -> list[CheckedInputs]:
    """Return questions for those of the sizes that the specification accepts."""
    asked = [(each, dtype, random.getrandbits(62)) for each in sizes]
    examples = specification.examples(asked)
    return [
        CheckedInputs("", *each, inputs)
        for each, inputs in zip(asked, examples, strict=True)
        if inputs is not None
    ]


def _options(specification: Specification, random: Random) -> Iterator[VerificationCall]:
    """Yield calls with every value of every option, for each combination of switches."""
    for count, dtype in enumerate(specification.dtypes):
        wanted = switch_sizes(specification.sizes)
        wanted += [each for each in specification.sizes[:4] if each not in wanted]
        bases = _made(specification, wanted, dtype, random)
        bases = bases or _made(specification, specification.sizes[:1], dtype, random)
        for place, base in enumerate(bases[: None if count == 0 else 1]):
            yield _plain_trial("options", base)
            values = specification.options(base.inputs)
            alone = count == 0
            together = 8 if alone else 6
            varied = all_options(base.inputs, values, random, alone=alone, together=together)
            for about, inputs in varied:
                yield _plain_trial("options", replace(base, about=about, inputs=inputs))
            if place == 0:
                guessed = specification.guesses(base.inputs, base.sizes)
                for about, inputs in each_alone(base.inputs, guessed):
                    yield _plain_trial("guessed", replace(base, about=about, inputs=inputs))
        if count == 0 and bases:
            yield from _wider(max(bases, key=_quick_work), specification)


def _wider(base: CheckedInputs, specification: Specification) -> Iterator[VerificationCall]:
    """Yield calls with each option, and inputs that reach both ends of every activation."""
    name, value = _main(base)
    if not value.is_floating_point():
        return
    for about, inputs in each_alone(base.inputs, specification.options(base.inputs)):
        varied = replace(base, inputs=inputs)
        wide = _with(varied, f"{about}, {name} times {_WIDER}", name, value * _WIDER)
        yield _plain_trial("wide options", wide)


def _quick_work(question: CheckedInputs) -> int:
    """Return the amount of work that inputs take, or 0 if the interpreter is slow at it."""
    work = math.prod(max(1, size) for size in question.sizes.values())
    return work if work <= _WIDE_ELEMENTS else 0


def _large(specification: Specification, random: Random) -> Iterator[VerificationCall]:
    """Yield calls with one length of several blocks; the shortest ones are also watched."""
    dtypes = specification.dtypes
    wanted: list[tuple[list[Sizes], torch.dtype, bool]] = []
    for place, tried in large_sizes(specification.sizes, random):
        shortest = place == 0
        if place > specification.longest or not tried:
            continue
        for dtype in dtypes if shortest else [random.choice(dtypes)]:
            odd = max(tried[0].values()) % 2 == 1
            wanted.append((tried, dtype, shortest and odd and dtype is dtypes[0]))
    asked = [
        (sizes, dtype, random.getrandbits(62)) for tried, dtype, _ in wanted for sizes in tried
    ]
    made = iter(zip(asked, specification.examples(asked), strict=True))
    for tried, _, watched in wanted:
        taken = [CheckedInputs("", *a, i) for a, i in islice(made, len(tried)) if i is not None]
        for question in taken[:1]:
            yield _plain_trial("large", question)
            if watched:
                slot = {"slot": f"{id(question)} crowd"}
                yield _in_programs("crowd", question, **slot)
                seed = random.getrandbits(30)
                yield _in_programs("crowd", question, **slot, order="interleaved", order_seed=seed)


def _crowds(specification: Specification, random: Random) -> Iterator[VerificationCall]:
    """Yield calls with many programs along each axis, in order: interleaving takes too long."""
    for sizes in crowded_sizes(specification.sizes, random) if specification.longest > 1 else ():
        for question in _made(specification, [sizes], specification.dtypes[0], random):
            yield _in_programs("crowd", question)


def _largest(specification: Specification, random: Random) -> Iterator[VerificationCall]:
    """Yield calls at the largest lengths, for kernels that have proved to be fast."""
    if specification.longest < 2:
        return
    for tried in largest_sizes(specification.sizes, random):
        dtype = random.choice(specification.dtypes)
        for question in _made(specification, tried, dtype, random)[:1]:
            yield _plain_trial("largest", question)


def _similar(specification: Specification, random: Random) -> Iterator[VerificationCall]:
    """Yield calls that reuse the same tensors, with values much like the previous ones."""
    for dtype in specification.dtypes:
        for made in _made(specification, specification.sizes[:1], dtype, random):
            base = replace(made, inputs=on_a_grid(made.inputs))
            slot = {"slot": f"{id(base)} similar"}
            yield _plain_trial("similar", base, **slot)
            for about, inputs in similar_inputs(base.inputs, random):
                yield _plain_trial("similar", replace(base, about=about, inputs=inputs), **slot)
            yield _plain_trial("similar", base, **slot)


def _many(specification: Specification, random: Random, calls: int) -> Iterator[VerificationCall]:
    """Yield chunks of repeated calls; their total is large, and random so that it is unknown."""
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
    for question in questions[:5]:
        yield _plain_trial("most", question, times=_LONG_CHUNK)


def _main(question: CheckedInputs) -> tuple[str, Tensor]:
    """Return name and value of the first tensor of the inputs, the operator's main input."""
    return next((k, v) for k, v in question.inputs.items() if isinstance(v, Tensor))


def _extremes(question: CheckedInputs, random: Random) -> Iterator[CheckedInputs]:
    """Yield inputs of zeros, of one sign, and of very large and very small values."""
    name, value = _main(question)
    for other, values in question.inputs.items():
        if isinstance(values, Tensor) and values.is_floating_point():
            yield _with(question, f"{other} negative", other, -values.abs())
            yield _with(question, f"{other} positive", other, values.abs())
            if other != name:
                yield _with(question, f"{other} zero", other, torch.zeros_like(values))
                yield _with(question, f"{other} large", other, values * 128)
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


def _not_finite(question: CheckedInputs, random: Random) -> Iterator[CheckedInputs]:
    """Yield inputs with a NaN in one of the floating tensors, or an infinity in the first."""
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


def _low_bits(question: CheckedInputs) -> Iterator[CheckedInputs]:
    """Yield inputs of few bits, then with low bits added in one, which narrow types lose."""
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


def _with(question: CheckedInputs, about: str, name: str, value: Tensor) -> CheckedInputs:
    return replace(question, about=about, inputs=question.inputs | {name: value})
