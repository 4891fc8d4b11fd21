"""Checks, tuning and timing of one operator at given sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from experiments.kernels.benchmark import Case, Rival
from experiments.kernels.catalogue import BENCHMARKS
from experiments.kernels.compiler import FULL, MODES, compiled, rehearsing
from experiments.kernels.place import CACHES, Place
from hwnas.kernels.operator import Inputs, Operator, dtype_name
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.resources import compile_ahead
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.suite.tolerance import as_tuple, worst_error
from hwnas.kernels.tuning.choice import KernelChoice
from hwnas.kernels.tuning.cost_model import CostModel
from hwnas.kernels.tuning.gpu_tuning import GpuTuning, keep, versions_here
from hwnas.kernels.tuning.race import fair, raced, why
from hwnas.kernels.tuning.tuned import KERNEL, REFERENCE, TunedEntry

__all__ = [
    "Tuning",
    "check_values",
    "check_with_verifier",
    "dtype_of",
    "measure_case",
    "rehearse_case",
    "tune_case",
    "words_of",
]

_ANOTHER = 16.0  # multiple of our tolerance above which a competitor computes something else


@dataclass(frozen=True)
class Tuning:
    """Case to tune, with a time limit in seconds."""

    case: Case
    seconds: float


def dtype_of(case: Case) -> torch.dtype:
    """Return the data type of a case's first input."""
    return case.dtype or BENCHMARKS[case.operator].dtype


def check_values(place: Place, name: str) -> dict[str, Any]:
    """Return an operator's errors by case, as multiples of the tolerance.

    The operator runs in its default configurations.
    """
    operator, benchmark = OPERATORS[name], BENCHMARKS[name]
    cases = [Case(name, sizes, 1, dtype) for dtype in operator.dtypes for sizes in operator.checked]
    if not place.simulated:
        cases += [case for case in benchmark.cases() if case.batch <= 8]
    errors = {}
    for case in cases:
        dtype = dtype_of(case)
        config = operator.default_config(case.sizes, dtype)
        errors[case.text(dtype)] = _bench(place, operator, case).error(config)
    return {"errors": errors}


def check_with_verifier(place: Place, name: str) -> dict[str, Any]:
    """Return the report on an operator by the verifier, which trusts nothing."""
    from hwnas.kernels.verifier import JobLimits, verify

    return verify(name, seed=0, limits=JobLimits(60.0)).to_json()


def tune_case(place: Place, tuning: Tuning) -> dict[str, Any]:
    """Search for a fast configuration; the best ones are saved as they are found."""
    case = tuning.case
    dtype = dtype_of(case)
    tuner = GpuTuning(place.gpu, place.timer_in_turn(), tuning.seconds, bench=place.bench)
    model = _model(case.operator, dtype)
    outcome, entry = tuner.tune(OPERATORS[case.operator], case.sizes, dtype, model)
    verdicts = Counter(trial.verdict for trial in outcome.trials)
    reasons = [trial.reason for trial in outcome.trials if trial.verdict in ("failed", "wrong")]
    return {
        "best": entry and entry.to_json(),
        "verdicts": dict(verdicts),
        "reasons": reasons[:3],
        "notes": list(outcome.notes),
    }


def rehearse_case(place: Place, case: Case) -> dict[str, Any]:
    """Let PyTorch's compiler compile the kernels that it chooses from when the case is measured."""
    operator, generator = OPERATORS[case.operator], torch.Generator().manual_seed(0)
    inputs = operator.example(case.sizes, dtype_of(case), generator, place.device)
    with fair(), rehearsing(FULL):
        for rival in BENCHMARKS[case.operator].rivals:
            if rival.compiled:
                function, tensors = rival.make(inputs)
                compiled(function, FULL, place)(*tensors)
    return {}


def measure_case(place: Place, case: Case) -> dict[str, Any]:
    """Time an operator, its reference and competitors, interleaved; a wrong one is not timed."""
    operator, dtype = OPERATORS[case.operator], dtype_of(case)
    bench = _bench(place, operator, case)
    choice = operator.choice(case.sizes, dtype, place.device)
    found: dict[str, Any] = {
        "config": dict(choice.config),
        "kernel": choice.kernel,
        "note": choice.note,
        "spilled_bytes": _spilled_bytes(place, operator, bench.inputs, choice),
        "error": bench.error(choice.config),
    }
    if not found["error"] <= 1:
        return found
    with fair():
        contenders, found["differences"], absent = _contenders(place, case, bench.inputs, choice)
        times = {}
        for cache_ in CACHES:
            times[cache_], more = raced(contenders, place.timer(cache_))
            absent |= more
    # The work before our kernel also runs before its reference, but is part of neither.
    if KERNEL in times[CACHES[0]] and BENCHMARKS[case.operator].before is None:
        entry = _entry(place, case, choice, times[CACHES[0]])
        keep(place.gpu, entry)
        found["kernel"] = entry.beats_reference
    found["absent"] = absent
    found["timing"] = {each: place.timer(each).description for each in CACHES}
    return found | {
        "times": {each: {k: v.to_json() for k, v in own.items()} for each, own in times.items()}
    }


@cache
def _model(operator: str, dtype: torch.dtype) -> CostModel:
    """Return the cost model of an operator, which learns while this process runs."""
    return CostModel()


def _bench(place: Place, operator: Operator, case: Case) -> Any:
    dtype, timer = dtype_of(case), place.timer(CACHES[0])
    return place.bench(operator, case.sizes, dtype, place.gpu, timer, place.device)


def _contenders(
    place: Place, case: Case, inputs: Inputs, choice: KernelChoice
) -> tuple[dict[str, Callable[[], object]], dict[str, float], dict[str, str]]:
    """Return the calls to time, the competitors' differences from ours, and why some are absent."""
    benchmark = BENCHMARKS[case.operator]
    operator = benchmark.operator
    ours: Callable[[], Any] = partial(operator.run, inputs, choice.config)
    result = as_tuple(ours())
    contenders: dict[str, Callable[[], object]]
    contenders = {KERNEL: ours, REFERENCE: partial(operator.reference, **inputs)}
    if benchmark.before is not None:
        before = benchmark.before(inputs)
        contenders = {name: partial(_both, before, run) for name, run in contenders.items()}
    differences, absent = {}, {}
    for rival in benchmark.rivals:
        for name, mode in _ways(rival).items():
            try:
                function, tensors = rival.make(inputs)
                run = partial(compiled(function, mode, place) if mode else function, *tensors)
                outputs = as_tuple(run())
            except Exception as error:  # e.g. for sizes that a library does not support
                absent[name] = why(error)
                continue
            contenders[name] = run
            if rival.same:
                differences[name] = max(map(_difference, outputs, result))
            if differences.get(name, 0) > _ANOTHER:
                del contenders[name]
                absent[name] = f"differs from ours by {differences[name]:.3g} times the tolerance"
    return contenders, differences, absent


def _both(first: Callable[[], object], then: Callable[[], object]) -> None:
    first()
    then()


def _ways(rival: Rival) -> dict[str, str]:
    """Return the names of a competitor's variants, each with its compiler mode, or empty."""
    ways = {rival.name: ""}
    if rival.compiled:
        ways[f"{rival.name} compiled"] = FULL
    return ways


def words_of(operator: str) -> dict[str, str]:
    """Return the configurations of all competitors of an operator, by their names in rows."""
    words = {REFERENCE: "the operator's own formula in eager PyTorch, which the runtime falls to"}
    for rival in BENCHMARKS[operator].rivals:
        for name, mode in _ways(rival).items():
            words[name] = f"{MODES[mode]} of {rival.words}" if mode else rival.words
    return words


def _difference(one: Tensor, other: Tensor) -> float:
    return worst_error(one, other.double())


def _spilled_bytes(
    place: Place, operator: Operator, inputs: Inputs, choice: KernelChoice
) -> int | None:
    """Return the bytes of spilled registers per thread; None where kernels are interpreted."""
    if place.simulated:
        return None
    launches = operator.launches(inputs, operator.outputs(inputs), choice.config)
    return sum(compile_ahead(launch, place.gpu).spilled_bytes for launch in launches)


def _entry(place: Place, case: Case, choice: KernelChoice, times: dict[str, Times]) -> TunedEntry:
    """Return the entry from which the runtime chooses from now on.

    All sides were timed interleaved, with nothing beside them.
    """
    return TunedEntry(
        operator=case.operator,
        dtype=dtype_name(dtype_of(case)),
        sizes=case.sizes,
        config=choice.config,
        times=times[KERNEL],
        timing=place.timer(CACHES[0]).description,
        rivals={name: each for name, each in times.items() if name != KERNEL},
        versions=versions_here(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
