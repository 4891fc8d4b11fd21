"""What is the hypervolume regret of each sampler after a number of evaluations?

Every sampler searches every case through the function of `hwnas bench search`. The hypervolume
regret is the share of the true front's hypervolume that the search lacks; its mean over seeds is
recorded.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from experiments.command import data_folder, run_command
from experiments.over_cases import mean_over_cases
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from experiments.search_quality.cases import CASES, GROUPS
from hwnas.plugin import resolve
from hwnas.search.objectives.front import non_dominated
from hwnas.search.tables import (
    Calibration,
    SearchRow,
    bench_search,
    read_objective_table,
    read_test_table,
    tight_box,
)

SAMPLERS = (
    "guided", "linas", "forest", "surrogate-nsga2", "proxy-order", "tpe", "nsga2", "random",
)  # fmt: skip
LOSSES = {
    "lost": "hypervolume",
    "lost_wide": "hypervolume_wide",
    "lost_test": "hypervolume_test",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.search_quality.run", description=__doc__
    )
    chosen = [name for name in CASES if not name.startswith("validation")]
    parser.add_argument("--cases", nargs="+", default=chosen, metavar="NAME")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), metavar="NAME")
    parser.add_argument("--evals", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=20, help="seeds 0 to N - 1")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    for name in arguments.cases:
        resolve("case", name, CASES)
    settings = {"seeds": arguments.seeds, "evals": arguments.evals}
    answers = Results(arguments.out / "results.jsonl", settings)
    missing = [
        (case, sampler)
        for case in arguments.cases
        for sampler in arguments.samplers
        if answers.find("lost", f"{case} {sampler}", 0) is None
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=spawn) as pool:
        running = {
            pool.submit(bench, case, sampler, arguments.evals, arguments.seeds): (case, sampler)
            for case, sampler in missing
        }
        for done in as_completed(running):
            case, sampler = running[done]
            answers.put(summary(case, sampler, done.result()))
            print(f"{case} {sampler}", flush=True)
    for case in arguments.cases:
        if answers.find("lost_test", f"{case} everything", 0) is None:
            answers.put(everything(case))
    answers.put(mean_over_cases(answers.rows, GROUPS))
    answers.put(ratios(answers.rows))
    print(crosstab(answers.rows))


def bench(case: str, sampler: str, evals: int, seeds: int) -> list[SearchRow]:
    """Return all rows of one sampler on one case."""
    import torch

    torch.set_num_threads(1)
    about, folder = CASES[case], data_folder()
    table = read_objective_table(about.objectives(folder))
    test = read_test_table(table, about.tests(folder)) if about.test else None
    calibration = None if about.calibrate is None else Calibration.of(table, about.calibrate)
    return bench_search(
        table, sampler, evals, seeds, test=test, known=about.known, calibration=calibration
    )


def summary(case: str, sampler: str, rows: list[SearchRow]) -> list[Row]:
    """Return the final regret, one row per box; all milestones and seeds are in the details."""
    last = max(row.evals for row in rows)
    answers = []
    for metric, attribute in LOSSES.items():
        lost = {
            evals: [
                round(1 - value, 5)
                for row in rows
                if row.evals == evals and (value := getattr(row, attribute)) is not None
            ]
            for evals in sorted({row.evals for row in rows})
        }
        seeds = lost[last]
        if seeds:
            spread = {"std": stdev(seeds)} if len(seeds) > 1 else {}
            details = {
                "seeds": seeds,
                "means": {str(evals): round(fmean(each), 5) for evals, each in lost.items()},
            }
            subject = f"{case} {sampler}"
            mean = fmean(seeds)
            answers.append(Row(metric, subject, 0, mean, "ratio", len(seeds), spread, details))
    repeated = fmean(1 - row.unique / row.evals for row in rows if row.evals == last)
    answers.append(Row("repeated", f"{case} {sampler}", 0, repeated, "ratio", len(rows), {}, {}))
    return answers


def everything(case: str) -> list[Row]:
    """Return the regret of the first table's whole front on the test table.

    A search that only knows the first table has less regret only by luck.
    """
    about, folder = CASES[case], data_folder()
    if not about.test:
        return []
    table = read_objective_table(about.objectives(folder))
    test = read_test_table(table, about.tests(folder))
    front = np.flatnonzero(non_dominated(table.losses))
    lost = 1 - tight_box(test).share(front)
    return [Row("lost_test", f"{case} everything", 0, lost, "ratio", len(table.codes))]


def ratios(rows: list[Row]) -> list[Row]:
    """Return the ratio of guided's regret to that of its best rival, averaged over cases."""
    lost = {(row.metric, *row.subject.rsplit(" ", 1)): row.value for row in rows}
    answers = []
    for group, cases in {**GROUPS, **{case: (case,) for case in CASES}}.items():
        for metric in LOSSES:
            for name, rivals in RIVALS.items():
                found = [_ratio(lost, metric, case, rivals) for case in cases]
                values = [value for value in found if value is not None]
                if len(values) == len(cases):
                    several = len(values) > 1
                    spread = {"least": min(values), "most": max(values)} if several else {}
                    subject = f"{group} guided/{name}"
                    mean = fmean(values)
                    answers.append(
                        Row(f"{metric}_ratio", subject, 0, mean, "ratio", len(values), spread, {})
                    )
    return answers


RIVALS = {
    "best-rival": ("linas", "forest", "surrogate-nsga2", "proxy-order"),
    "linas": ("linas",),
    "tpe": ("tpe",),
}


def _ratio(
    lost: dict[tuple[str, ...], float | None], metric: str, case: str, rivals: tuple[str, ...]
) -> float | None:
    ours = lost.get((metric, case, "guided"))
    theirs = [value for r in rivals if (value := lost.get((metric, case, r))) is not None]
    return None if ours is None or len(theirs) < len(rivals) else ours / min(theirs)


if __name__ == "__main__":
    main()
