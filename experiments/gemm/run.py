"""Is the time of a matrix product predicted for ranges of sizes that were never timed?

For each seed, products with sizes from 16 to 512 are known. Others, with one or all sizes beyond
that range, are new. Products are timed in blocks that mix known and new ones, and are recorded
block by block, so an interrupted run resumes; if all are recorded, it only fits the models again.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from sklearn.metrics import r2_score

from experiments.command import run_command
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from experiments.timings import Timings, columns_of
from hwnas.deploy import Target
from hwnas.predictors.estimate import Estimate
from hwnas.predictors.metrics.gemm import Gemm, sampled_gemms, steady_ms, time_gemms
from hwnas.predictors.metrics.gemm_model import GemmModel
from hwnas.predictors.models.gaussian_process import Numbers

FOLDER = Path(__file__).parent
TARGETS = (
    "cpu-onnxruntime-fp32-b1-t1",
    "cpu-onnxruntime-fp32-b1-t2",
    "cpu-openvino-fp32-b1-t1",
    "cpu-onnxruntime-int8-b1-t1",
    "cpu-openvino-bf16-b1-t2",
)
KNOWN, WITHIN, HELD_OUT = "known", "within", "held-out"
FEW_SCORES = ("r2_log", "mape")
"""Metrics that are recorded for the baselines."""
BLOCK = 40
MAX_MACS = 10**9
SEEN, LARGER, SMALLER = (16, 512), (513, 2048), (1, 15)
"""Smallest and largest size."""


def ranges() -> dict[str, tuple[Gemm, Gemm]]:
    """Return the two corners of each held-out range of products."""
    found = {}
    for word, beyond in (("larger", LARGER), ("smaller", SMALLER)):
        for names in ("m", "n", "k", "mnk"):
            sides = [beyond if name in names else SEEN for name in "mnk"]
            low, high = (Gemm(*(side[end] for side in sides)) for end in (0, 1))
            found[f"{word}-{names}"] = low, high
    return found


def drawn(seed: int, known: int, new: int) -> dict[str, list[Gemm]]:
    """Return products by range: known ones, new ones within the same range, and held-out ones."""
    rng = np.random.default_rng(seed)
    low, high = (Gemm(size, size, size) for size in SEEN)
    seen = sampled_gemms(known + new, rng, low, high, MAX_MACS)
    held_out = {
        name: sampled_gemms(new, rng, *corners, MAX_MACS) for name, corners in ranges().items()
    }
    return {KNOWN: seen[:known], WITHIN: seen[known:], **held_out}


def by_product(timings: Timings, target: Target) -> dict[Gemm, dict[str, Any]]:
    """Return the rows of a target by product."""
    return {
        Gemm(row["m"], row["n"], row["k"]): row
        for row in timings.rows
        if row["target"] == target.name
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.gemm.run", description=__doc__)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument(
        "--known", type=int, default=200, help="products that the model is fitted to"
    )
    parser.add_argument("--new", type=int, default=25, help="test products of each range")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    targets = [Target.parse(name) for name in arguments.targets]
    timings = Timings(arguments.out / "products.parquet")
    config = {"known": arguments.known, "new": arguments.new, "max_macs": MAX_MACS}
    answers = Results(arguments.out / "results.jsonl", config)
    for target in targets:
        for seed in arguments.seeds:
            products = drawn(seed, arguments.known, arguments.new)
            time_missing(timings, target, products, seed)
            answers.put(judge(target, products, by_product(timings, target), seed))
    print(crosstab(answers.rows))


def time_missing(
    timings: Timings, target: Target, products: Mapping[str, Sequence[Gemm]], seed: int
) -> None:
    """Time the products that are not recorded, known and new ones mixed."""
    done = by_product(timings, target)
    missing = [gemm for some in products.values() for gemm in some if gemm not in done]
    random.Random(seed).shuffle(missing)
    for start in range(0, len(missing), BLOCK):
        block = missing[start : start + BLOCK]
        measured = time_gemms(block, target)
        timings.put(
            {**vars(gemm), **columns_of(each, rounds="rounds")}  # vars(gemm) has a column n
            for gemm, each in zip(block, measured, strict=True)
        )
        contended = sum(measurement.contended for measurement in measured)
        print(
            f"seed {seed}: {target.name}, {start + len(block)} of {len(missing)} products, "
            f"{contended} contended",
            flush=True,
        )


Predict = Callable[[Sequence[Gemm]], Numbers]


def means(model: GemmModel) -> Predict:
    return lambda gemms: np.array([estimate.mean for estimate in model.predict(gemms)])


def judge(
    target: Target,
    products: Mapping[str, Sequence[Gemm]],
    rows: Mapping[Gemm, Mapping[str, Any]],
    seed: int,
) -> list[Row]:
    """Fit on the known products and score on the new ones, together with two simpler baselines."""
    raw = {gemm: row["latency_ms"] for gemm, row in rows.items()}
    steady = steady_ms(list(raw.values()), [row["anchor_ms"] for row in rows.values()])
    times_ms = dict(zip(raw, steady.tolist(), strict=True))
    held_out = [gemm for name in ranges() for gemm in products[name]]

    def truth(gemms: Sequence[Gemm], of: Mapping[Gemm, float] = times_ms) -> Numbers:
        return np.array([of[gemm] for gemm in gemms])

    def scored(method: str, predict: Predict, of: Mapping[Gemm, float] = times_ms) -> list[Row]:
        found = scores(predict(held_out), truth(held_out, of))
        subject = f"{target.name} {HELD_OUT} {method}"
        return [answer(name, subject, seed, value, len(held_out)) for name, value in found.items()]

    known = products[KNOWN]
    model = GemmModel.fit(target.name, known, truth(known).tolist())
    answers = scored("model", means(model))
    subject = f"{target.name} {HELD_OUT} model"
    coverage = covered(model.predict(held_out), truth(held_out))
    answers.append(answer("coverage_of_90", subject, seed, coverage, len(held_out)))
    for name in (WITHIN, *ranges()):
        gemms = products[name]
        mape = scores(means(model)(gemms), truth(gemms))["mape"]
        inside = {"coverage_of_90": covered(model.predict(gemms), truth(gemms))}
        answers.append(
            answer("mape", f"{target.name} {name} model", seed, mape, len(gemms), inside)
        )
    for rival, fit in {"roofline": textbook_roofline, "macs": by_macs}.items():
        answers += scored(rival, fit(known, truth(known)))
    drifting = GemmModel.fit(target.name, known, truth(known, raw).tolist())
    answers += scored("model-as-timed", means(drifting), raw)
    return [row for row in answers if row.subject.endswith(" model") or row.metric in FEW_SCORES]


def answer(
    metric: str,
    subject: str,
    seed: int,
    value: float,
    n: int,
    details: Mapping[str, float] | None = None,
) -> Row:
    unit = "ratio" if metric.startswith("r2") else "fraction"
    return Row(metric, subject, seed, value, unit, n, details=details or {})


def scores(predicted_ms: Numbers, truth_ms: Numbers) -> dict[str, float]:
    """Return the scores by metric; the first two are shares of explained variance."""
    errors = np.abs(predicted_ms / truth_ms - 1)
    return {
        "r2_log": float(r2_score(np.log(truth_ms), np.log(predicted_ms))),
        "r2": float(r2_score(truth_ms, predicted_ms)),
        "mape": float(errors.mean()),
        "median_error": float(np.median(errors)),
    }


def covered(estimates: Sequence[Estimate], truth_ms: Numbers) -> float:
    """Return the share of true times that are inside the 90% prediction intervals."""
    low, high = np.array([estimate.interval90 for estimate in estimates]).T
    return float(((low <= truth_ms) & (truth_ms <= high)).mean())


def by_macs(known: Sequence[Gemm], known_ms: Numbers) -> Predict:
    """Fit a time in proportion to multiply-accumulates."""
    log_rate = np.mean(np.log(known_ms) - np.log([gemm.macs for gemm in known]))
    return lambda gemms: np.exp(log_rate) * np.array([gemm.macs for gemm in gemms], dtype=float)


def textbook_roofline(known: Sequence[Gemm], known_ms: Numbers) -> Predict:
    """Fit an overhead plus the longer of computing and of moving each matrix once."""

    def log_ms(log_costs: Numbers, gemms: Sequence[Gemm]) -> Numbers:
        call, a_mac, a_number = np.exp(log_costs)
        macs = np.array([gemm.macs for gemm in gemms])
        numbers = np.array([g.m * g.k + g.k * g.n + g.m * g.n for g in gemms])
        logs: Numbers = np.log(call + np.maximum(a_mac * macs, a_number * numbers))
        return logs

    start = np.log([known_ms.min(), 1e-8, 1e-7])
    fitted = least_squares(lambda costs: log_ms(costs, known) - np.log(known_ms), start)
    return lambda gemms: np.exp(log_ms(fitted.x, gemms))


if __name__ == "__main__":
    main()
