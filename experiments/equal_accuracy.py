"""Speed ratio of two Pareto fronts at equal accuracy, with its uncertainty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from experiments.record import Row
from hwnas.search.objectives.front import hypervolume, non_dominated, reference_point

__all__ = ["SHARES", "compared", "hypervolume_ratio", "latency_at", "levels", "speed_ratios"]

SHARES = (0.25, 0.5, 0.75)
"""Positions at which accuracies are compared, as shares of the range that both fronts cover."""

_DRAWS = 1000
Numbers = npt.NDArray[np.float64]


def latency_at(errors: Numbers, latencies: Numbers, wanted: Numbers) -> Numbers:
    """Return the latencies of a front at given errors, by linear interpolation of their logarithm.

    Args:
        errors: Errors of some networks, of shape (N,).
        latencies: Latencies of these networks in ms, of shape (N,). Networks that are not on the
            front are ignored.
        wanted: Errors, of shape (K,); beyond an end of the front, the latency of that end is
            returned.
    """
    table = np.column_stack([errors, np.log(latencies)])
    front = table[non_dominated(table)]
    front = front[np.argsort(front[:, 0])]
    found: Numbers = np.exp(np.interp(wanted, front[:, 0], front[:, 1]))
    return found


def levels(ours: Numbers, theirs: Numbers, shares: Sequence[float] = SHARES) -> Numbers:
    """Return errors at some shares of the range that two fronts have in common, from high to low.

    Args:
        ours: Errors and latencies of one side, of shape (N, 2).
        theirs: Errors and latencies of the other side, likewise.
        shares: Shares in 0..1, from the lowest to the highest accuracy that both sides reach.

    Returns:
        The errors; an empty array where the fronts have no accuracy in common.
    """
    sides = [side[non_dominated(side)] for side in (ours, theirs)]
    worst, best = (min(s[:, 0].max() for s in sides), max(s[:, 0].min() for s in sides))
    if worst <= best:
        return np.empty(0)
    found: Numbers = worst + (best - worst) * np.array(shares)
    return found


def speed_ratios(ours: Numbers, theirs: Numbers, errors: Numbers) -> Numbers:
    """Return the latency of the other front divided by that of our front, at some errors."""
    theirs_ms, ours_ms = (latency_at(s[:, 0], s[:, 1], errors) for s in (theirs, ours))
    return theirs_ms / ours_ms


def hypervolume_ratio(ours: Numbers, theirs: Numbers) -> float:
    """Return the hypervolume of our side divided by that of the other side.

    Both hypervolumes are of error and log latency, with one reference point.
    """
    tables = [np.column_stack([side[:, 0], np.log(side[:, 1])]) for side in (ours, theirs)]
    reference = reference_point(np.vstack(tables))
    first, second = (hypervolume(table, reference) for table in tables)
    return first / max(second, 1e-12)


def compared(
    rows: Sequence[Row],
    ours: str,
    theirs: str,
    seed: int,
    subject: str | None = None,
    cost: str = "latency_ms",
) -> list[Row]:
    """Compare two sides of one seed by the `test_error` rows of their networks.

    The accuracies of the comparison are fixed by `SHARES`. The spread is the 5% and 95% quantiles
    over draws in which every test error is sampled independently from the distribution of its
    standard error. The latencies and the accuracies of the comparison stay as they were found.

    Args:
        rows: Rows of all networks of the seed.
        ours: Name of one side.
        theirs: Name of the other side.
        seed: Seed of the returned rows.
        subject: Subject of the returned rows; the names of both sides if None.
        cost: Detail of the rows that takes the place of the latency.
    """
    sides = [
        [row for row in rows if row.metric == "test_error" and row.details["side"] == side]
        for side in (ours, theirs)
    ]
    tables = [
        np.array([[row.value, row.details[cost]] for row in side], dtype=float) for side in sides
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
    """Return the scores by metric, without speed ratios where there are no errors to compare at."""
    ratios = speed_ratios(ours, theirs, errors)
    found = {
        f"speed_at_{100 * share:.0f}_percent": float(ratio)
        for share, ratio in zip(SHARES, ratios, strict=False)
    }
    if len(ratios):
        found["speed_at_equal_accuracy"] = float(np.exp(np.log(ratios).mean()))
    return {**found, "hypervolume_ratio": hypervolume_ratio(ours, theirs)}
