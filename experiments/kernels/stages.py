"""Stages of a visit, which run one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from experiments.kernels.benchmark import Case
from experiments.kernels.catalogue import BENCHMARKS
from experiments.kernels.ceilings import COPY, PRODUCTS, measure_ceilings
from experiments.kernels.compiler import FULL, QUICK
from experiments.kernels.networks import (
    BATCHES,
    FORMATS,
    WORDS,
    Measured,
    export_network,
    measure_network,
    rehearse_network,
)
from experiments.kernels.operators import (
    Tuning,
    check_values,
    check_with_verifier,
    dtype_of,
    measure_case,
    rehearse_case,
    tune_case,
    words_of,
)
from experiments.kernels.pool import Outcome, Task, dealt
from experiments.kernels.rows import SPEEDUP, complete, race_rows, summary
from experiments.kernels.visit import Visit
from experiments.record import Row
from hwnas.kernels.sizes import dtype_name

__all__ = ["run_stages"]

_CHECKS: dict[str, Callable[..., dict[str, Any]]] = {
    "largest_error": check_values,
    "failed_checks": check_with_verifier,
}
"""Checks of all operators, by the metric of their result."""
_REHEARSAL = 0.4  # share of a stage's time in which compilers work in parallel
_COMPILING = {QUICK: 60.0, FULL: 240.0}  # time limit of a network in seconds


def run_stages(visit: Visit) -> None:
    """Run all wanted stages; recorded results are not measured again."""
    visit.try_processes()
    try:
        _check(visit)
        for stage, work in {"tune": _tune, "operators": _operators, "networks": _networks}.items():
            if stage in visit.stages:
                print(f"{stage}, {max(0.0, visit.end - time.monotonic()):.0f} s left", flush=True)
                work(visit)
    finally:
        visit.write()
        visit.answer(summary(visit.rows))


def _check(visit: Visit) -> None:
    """Check the operators' values while networks are exported; then measure the GPU's ceilings."""
    tasks: list[Task] = []
    if {"tune", "networks"} & {*visit.stages}:
        tasks += [Task(export_network, name) for name in visit.networks]
    if "verify" in visit.stages:
        tasks += [
            Task(work, name)
            for metric, work in _CHECKS.items()
            for name in visit.operators
            if visit.row(metric, name) is None
        ]
    lines = visit.place.workers
    mixed = [task for i in range(lines) for task in tasks[i::lines]]
    until = visit.until("verify") if "verify" in visit.stages else visit.end
    for outcome in visit.side_by_side(mixed, until):
        if outcome.task.work is export_network:
            _exported(visit, outcome)
        else:
            visit.put([_check_row(outcome)])
    if visit.row(COPY, "card") is None:
        for outcome in visit.in_turn([Task(measure_ceilings, None)], visit.end):
            visit.put(_ceiling_rows(outcome))
            if outcome.reason:
                print(f"ceilings of the GPU: {outcome.reason}", flush=True)


def _check_row(outcome: Outcome) -> Row:
    """Return the largest error as a multiple of the tolerance, or the number of failed checks."""
    found, name = outcome.found, outcome.task.argument
    details = {**found, "reason": outcome.reason}
    if outcome.task.work is check_values:
        errors = found.get("errors", {})
        largest = max(errors.values(), default=None)
        return Row("largest_error", name, 0, largest, "ratio", len(errors), {}, details)
    failed = [check["name"] for check in found.get("checks", ()) if check["status"] == "failed"]
    count = None if outcome.reason else float(len(failed))
    details["reason"] = outcome.reason or ", ".join(failed)
    return Row("failed_checks", name, 0, count, "checks", len(found.get("checks", ())), {}, details)


def _ceiling_rows(outcome: Outcome) -> list[Row]:
    return [
        Row(name, "card", 0, each["rate"] / 1e9, unit, int(each["times"]["n"]), {},
            {"times": each["times"]})
        for name, each in outcome.found.items()
        for unit in ["GB/s" if name == COPY else "GFLOP/s"]
    ]  # fmt: skip


def _ceilings(visit: Visit, dtype: torch.dtype) -> dict[str, float]:
    """Return the known ceilings, per second."""
    rows = {"bytes": visit.row(COPY, "card"), "operations": visit.row(PRODUCTS[dtype], "card")}
    return {name: row.value * 1e9 for name, row in rows.items() if row and row.value}


def _exported(visit: Visit, outcome: Outcome) -> None:
    if outcome.reason:
        print(f"{outcome.task.argument} cannot be exported: {outcome.reason}", flush=True)
        return
    visit.about[outcome.task.argument] = outcome.found["about"]
    known = set(map(_key, visit.layers))
    visit.layers += [case for case in outcome.found["asked"] if _key(case) not in known]


def _key(case: Case) -> tuple[object, ...]:
    return case.operator, dtype_of(case), *sorted(case.sizes.items())


def _cases(visit: Visit) -> list[Case]:
    """Return the cases of the benchmarks, small batches first."""
    found = [
        case
        for name in visit.operators
        for case in (
            BENCHMARKS[name].checked() if visit.place.simulated else BENCHMARKS[name].cases()
        )
    ]
    return sorted(found, key=lambda case: case.batch)


def _tune(visit: Visit) -> None:
    """Tune in parallel, as most of it is compiling; in each process small batches come first."""
    wanted = {_key(case): case for case in (*_cases(visit), *visit.layers)}
    left = [case for case in wanted.values() if visit.row("tuned", _text(case)) is None]
    left.sort(key=lambda case: (case.operator, case.batch))
    until = visit.until("tune")
    longest = max(sum(map(_weight, line)) for line in dealt(left, visit.place.workers))
    share = 0.9 * (until - time.monotonic()) / max(longest, 1)
    most = visit.place.longest_tuning
    tasks = [Task(tune_case, Tuning(case, min(most, share * _weight(case)))) for case in left]
    for outcome in visit.side_by_side(tasks, until):
        case, seconds = outcome.task.argument.case, outcome.task.argument.seconds
        found = outcome.found
        best = found.get("best")
        value, n = (best["times"]["p50_us"], best["times"]["n"]) if best else (None, 0)
        reason = outcome.reason or ("" if best else "nothing ran")
        details = {**found, "seconds": seconds, "reason": reason}
        visit.put([Row("tuned", _text(case), 0, value, "us", n, {}, details)])


def _weight(case: Case) -> int:
    """Return the weight of a case in the tuning time; layers get less, since they are many."""
    if case.dtype is None:
        return 3
    return 2 if case.batch == 1 else 1


def _text(case: Case) -> str:
    return case.text(dtype_of(case))


def _operators(visit: Visit) -> None:
    """Rehearse the compilers in parallel; then time each case with nothing beside it."""
    cases = [case for case in _cases(visit) if _left(visit, _text(case))]
    until = visit.until("operators")
    now = time.monotonic()
    rehearsal = now + _REHEARSAL * max(0.0, until - now)
    for outcome in visit.side_by_side([Task(rehearse_case, case) for case in cases], rehearsal):
        if outcome.reason:
            print(f"{_text(outcome.task.argument)}, compiled: {outcome.reason}", flush=True)
    for outcome in visit.in_turn([Task(measure_case, case) for case in cases], until):
        case = outcome.task.argument
        dtype, operator = dtype_of(case), BENCHMARKS[case.operator].operator
        work = operator.work(case.sizes, dtype)
        details = {"kind": "operators", "operator": case.operator, "sizes": dict(case.sizes)}
        details |= {"dtype": dtype_name(dtype), "batch": case.batch}
        details |= {"moved_bytes": work.moved_bytes, "macs": work.macs}
        _record(visit, _text(case), outcome, words_of(case.operator), dtype, details)


def _left(visit: Visit, subject: str) -> bool:
    rows = [visit.row(SPEEDUP, f"{subject} {cache}") for cache in ("cold", "warm")]
    return not all(row is not None and complete(row) for row in rows)


def _record(
    visit: Visit,
    subject: str,
    outcome: Outcome,
    words: Mapping[str, str],
    dtype: torch.dtype,
    details: Mapping[str, Any],
) -> None:
    found = {**details, "reason": outcome.reason, **outcome.found}
    visit.put(race_rows(subject, found, words, _ceilings(visit, dtype)))


def _networks(visit: Visit) -> None:
    """Time networks against the compiler's quick mode and, while time is left, its full mode."""
    batches = BATCHES[:1] if visit.place.simulated else BATCHES
    left = {
        mode: [
            Measured(name, batch, mode)
            for batch in batches
            for name in visit.about
            if any(_left(visit, _subject(name, which, batch, mode)) for which in FORMATS)
        ]
        for mode in (QUICK, FULL)
    }
    now, until = time.monotonic(), visit.until("networks")
    rehearsal = now + _REHEARSAL * max(0.0, until - now)
    tasks = [Task(rehearse_network, task) for task in left[QUICK]]
    for outcome in visit.side_by_side(tasks, rehearsal, each=_COMPILING[QUICK]):
        if outcome.reason:
            print(f"{outcome.task.argument}: {outcome.reason}", flush=True)
    for mode, measured in left.items():
        tasks = [Task(measure_network, task) for task in measured]
        for outcome in visit.in_turn(tasks, until, each=_COMPILING[mode]):
            _record_network(visit, outcome)


def _subject(name: str, which: str, batch: int, mode: str) -> str:
    return f"{name} {which} b{batch} beside {mode}"


def _record_network(visit: Visit, outcome: Outcome) -> None:
    """Record a row for each of our formats, which were timed together."""
    task: Measured = outcome.task.argument
    for which, dtype in FORMATS.items():
        about = {"kind": f"networks beside {task.mode}", "network": task.network}
        about |= {"dtype": which, "batch": task.batch, **visit.about[task.network]}
        subject = _subject(task.network, which, task.batch, task.mode)
        found = replace(outcome, found=outcome.found.get(which, {}))
        _record(visit, subject, found, WORDS, dtype, about)
