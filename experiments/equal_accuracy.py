"""How much faster one front is than another at equal accuracy, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from experiments.record import Row
from hwnas.search.front import hypervolume, non_dominated, reference_point

__all__ = ["SHARES", "compared", "hypervolume_ratio", "latency_at", "levels", "speed_ratios"]

SHARES = (0.25, 0.5, 0.75)
"""Where accuracies are quoted, in the range that both fronts have."""

_DRAWS = 1000
Numbers = npt.NDArray[np.float64]


def latency_at(errors: Numbers, latencies: Numbers, wanted: Numbers) -> Numbers:
    """The latency that a front takes for some errors: its logarithm lies on straight lines.

    Args:
        errors: Of some networks (N,).
        latencies: Of the same, in ms; those that are not on the front count for nothing.
        wanted: Errors (K,); beyond an end of the front that end's latency is given.
    """
    table = np.column_stack([errors, np.log(latencies)])
    front = table[non_dominated(table)]
    front = front[np.argsort(front[:, 0])]
    found: Numbers = np.exp(np.interp(wanted, front[:, 0], front[:, 1]))
    return found


def levels(ours: Numbers, theirs: Numbers, shares: Sequence[float] = SHARES) -> Numbers:
    """Errors at some shares of the range that two fronts have in common, from high to low.

    Args:
        ours: Errors and latencies (N, 2).
        theirs: The same of the other side.
        shares: In 0..1, from the least accuracy to the highest that both have.

    Returns:
        None of them (an empty array) where the fronts have no accuracy in common.
    """
    sides = [side[non_dominated(side)] for side in (ours, theirs)]
    worst, best = (min(s[:, 0].max() for s in sides), max(s[:, 0].min() for s in sides))
    if worst <= best:
        return np.empty(0)
    found: Numbers = worst + (best - worst) * np.array(shares)
    return found


def speed_ratios(ours: Numbers, theirs: Numbers, errors: Numbers) -> Numbers:
    """Latency of the other front over that of ours, at some errors."""
    theirs_ms, ours_ms = (latency_at(s[:, 0], s[:, 1], errors) for s in (theirs, ours))
    return theirs_ms / ours_ms


def hypervolume_ratio(ours: Numbers, theirs: Numbers) -> float:
    """Of error and log latency, with one reference point for both sides."""
    tables = [np.column_stack([side[:, 0], np.log(side[:, 1])]) for side in (ours, theirs)]
    reference = reference_point(np.vstack(tables))
    first, second = (hypervolume(table, reference) for table in tables)
    return first / max(second, 1e-12)


def compared(
    rows: Sequence[Row], ours: str, theirs: str, seed: int, subject: str | None = None
) -> list[Row]:
    """Compare two sides of one seed by the `test_error` rows of their networks.

    The accuracies are fixed by the rule of `SHARES`. For the spread every test error is drawn again
    from the distribution of its standard error, each on its own: 5% and 95% quantiles, with the
    latencies and the accuracies quoted as they were found.

    Args:
        rows: Of all networks of the seed.
        ours: A side.
        theirs: Another.
        seed: Of the answers.
        subject: Of the answers; the names of both sides if None.
    """
    sides = [
        [row for row in rows if row.metric == "test_error" and row.details["side"] == side]
        for side in (ours, theirs)
    ]
    tables = [
        np.array([[row.value, row.details["latency_ms"]] for row in side], dtype=float)
        for side in sides
    ]
    deviations = [np.array([row.spread["standard_error"] for row in side]) for side in sides]
    errors, rng, drawn = levels(tables[0], tables[1]), np.random.default_rng(0), []
    for _ in range(_DRAWS):
        again = [table.copy() for table in tables]
        for table, deviation in zip(again, deviations, strict=True):
            table[:, 0] += deviation * rng.standard_normal(len(table))
        drawn.append(list(_scores(again[0], again[1], errors).values()))
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    n, name = sum(map(len, sides)), subject or f"{ours} / {theirs}"
    found = []
    for i, (metric, value) in enumerate(_scores(tables[0], tables[1], errors).items()):
        spread = {"p05": float(low[i]), "p95": float(high[i])}
        details = {"test_accuracy": 1 - float(errors[i])} if i < len(errors) else {}
        found.append(Row(metric, name, seed, value, "ratio", n, spread, details))
    return found


def _scores(ours: Numbers, theirs: Numbers, errors: Numbers) -> dict[str, float]:
    """By metric; without speeds where there are no errors to quote them at."""
    ratios = speed_ratios(ours, theirs, errors)
    found = {
        f"speed_at_{100 * share:.0f}_percent": float(ratio)
        for share, ratio in zip(SHARES, ratios, strict=False)
    }
    if len(ratios):
        found["speed_at_equal_accuracy"] = float(np.exp(np.log(ratios).mean()))
    return {**found, "hypervolume_ratio": hypervolume_ratio(ours, theirs)}
