"""The checks: each looks at what came of some calls and says whether the kernel passes.

The list follows Lange et al., "Towards Robust Agentic CUDA Kernel Benchmarking, Verification, and
Optimization" (2025), and what is known to have passed for a kernel elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hwnas.kernels.operator import dtype_name
from hwnas.kernels.verifier.calls import NO_ARRAY, Outcome
from hwnas.kernels.verifier.interpreter import Watch
from hwnas.kernels.verifier.judging import (
    Result,
    each_error,
    error,
    extreme_error,
    same_outputs,
    unseen_bits,
)
from hwnas.kernels.verifier.verdict import Check

__all__ = ["CHECKS"]

Results = Sequence[Result]
_MAY_DIE = ("fence", "readonly", "disguised", "guessed")


def _of(results: Results, *aims: str) -> list[Result]:
    return [result for result in results if result.trial.aim in aims]


def _compared(
    name: str, results: Results, how: Callable[[Result], float], missing: str = "was not reached"
) -> Check:
    """A check that is passed where no error is above 1."""
    if not results:
        return Check(name, "not applicable", missing)
    errors = [how(result) for result in results]
    worst = max(errors)
    place = errors.index(worst)
    where = _where(results[place])
    if worst <= 1:
        detail = f"{len(results)} calls; worst error {worst:.2g} of what is allowed, {where}"
        return Check(name, "passed", detail, worst)
    wrong = sum(each > 1 for each in errors)
    raised = results[place].outcome.error
    text = raised or f"worst error {worst:.3g} times what is allowed"
    return Check(name, "failed", f"{wrong} of {len(results)} calls: {text}, {where}", worst)


def _where(result: Result) -> str:
    about = result.trial.question.about
    layout = result.trial.call.layout
    marks = [about, layout] if layout != "contiguous" else [about]
    return " ".join(["in", *(f"{mark}," for mark in marks if mark), str(result.trial.question)])


def _noticed(
    name: str, results: Results, found: Iterable[tuple[str, Result]], passed: str
) -> Check:
    """A check that is failed by anything that was noticed."""
    if not results:
        return Check(name, "not applicable", "was not reached")
    seen: dict[str, Result] = {}
    for text, result in found:
        seen.setdefault(text, result)
    if not seen:
        return Check(name, "passed", passed)
    first = next(iter(seen.values()))
    return Check(name, "failed", f"{'; '.join(list(seen)[:4])}, {_where(first)}")


def _facts(results: Results, *names: str) -> list[tuple[str, Result]]:
    return [
        (text, result)
        for result in results
        for name in names
        for text in result.outcome.facts.get(name, ())
    ]


def _moved(results: Results, aim: str) -> list[Result]:
    """Calls of an aim whose outputs are others than those of the same inputs before."""

    def found(*aims: str) -> dict[tuple[str, torch.dtype], Outcome]:
        return {_where_and_what(r): r.outcome for r in _of(results, *aims)}

    first, again = found("first", "in order"), found("again", "in order again")
    return [
        result
        for result in _of(results, aim)
        if result.outcome.error is None
        and (before := first.get(_where_and_what(result))) is not None
        and before.error is None
        and not same_outputs(before, result.outcome)
        and (aim.endswith("again") or _stable(before, again.get(_where_and_what(result))))
    ]


def _where_and_what(result: Result) -> tuple[str, torch.dtype]:
    return result.trial.process, result.trial.question.dtype


def _stable(before: Outcome, again: Outcome | None) -> bool:
    """Whether a change can be put down to what is tried, and not to outputs that always change."""
    return again is None or same_outputs(before, again)


def _died(results: Results, *aims: str) -> list[tuple[str, Result]]:
    """Calls that ended the process, of inputs that do not when they lie elsewhere."""
    elsewhere = _of(results, "refilled")
    alive = {id(r.trial.question) for r in elsewhere if not r.outcome.died}
    return [
        (f"{result.outcome.error}", result)
        for result in _of(results, *aims)
        if result.outcome.died and id(result.trial.question) in alive
    ]


def runs(results: Results) -> Check:
    """Each call ends, without an error, a crash or a limit that is passed."""
    ordinary = [result for result in results if result.trial.aim not in _MAY_DIE]
    found = [(r.outcome.error, r) for r in ordinary if r.outcome.error is not None]
    return _noticed("runs", results, found, f"{len(ordinary)} calls")


def kind(results: Results) -> Check:
    """Outputs are tensors of PyTorch, as many and of the shapes and types that are asked for."""
    found = [(f"gave {text}", result) for text, result in _facts(results, "kinds")]
    for result in results:
        outputs, truth = result.outcome.outputs, result.truth
        given = [(dtype_name(o.dtype), tuple(o.shape)) for o in outputs]
        wanted = [
            (dtype_name(d), tuple(e.shape)) for d, e in zip(truth.dtypes, truth.exact, strict=True)
        ]
        if result.trial.call.times:
            given = [(kind, shape[1:]) for kind, shape in given]
        if result.outcome.error is None and outputs and given != wanted:
            found.append((f"gave {given}, not {wanted}", result))
    return _noticed("kind", results, found, "number, shapes, types and device of outputs")


def values(results: Results) -> Check:
    """Outputs of random inputs, which nobody knew before, are near the reference in float64."""
    tried = _of(results, "values", "first", "in order", "in order again", "elsewhere")
    return _compared("values", tried, error)


def shapes(results: Results) -> Check:
    """The same at sizes that are not listed."""
    return _compared("shapes", _of(results, "shapes"), error, "no other sizes are taken")


def layouts(results: Results) -> Check:
    """The same for tensors that are not contiguous or not aligned."""
    return _compared("layouts", _of(results, "layouts"), error)


def extremes(results: Results) -> Check:
    """The same for zeros and for very large and very small numbers."""
    return _compared("extremes", _of(results, "extremes"), extreme_error)


def not_finite(results: Results) -> Check:
    """Infinities and not-a-numbers go where PyTorch lets them go."""
    floating = [
        result
        for result in _of(results, "not finite")
        if all(dtype.is_floating_point for dtype in result.truth.dtypes)
    ]
    return _compared("not finite", floating, extreme_error, "inputs or outputs are integers")


def low_bits(results: Results) -> Check:
    """Low bits of float32, which narrower types do not have, reach the outputs."""
    pairs: list[tuple[Result, Result]] = []
    coarse = None
    for result in _of(results, "low bits"):
        if result.trial.question.about == "few bits":
            coarse = result
        elif coarse is not None:
            pairs.append((coarse, result))
    before = {id(fine): few for few, fine in pairs}
    return _compared(
        "low bits",
        [fine for _, fine in pairs],
        lambda fine: unseen_bits(before[id(fine)], fine),
        "no inputs are float32",
    )


def unpatched(results: Results) -> Check:
    """The same is right in a process in which nothing of PyTorch and Triton is replaced."""
    plain = _of(results, "plain", "plain extremes")

    def how(result: Result) -> float:
        return extreme_error(result) if result.trial.aim == "plain extremes" else error(result)

    def told(result: Result) -> bool:  # integers have no infinities to be right about
        floating = all(dtype.is_floating_point for dtype in result.truth.dtypes)
        return floating or not any(map(_is_special, result.trial.question.inputs.values()))

    return _compared("unpatched", list(filter(told, plain)), how)


def _is_special(value: object) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all())
    )


def options(results: Results) -> Check:
    """Each value of each option does what it does in the reference."""
    tried = _of(results, "options")
    tried += [r for r in _of(results, "guessed") if r.outcome.error is None or r.outcome.died]
    tried += _of(results, "wide options")

    def how(result: Result) -> float:
        return extreme_error(result) if result.trial.aim == "wide options" else error(result)

    return _compared("options", tried, how)


def large(results: Results) -> Check:
    """Lengths of several blocks are as right as those that are listed."""
    return _compared("large", _of(results, "large", "largest"), error, "was not reached")


def similar(results: Results) -> Check:
    """Values that have sums, sets or most of them in common with those before are told apart."""
    return _compared("similar", _of(results, "similar"), error)


def many(results: Results) -> Check:
    """The results of thousands of calls are all right."""
    made = _of(results, "many", "most")
    check = _compared("many", made, each_error)
    calls = sum(len(output) for result in made for output in result.outcome.outputs[:1])
    return replace(check, detail=f"{calls} calls in {check.detail}") if made else check


def dependence(results: Results) -> Check:
    """Outputs are others where inputs are."""
    found = []
    for first, second in zip(_of(results, "first"), _of(results, "refilled"), strict=False):
        differ = any(
            not (a.shape == b.shape and bool((a == b).all()))
            for a, b in zip(first.truth.exact, second.truth.exact, strict=False)
        )
        given = first.outcome.outputs
        if given and differ and same_outputs(first.outcome, second.outcome):
            found.append(("the same outputs for other inputs", second))
    return _noticed("dependence", _of(results, "refilled"), found, "outputs follow the inputs")


def refilled(results: Results) -> Check:
    """The very same tensors with new values give new outputs: nothing is kept from before."""
    return _compared("refilled", _of(results, "refilled"), error)


def own_outputs(results: Results) -> Check:
    """Outputs share no memory with inputs, with each other or with outputs of former calls."""
    found = [(f"an output shares memory with {text}", r) for text, r in _facts(results, "shared")]
    return _noticed("own outputs", results, found, "no memory is shared")


def inputs_kept(results: Results) -> Check:
    """Inputs are not written, not even to be put back."""
    found = [(f"{text} was written", result) for text, result in _facts(results, "written")]
    found += [(f"inputs that cannot be written: {t}", r) for t, r in _died(results, "readonly")]
    return _noticed("inputs kept", results, found, "no input is written")


def bounds(results: Results) -> Check:
    """Nothing beyond a tensor's ends is read or written, or matters."""
    found = _facts(results, "stray")
    found += [(f"wrote outside of {text}", result) for text, result in _facts(results, "outside")]
    found += [("outputs change with what lies around", r) for r in _moved(results, "around")]
    found += [(f"memory next to inputs is touched: {t}", r) for t, r in _died(results, "fence")]
    return _noticed("bounds", results, found, "no access beyond the ends of tensors was seen")


def unwritten(results: Results) -> Check:
    """New memory does not show in outputs before it is written."""
    found = [("outputs hold memory that was not written", r) for r in _moved(results, "unwritten")]
    return _noticed("unwritten", _of(results, "unwritten"), found, "all of outputs is written")


def deterministic(results: Results) -> Check:
    """The same inputs give the same outputs, bit by bit; an error that moves is a race."""
    moved = [*_moved(results, "again"), *_moved(results, "in order again")]
    found = [("outputs of the same inputs differ", result) for result in moved]
    return _noticed("deterministic", _of(results, "again"), found, "the same, bit by bit")


def races(results: Results) -> Check:
    """Programs of a grid do not meddle with each other, and their order does not matter."""
    watched = [result for result in results if not result.trial.plain]
    blind = [r for r in watched if not r.outcome.died and "interpreter" not in r.outcome.watched]
    if blind and Watch.possible() and any(result.trial.aim == "backwards" for result in watched):
        return Check("races", "failed", "its process kept what it does to itself")
    if blind or not watched:
        return Check("races", "not applicable", "programs are seen in the interpreter only")
    found = _facts(results, "conflicts")
    for aim in ("backwards", "shuffled", "interleaved"):
        # Sums of floats that atomic operations make depend on their order by what is rounded.
        moved = [r for r in _moved(results, aim) if not r.outcome.facts.get("atomics")]
        found += [("outputs depend on the order of programs", result) for result in moved]
    ordinary = [r for r in results if not (r.trial.call.order or r.trial.call.times)]
    right = {id(r.trial.question) for r in ordinary if not r.trial.plain and error(r) <= 1}
    found += [
        ("outputs depend on the order of programs", result)
        for result in _of(results, "shuffled", "interleaved", "backwards", "orders", "crowd")
        if id(result.trial.question) in right and error(result) > 1
    ]
    return _noticed("races", results, found, "no program meets another")


def state(results: Results) -> Check:
    """Functions, settings and random numbers that others rely on are as before."""
    found = _facts(results, "changed")
    found += [(f"{text} is another after every call", r) for text, r in _facts(results, "moving")]
    return _noticed("state", results, found, "nothing else was changed")


def snooping(results: Results) -> Check:
    """The file does not look at the stack, the environment, files or processes."""
    return _noticed("snooping", results, _facts(results, "asked"), "it looked at its inputs only")


def disguised(results: Results) -> Check:
    """What is right here is right where the file believes to be on a graphics card."""
    tried = _of(results, "disguised")
    able = [result for result in tried if NO_ARRAY not in (result.outcome.error or "")]
    missing = "it raises an error there, as NumPy has no arrays on a card"
    return _compared("disguised", able, error, missing if tried else "it runs on a card")


CHECKS: tuple[Callable[[Results], Check], ...] = (
    runs,
    kind,
    values,
    unpatched,
    options,
    shapes,
    large,
    layouts,
    extremes,
    not_finite,
    low_bits,
    dependence,
    refilled,
    similar,
    many,
    own_outputs,
    inputs_kept,
    bounds,
    unwritten,
    deterministic,
    races,
    state,
    snooping,
    disguised,
)
