"""Evaluation of latency predictions by an adapted predictor and by single-number baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from experiments.record import Row
from hwnas.deploy import Target
from hwnas.predictors import DevicePredictor, shipped_prior
from hwnas.search_spaces import Architecture, SearchSpace, Workload

__all__ = ["judge"]

_Z90 = 1.6449  # quantile of the normal distribution that leaves 5% on either side
Numbers = npt.NDArray[np.float64]


def judge(
    space: SearchSpace,
    target: Target,
    known: Sequence[Row],
    asked: Sequence[Row],
    seed: int,
    prefix: str = "",
) -> list[Row]:
    """Fit a predictor on some timed networks and score it on others, with two one-number baselines.

    Args:
        space: Space of the networks.
        target: Target on which they were timed.
        known: Rows of `latency_row` on which the predictor is fitted.
        asked: Rows of `latency_row` on which it is scored.
        seed: Seed of the returned rows.
        prefix: Prefix of their subjects.
    """
    learnt, others = (
        [space.workload(Architecture.from_json(row.details["architecture"])) for row in rows]
        for rows in (known, asked)
    )
    costs, truth = (np.array([row.value for row in rows], dtype=float) for rows in (known, asked))
    fitted = DevicePredictor(target.name, shipped_prior()).adapt(learnt, costs.tolist())
    estimates = fitted.cost(others, [target] * len(others))
    means = np.array([estimate.mean for estimate in estimates])
    log_std = np.arcsinh([estimate.std / estimate.mean for estimate in estimates])
    inside = np.abs(np.log(truth / means)) <= _Z90 * log_std
    predictions = {
        "default": means,
        "macs": _log_linear(lambda w: w.macs, learnt, others, costs),
        "params": _log_linear(lambda w: w.params, learnt, others, costs),
    }
    disturbed = float(np.mean([row.details["contended"] for row in (*known, *asked)]))
    n, answers = len(truth), []
    for method, predicted in predictions.items():
        errors, subject = np.abs(predicted / truth - 1), prefix + method
        spread = {"p20": float(np.quantile(errors, 0.2)), "p80": float(np.quantile(errors, 0.8))}
        rho = float(spearmanr(predicted, truth).statistic)
        answers.append(Row("spearman", subject, seed, rho, "rho", n))
        answers.append(
            Row("median_error", subject, seed, float(np.median(errors)), "fraction", n, spread)
        )
    return [
        *answers,
        Row("coverage_of_90", f"{prefix}default", seed, float(inside.mean()), "fraction", n),
        Row("disturbed_timings", f"{prefix}all", seed, disturbed, "fraction", n + len(known)),
    ]


def _log_linear(
    size: Callable[[Workload], int],
    known: Sequence[Workload],
    asked: Sequence[Workload],
    latencies: Numbers,
) -> Numbers:
    """Predict latency as a power of one size, fitted by least squares on logarithms."""
    learnt, others = (np.log([size(w) for w in some]) for some in (known, asked))
    fitted: Numbers = np.exp(np.polyval(np.polyfit(learnt, np.log(latencies), 1), others))
    return fitted
