"""Checks of a kernel: each judges the outcomes of some calls, and passes or fails.

The list follows Lange et al., "Towards Robust Agentic CUDA Kernel Benchmarking, Verification, and
Optimization" (2025), and cheats that are known to have passed as kernels elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hwnas.kernels.operator import dtype_name
from hwnas.kernels.verifier.calls import NO_ARRAY, CallOutcome
from hwnas.kernels.verifier.judging import (
    Result,
    each_error,
    error,
    extreme_error,
    same_outputs,
    unseen_bits,
)
from hwnas.kernels.verifier.process.interpreter import MemoryMonitor
from hwnas.kernels.verifier.verdict import KernelCheck

__all__ = ["CHECKS"]

Results = Sequence[Result]
_MAY_DIE = ("fence", "readonly", "disguised", "guessed")


def _of(results: Results, *aims: str) -> list[Result]:
    return [result for result in results if result.trial.aim in aims]


def _compared(
    name: str, results: Results, how: Callable[[Result], float], missing: str = "was not reached"
) -> KernelCheck:
    """Return a check that passes if no error is above 1."""
    if not results:
        return KernelCheck(name, "not applicable", missing)
    errors = [how(result) for result in results]
    worst = max(errors)
    place = errors.index(worst)
    where = _where(results[place])
    if worst <= 1:
        detail = f"{len(results)} calls; worst error {worst:.2g} times the tolerance, {where}"
        return KernelCheck(name, "passed", detail, worst)
    wrong = sum(each > 1 for each in errors)
    raised = results[place].outcome.error
    text = raised or f"worst error {worst:.3g} times the tolerance"
    return KernelCheck(name, "failed", f"{wrong} of {len(results)} calls: {text}, {where}", worst)


def _where(result: Result) -> str:
    about = result.trial.question.about
    layout = result.trial.call.layout
    marks = [about, layout] if layout != "contiguous" else [about]
    return " ".join(["in", *(f"{mark}," for mark in marks if mark), str(result.trial.question)])


def _noticed(
    name: str, results: Results, found: Iterable[tuple[str, Result]], passed: str
) -> KernelCheck:
    """Return a check that fails if anything was found."""
    if not results:
        return KernelCheck(name, "not applicable", "was not reached")
    seen: dict[str, Result] = {}
    for text, result in found:
        seen.setdefault(text, result)
    if not seen:
        return KernelCheck(name, "passed", passed)
    first = next(iter(seen.values()))
    return KernelCheck(name, "failed", f"{'; '.join(list(seen)[:4])}, {_where(first)}")


def _facts(results: Results, *names: str) -> list[tuple[str, Result]]:
    return [
        (text, result)
        for result in results
        for name in names
        for text in result.outcome.facts.get(name, ())
    ]


def _moved(results: Results, aim: str) -> list[Result]:
    """Return the calls of an aim whose outputs differ from earlier ones of the same inputs."""

    def found(*aims: str) -> dict[tuple[str, torch.dtype], CallOutcome]:
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


def _stable(before: CallOutcome, again: CallOutcome | None) -> bool:
    """Return whether a repeated call gave the same outputs, so that a change has another cause."""
    return again is None or same_outputs(before, again)


def _died(results: Results, *aims: str) -> list[tuple[str, Result]]:
    """Return the calls that ended the process with inputs that do not do so elsewhere in memory."""
    elsewhere = _of(results, "refilled")
    alive = {id(r.trial.question) for r in elsewhere if not r.outcome.died}
    return [
        (f"{result.outcome.error}", result)
        for result in _of(results, *aims)
        if result.outcome.died and id(result.trial.question) in alive
    ]


def runs(results: Results) -> KernelCheck:
    """Check that each call ends without an error, a crash or an exceeded limit."""
    ordinary = [result for result in results if result.trial.aim not in _MAY_DIE]
    found = [(r.outcome.error, r) for r in ordinary if r.outcome.error is not None]
    return _noticed("runs", results, found, f"{len(ordinary)} calls")


def kind(results: Results) -> KernelCheck:
    """Check that outputs are PyTorch tensors of the expected number, shapes and types."""
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


def values(results: Results) -> KernelCheck:
    """Check that outputs of random, unpredictable inputs are near the reference in float64."""
    tried = _of(results, "values", "first", "in order", "in order again", "elsewhere")
    return _compared("values", tried, error)


def shapes(results: Results) -> KernelCheck:
    """Check that outputs are right at sizes that are not listed."""
    return _compared("shapes", _of(results, "shapes"), error, "no other sizes are accepted")


def layouts(results: Results) -> KernelCheck:
    """Check that outputs are right for tensors that are not contiguous or not aligned."""
    return _compared("layouts", _of(results, "layouts"), error)


def extremes(results: Results) -> KernelCheck:
    """Check that outputs are right for zeros, and for very large and very small numbers."""
    return _compared("extremes", _of(results, "extremes"), extreme_error)


def not_finite(results: Results) -> KernelCheck:
    """Check that infinities and NaNs reach the same outputs as in PyTorch."""
    floating = [
        result
        for result in _of(results, "not finite")
        if all(dtype.is_floating_point for dtype in result.truth.dtypes)
    ]
    return _compared("not finite", floating, extreme_error, "inputs or outputs are integers")


def low_bits(results: Results) -> KernelCheck:
    """Check that low bits of float32, which narrower types do not have, reach the outputs."""
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


def unpatched(results: Results) -> KernelCheck:
    """Check that outputs are right in a process where nothing of PyTorch and Triton is replaced."""
    plain = _of(results, "plain", "plain extremes")

    def how(result: Result) -> float:
        return extreme_error(result) if result.trial.aim == "plain extremes" else error(result)

    def is_comparable(result: Result) -> bool:  # integers have no infinities to be right about
        floating = all(dtype.is_floating_point for dtype in result.truth.dtypes)
        return floating or not any(map(_is_special, result.trial.question.inputs.values()))

    return _compared("unpatched", list(filter(is_comparable, plain)), how)


def _is_special(value: object) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and not bool(value.isfinite().all())
    )


def options(results: Results) -> KernelCheck:
    """Check that each value of each option has the same effect as in the reference."""
    tried = _of(results, "options")
    tried += [r for r in _of(results, "guessed") if r.outcome.error is None or r.outcome.died]
    tried += _of(results, "wide options")

    def how(result: Result) -> float:
        return extreme_error(result) if result.trial.aim == "wide options" else error(result)

    return _compared("options", tried, how)


def large(results: Results) -> KernelCheck:
    """Check that outputs are right for lengths of several blocks."""
    return _compared("large", _of(results, "large", "largest"), error, "was not reached")


def similar(results: Results) -> KernelCheck:
    """Check that inputs are told apart that share sums, sets of values or most values."""
    return _compared("similar", _of(results, "similar"), error)


def many(results: Results) -> KernelCheck:
    """Check that the outputs of thousands of calls are all right."""
    made = _of(results, "many", "most")
    check = _compared("many", made, each_error)
    calls = sum(len(output) for result in made for output in result.outcome.outputs[:1])
    return replace(check, detail=f"{calls} calls in {check.detail}") if made else check


def dependence(results: Results) -> KernelCheck:
    """Check that outputs change with the inputs."""
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


def refilled(results: Results) -> KernelCheck:
    """Check that the very same tensors with new values give new outputs: nothing is cached."""
    return _compared("refilled", _of(results, "refilled"), error)


def own_outputs(results: Results) -> KernelCheck:
    """Check that outputs share no memory with inputs or with outputs of former calls."""
    found = [(f"an output shares memory with {text}", r) for text, r in _facts(results, "shared")]
    return _noticed("own outputs", results, found, "no memory is shared")


def inputs_kept(results: Results) -> KernelCheck:
    """Check that inputs are not written, not even to be restored afterwards."""
    found = [(f"{text} was written", result) for text, result in _facts(results, "written")]
    found += [
        (f"inputs in read-only memory were written: {t}", r) for t, r in _died(results, "readonly")
    ]
    return _noticed("inputs kept", results, found, "no input is written")


def bounds(results: Results) -> KernelCheck:
    """Check that nothing beyond a tensor's ends is read or written, or affects the outputs."""
    found = _facts(results, "stray")
    found += [(f"wrote outside of {text}", result) for text, result in _facts(results, "outside")]
    found += [("outputs depend on memory around the tensors", r) for r in _moved(results, "around")]
    found += [(f"memory next to inputs is accessed: {t}", r) for t, r in _died(results, "fence")]
    return _noticed("bounds", results, found, "no access beyond the ends of tensors was seen")


def unwritten(results: Results) -> KernelCheck:
    """Check that outputs hold no memory that was not written."""
    found = [("outputs hold memory that was not written", r) for r in _moved(results, "unwritten")]
    return _noticed("unwritten", _of(results, "unwritten"), found, "all of outputs is written")


def deterministic(results: Results) -> KernelCheck:
    """Check that the same inputs give the same outputs, bit by bit; a difference is a race."""
    moved = [*_moved(results, "again"), *_moved(results, "in order again")]
    found = [("outputs of the same inputs differ", result) for result in moved]
    return _noticed("deterministic", _of(results, "again"), found, "the same, bit by bit")


def races(results: Results) -> KernelCheck:
    """Check that programs of a grid do not interfere, and that their order does not matter."""
    watched = [result for result in results if not result.trial.plain]
    blind = [r for r in watched if not r.outcome.died and "interpreter" not in r.outcome.watched]
    if (
        blind
        and MemoryMonitor.possible()
        and any(result.trial.aim == "backwards" for result in watched)
    ):
        return KernelCheck("races", "failed", "its process did not report its memory accesses")
    if blind or not watched:
        return KernelCheck(
            "races", "not applicable", "programs are observed in the interpreter only"
        )
    found = _facts(results, "conflicts")
    for aim in ("backwards", "shuffled", "interleaved"):
        # Atomic operations round sums of floats differently in each order.
        moved = [r for r in _moved(results, aim) if not r.outcome.facts.get("atomics")]
        found += [("outputs depend on the order of programs", result) for result in moved]
    ordinary = [r for r in results if not (r.trial.call.order or r.trial.call.times)]
    right = {id(r.trial.question) for r in ordinary if not r.trial.plain and error(r) <= 1}
    found += [
        ("outputs depend on the order of programs", result)
        for result in _of(results, "shuffled", "interleaved", "backwards", "orders", "crowd")
        if id(result.trial.question) in right and error(result) > 1
    ]
    return _noticed("races", results, found, "no program interferes with another")


def state(results: Results) -> KernelCheck:
    """Check that functions, settings and random states that others rely on are unchanged.

    The check also fails if a value of the file is a new one after every call.
    """
    found = _facts(results, "changed")
    found += [
        (f"{text} has a new value after every call", r) for text, r in _facts(results, "moving")
    ]
    return _noticed("state", results, found, "nothing else was changed")


def snooping(results: Results) -> KernelCheck:
    """Check that the file does not look at the stack, the environment, files or processes."""
    return _noticed("snooping", results, _facts(results, "asked"), "it read its inputs only")


def disguised(results: Results) -> KernelCheck:
    """Check that outputs are right if the file believes that it runs on a GPU."""
    tried = _of(results, "disguised")
    able = [result for result in tried if NO_ARRAY not in (result.outcome.error or "")]
    missing = "it raises an error there, as NumPy has no arrays on a GPU"
    return _compared("disguised", able, error, missing if tried else "it runs on a GPU")


CHECKS: tuple[Callable[[Results], KernelCheck], ...] = (
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
