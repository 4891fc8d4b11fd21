"""Do spec sheets predict which networks are fast on a device, before anything is measured on it?

Each hardware of HELP's tables is left out in turn, with all its batch sizes, and predicted from
its spec sheet and from the other hardware.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from scipy.stats import spearmanr

from experiments.command import run_command
from experiments.over_cases import mean_over_cases
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from experiments.spec_sheets.methods import METHODS, Case, roofline_logs
from experiments.spec_sheets.tables import POOL, Table, read_table
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.predictors.features.physical import physical_features
from hwnas.predictors.models.gaussian_process import Numbers

FOLDER = Path(__file__).parent
TABLES = ("nasbench201", "fbnet")
RANDOM = ("group-attention",)  # methods that depend on a seed
UNITS = {"spearman": "rho", "median_ape": "%"}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.spec_sheets.run", description=__doc__
    )
    parser.add_argument("--tables", nargs="+", default=[*TABLES], metavar="TABLE")
    parser.add_argument("--methods", nargs="+", default=[*METHODS], metavar="METHOD")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    for given, known in ((arguments.tables, TABLES), (arguments.methods, METHODS)):
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown table or method {name!r}; {closest(name, known)}")
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds is {arguments.seeds}; expected at least 1")
    torch.set_num_threads(1)  # the network is tiny: threads wait for each other
    settings = {"pool": POOL, "seeds": arguments.seeds}
    answers = Results(arguments.out / "results.jsonl", settings)
    for name in arguments.tables:
        missing = [
            m for m in arguments.methods if answers.find("spearman", f"{name} {m}", 0) is None
        ]
        table = read_table(name) if missing else None
        for method in missing:
            assert table is not None
            seeds = range(arguments.seeds if method in RANDOM else 1)
            scores = [held_out(table, method, seed) for seed in seeds]
            rows = _rows(f"{name} {method}", scores)
            answers.put(rows)
            found = ", ".join(f"{row.metric} {row.value:.3g}" for row in rows)
            print(f"{name} {method}: {found}", flush=True)
    answers.put(mean_over_cases(answers.rows, {"mean": TABLES}))
    print(crosstab(answers.rows))


def held_out(table: Table, method: str, seed: int) -> dict[str, dict[str, float]]:
    """Return the scores of a method by hardware, each left out; means over its batch sizes."""
    found = {}
    for hardware in dict.fromkeys(column.hardware for column in table.columns):
        own = [i for i, column in enumerate(table.columns) if column.hardware == hardware]
        logs = METHODS[method](case_of(table, own), seed)
        true = np.log(table.asked_ms[:, own])
        each = [scores_of(*pair) for pair in zip(logs.T, true.T, strict=True)]
        found[hardware] = {score: fmean(s[score] for s in each) for score in UNITS}
    return found


def case_of(table: Table, new: Sequence[int]) -> Case:
    """Return the case in which some columns are new and those of all other hardware are known."""
    columns = table.columns
    known = [i for i in range(len(columns)) if i not in new]
    described = np.array([column.description for column in columns])
    return Case(
        described[known],
        [columns[i].hardware for i in known],
        described[[*new]],
        (np.log(table.known_ms[:, known]), np.log(table.asked_ms[:, known])),
        (physical_features(table.known), physical_features(table.asked)),
        (
            np.array([roofline_logs(table.known, described[i]) for i in known]).T,
            np.array([roofline_logs(table.asked, described[i]) for i in new]).T,
        ),
    )


def scores_of(logs: Numbers, true: Numbers) -> dict[str, float]:
    """Return the scores of predicted log latencies, both of shape (M,)."""
    return {
        "spearman": float(spearmanr(logs, true).statistic),
        "median_ape": 100 * float(np.median(np.abs(np.exp(logs - true) - 1))),
    }


def _rows(subject: str, seeds: Sequence[Mapping[str, Mapping[str, float]]]) -> list[Row]:
    """Return a row for each score: the mean over hardware and seeds."""
    rows = []
    for score, unit in UNITS.items():
        of_seeds = [fmean(each[score] for each in scores.values()) for scores in seeds]
        hardware = {
            name: round(fmean(scores[name][score] for scores in seeds), 4) for name in seeds[0]
        }
        spread = {
            "least": min(hardware.values()),
            "most": max(hardware.values()),
            "least_seed": min(of_seeds),
            "most_seed": max(of_seeds),
        }
        n, details = len(hardware), {"hardware": hardware}
        rows.append(Row(score, subject, 0, fmean(of_seeds), unit, n, spread, details))
    return rows


if __name__ == "__main__":
    main()
