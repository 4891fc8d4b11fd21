"""How much of the front of accuracy and energy does a search for latency miss?

Networks of NAS-Bench-201 are searched with the accuracies and the energies that were measured on a
Raspberry Pi 5. One search is for energy, others are for a stand-in: latency in the same runtime, or
multiply-accumulates. All fronts are scored by their energies.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean

import numpy as np

from experiments.command import data_folder, run_command
from experiments.readme_table import across
from experiments.record import Results, Row
from hwnas.plugin import resolve
from hwnas.search.objectives.front import non_dominated
from hwnas.search.tables import Calibration, bench_search, read_objective_table, tight_box
from hwnas.search.tables.table import ObjectiveTable

TASKS = ("cifar100", "ninapro")
RUNTIMES = ("litert", "onnx", "torchmobile")
CASES = tuple(f"{runtime}_{task}" for task in TASKS for runtime in RUNTIMES)
MEAN = "mean"
_MEASURED = "latency/nasbench201_hwnas360.npz"
_COUNTED = "nasbench/nasbench201.npz:cifar100_macs"

COSTS: Mapping[str, Callable[[str], str]] = {
    "energy": lambda case: f"{_MEASURED}:energy_mj[pi5_{case}]",
    "latency": lambda case: f"{_MEASURED}:lat_ms[pi5_{case}]",
    "macs": lambda case: _COUNTED,
}
"""Second objective of each search, beside accuracy, by its name."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.energy_search.run", description=__doc__
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 to N - 1")
    parser.add_argument("--evals", type=int, default=100)
    parser.add_argument("--measured", type=int, default=10, help="networks measured before")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    for name in arguments.cases:
        resolve("case", name, dict.fromkeys(CASES))
    settings = {"evals": arguments.evals, "measured": arguments.measured}
    answers = Results(arguments.out / "results.jsonl", settings)
    missing = [
        (case, cost)
        for case in arguments.cases
        for cost in COSTS
        if answers.find(f"lost_{cost}", case, arguments.seeds - 1) is None
    ]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, mp_context=spawn) as pool:
        given = arguments.evals, arguments.seeds, arguments.measured
        running = [pool.submit(searched, case, cost, *given) for case, cost in missing]
        for (case, cost), done in zip(missing, running, strict=True):
            answers.put(done.result())
            print(f"{case} {cost}", flush=True)
    for case in arguments.cases:
        answers.put([everything(case)])
    answers.put(means(answers.rows, arguments.cases))
    print(across(answers.rows))


def table_of(case: str, cost: str) -> ObjectiveTable:
    """Return the networks with their accuracy in a task and one of `COSTS`."""
    accuracy = TASKS.index(case.rpartition("_")[2])
    folder = data_folder()
    texts = f"{_MEASURED}:task_accuracy[{accuracy}]:max", f"{COSTS[cost](case)}:min"
    return read_objective_table([f"{folder}/{text}" for text in texts])


def searched(case: str, cost: str, evals: int, seeds: int, measured: int) -> list[Row]:
    """Search once with each seed, and return the regret in accuracy and energy.

    Args:
        case: Runtime and task, one of `CASES`.
        cost: Second objective of the search, one of `COSTS`.
        evals: Number of evaluated networks.
        seeds: Number of searches.
        measured: Networks whose cost is measured beforehand, for the predictor of all others.
    """
    import torch

    torch.set_num_threads(1)
    table = table_of(case, cost)
    counted = cost == "macs"
    rows = bench_search(
        *(table, "guided", evals, seeds),
        test=table_of(case, "energy"),
        known="cifar100_macs" if counted else None,
        calibration=None if counted else Calibration.of(table, measured),
    )
    return [
        Row(f"lost_{cost}", case, row.seed, 1 - row.hypervolume_test, "ratio", evals)
        for row in rows
        if row.evals == evals and row.hypervolume_test is not None
    ]


def everything(case: str) -> Row:
    """Return the regret of the front of accuracy and latency among all networks of the table."""
    front = np.flatnonzero(non_dominated(table_of(case, "latency").losses))
    energies = table_of(case, "energy")
    lost = 1 - tight_box(energies).share(front)
    return Row("lost_true_latency", case, 0, lost, "ratio", len(energies.codes))


def means(rows: list[Row], cases: list[str]) -> list[Row]:
    """Return the means over the cases for each seed."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row.subject in cases and row.value is not None:
            found.setdefault((row.metric, row.seed), []).append(row.value)
    return [
        Row(metric, MEAN, seed, fmean(values), "ratio", len(values))
        for (metric, seed), values in found.items()
        if len(values) == len(cases)
    ]


if __name__ == "__main__":
    main()
