"""How well are costs predicted on unknown devices, on published tables?

Every method is run on every split of devices through the function of `hwnas bench predictor`. The
means over the new devices of a split and over seeds are recorded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

from experiments.command import data_folder, run_command
from experiments.over_cases import mean_over_cases
from experiments.predictors.splits import SPLITS, Split, random_splits
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.plugin import resolve
from hwnas.predictors.benchmarks.benchmark import METHODS, PredictorRow, bench_predictor
from hwnas.predictors.benchmarks.cost_table import CostTable, read_cost_table

UNITS = {
    "spearman": "rho",
    "kendall": "tau",
    "mape": "%",
    "median_ape": "%",
    "coverage90": "ratio",
    "width90": "%",
    "relative_width90": "%",
    "width_over_error": "ratio",
    "seconds": "s",
}
ANSWERS = (
    "spearman",
    "median_ape",
    "mape",
    "coverage90",
    "width90",
    "relative_width90",
    "width_over_error",
    "seconds",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.predictors.run", description=__doc__
    )
    parser.add_argument("--splits", nargs="+", default=list(SPLITS), metavar="NAME")
    parser.add_argument("--random", action="store_true", help="FBNet's ten random splits as well")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    splits = {name: resolve("split", name, SPLITS) for name in arguments.splits}
    if arguments.random:
        splits |= random_splits(_table(next(iter(random_splits(("a", "b")).values()))).devices)
    answers = Results(arguments.out / "results.jsonl", {"seeds": arguments.seeds})
    for name, split in splits.items():
        for method in arguments.methods:
            if answers.find("spearman", f"{name} {method}", 0) is None:
                rows = bench(split, method, arguments.seeds)
                answers.put(summary(name, method, rows))
                print(f"{name} {method}: {fmean(row.spearman for row in rows):.4f}", flush=True)
    fixed = {
        f"{table}-mean": [name for name in SPLITS if name.startswith(f"{table}-")]
        for table in ("nb201", "fbnet", "energy")
    }
    drawn = [name for name in splits if name not in SPLITS]
    groups = {**fixed, "fbnet-random-mean": drawn}
    answers.put(mean_over_cases(answers.rows, groups))
    print(crosstab(answers.rows))


def _table(split: Split) -> CostTable:
    return read_cost_table(data_folder() / split.table, split.metric)


def bench(split: Split, method: str, seeds: int) -> list[PredictorRow]:
    return bench_predictor(
        _table(split),
        split.train,
        split.test,
        method,
        split.samples,
        split.pool,
        split.protocol,
        seeds,
    )


def score_of(rows: list[PredictorRow], score: str) -> float:
    """Return the mean of a score; the width over the error is the ratio of their means."""
    if score == "width_over_error":
        return score_of(rows, "relative_width90") / score_of(rows, "median_ape")
    return fmean(getattr(row, score) for row in rows)


def summary(name: str, method: str, rows: list[PredictorRow]) -> list[Row]:
    """Return means over devices and seeds with the range over seeds, one row per score."""
    answers = []
    for score in ANSWERS:
        seeds = [
            score_of([row for row in rows if row.seed == seed], score)
            for seed in {row.seed for row in rows}
        ]
        devices = {
            device: round(score_of([row for row in rows if row.device == device], score), 4)
            for device in dict.fromkeys(row.device for row in rows)
        }
        answers.append(
            Row(
                score,
                f"{name} {method}",
                0,
                fmean(seeds),
                UNITS[score],
                len(rows),
                {"least": min(seeds), "most": max(seeds)},
                {"devices": devices},
            )
        )
    return answers


if __name__ == "__main__":
    main()
