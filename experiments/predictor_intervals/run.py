"""Do 90% intervals contain nine in ten costs on families of devices that were held out?

Each family of a table (all NVIDIA GPUs, all phones, ...) is new in turn, and all other devices are
known. The coverage and the width of the intervals over the median error are recorded, by the number
of measurements of the new device. They are means over families, so that a family with many tables
counts no more than another.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from experiments.command import data_folder, run_command
from experiments.predictors.splits import FAMILIES, Family
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.plugin import resolve
from hwnas.predictors.benchmarks.benchmark import PredictorRow, bench_predictor
from hwnas.predictors.benchmarks.cost_table import read_cost_table

SAMPLES = (5, 10, 20, 40)
METHODS = ("default", "ridge", "ridge_quantiles")
UNITS = {"coverage90": "ratio", "width_over_error": "ratio", "median_ape": "%"}


@dataclass(frozen=True)
class Score:
    """Scores of the devices of one family with one seed.

    Attributes:
        coverage90: Share of true costs inside the interval.
        relative_width90: Width over the predicted cost, in percent.
        median_ape: Median absolute error, in percent.
    """

    coverage90: float
    relative_width90: float
    median_ape: float

    @classmethod
    def mean(cls, rows: list[PredictorRow] | list[Score]) -> Score:
        """Return the mean of each score."""
        names = ("coverage90", "relative_width90", "median_ape")
        return cls(*(fmean(getattr(row, name) for row in rows) for name in names))

    @property
    def width_over_error(self) -> float:
        """Mean width over mean error."""
        return self.relative_width90 / self.median_ape


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.predictor_intervals.run", description=__doc__
    )
    parser.add_argument("--tables", nargs="+", default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    answers = Results(arguments.out / "results.jsonl", {"seeds": arguments.seeds})
    for table in arguments.tables:
        families = resolve("table", table, FAMILIES)
        for samples in SAMPLES:
            for method in METHODS:
                subject = f"{table}-{samples} {method}"
                if answers.find("coverage90", subject, 0) is None:
                    rows = list(_scored(families, samples, method, arguments.seeds))
                    answers.put(_summary(subject, rows, arguments.seeds))
                    print(subject, flush=True)
    print(crosstab(answers.rows))


def _scored(
    families: tuple[Family, ...], samples: int, method: str, seeds: int
) -> Iterator[tuple[str, int, Score]]:
    """Yield the scores of each held-out family, with each seed."""
    for family in families:
        table = read_cost_table(data_folder() / family.table, family.metric)
        known = [device for device in table.devices if device not in family.devices]
        rows = bench_predictor(
            table, known, family.devices, method, samples, family.pool, "full", seeds
        )
        for seed in range(seeds):
            yield family.name, seed, Score.mean([row for row in rows if row.seed == seed])


def _summary(subject: str, rows: list[tuple[str, int, Score]], seeds: int) -> list[Row]:
    by_seed = [Score.mean([s for _, k, s in rows if k == seed]) for seed in range(seeds)]
    names = list(dict.fromkeys(name for name, *_ in rows))
    by_family = {name: Score.mean([s for n, _, s in rows if n == name]) for name in names}
    whole = Score.mean([score for *_, score in rows])
    return [
        Row(
            metric,
            subject,
            0,
            getattr(whole, metric),
            unit,
            len(rows),
            _range([getattr(score, metric) for score in by_seed]),
            {"families": {n: round(getattr(s, metric), 4) for n, s in by_family.items()}},
        )
        for metric, unit in UNITS.items()
    ]


def _range(values: list[float]) -> dict[str, float]:
    return {"least": min(values), "most": max(values)}


if __name__ == "__main__":
    main()
