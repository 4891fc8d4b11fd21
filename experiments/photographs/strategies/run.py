"""Which way to spend a budget finds the better networks: training each alone, or a supernet?

Per budget and seed: the planned job, and the job that is planned where the recipe asks for a
supernet. The networks of both are timed against each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.command import run_command
from experiments.equal_accuracy import hypervolume_ratio
from experiments.photographs.options import images_of, name_of_images, parser_of
from experiments.photographs.run import LIMIT_MS, OURS
from experiments.readme_table import markdown
from experiments.record import Results, Row
from experiments.sides import Network, best_within, measured_rows, of_job
from hwnas.deploy import Target
from hwnas.experiment import Experiment
from hwnas.experiment.from_images import DEFAULT_TARGET
from hwnas.stages.job import Ingredients

SUPERNET = "supernet"
STRATEGIES: Mapping[str, Sequence[str]] = {
    OURS: (),
    SUPERNET: ("search.evaluator=supernet",),
}
"""What each sets in the recipe; the first is the job of `experiments.photographs.run`."""

LATENCIES_MS = (0.1, 0.2, 0.4)


def main() -> None:
    parser = parser_of(Path(__file__).parent, __doc__, seeds=[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=[15.0, 45.0], metavar="M")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change all recipes"
    )
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    config = {
        "images": name_of_images(arguments),
        "set": arguments.set,
        "limit_ms": LIMIT_MS,
        "latencies_ms": LATENCIES_MS,
        "strategies": {name: list(settings) for name, settings in STRATEGIES.items()},
    }
    results = Results(arguments.out / "results.jsonl", config)
    for minutes in arguments.minutes:
        for seed in arguments.seeds:
            case = f"{minutes:g}-minutes"
            if not results.find("hypervolume_ratio", case, seed):
                folder = arguments.work / case / f"seed-{seed}"
                results.put(_rows(images_of(arguments), arguments.set, minutes, seed, folder))
    print(markdown(results.rows))


def _rows(
    images: Path, overrides: Sequence[str], minutes: float, seed: int, folder: Path
) -> list[Row]:
    """Make the networks of all strategies, going on where that was stopped, and compare them."""
    networks: list[Network] = []
    ingredients: Ingredients | None = None
    for strategy, settings in STRATEGIES.items():
        print(f"seed {seed}: {minutes:g} minutes, {strategy}", flush=True)
        job = Experiment.of_images(
            images, minutes, limit_ms=LIMIT_MS, overrides=[f"seed={seed}", *settings, *overrides]
        )
        found, ingredients, _ = of_job(strategy, job, folder / strategy)
        networks += found
    assert ingredients is not None
    rows = measured_rows(networks, [Target.parse(DEFAULT_TARGET)], ingredients, seed)
    errors = [row for row in rows if row.metric == "test_error"]
    sides = {
        strategy: [row for row in errors if row.details["side"] == strategy]
        for strategy in STRATEGIES
    }
    tables = {
        strategy: np.array([(row.value, row.details["latency_ms"]) for row in side], dtype=float)
        for strategy, side in sides.items()
    }
    ratio, name = hypervolume_ratio(tables[OURS], tables[SUPERNET]), f"{minutes:g}-minutes"
    details = {strategy: table.tolist() for strategy, table in tables.items()}
    answers = [Row("hypervolume_ratio", name, seed, ratio, "ratio", len(errors), details=details)]
    for strategy, side in sides.items():
        for latency in LATENCIES_MS:
            best = best_within(side, latency)
            accuracy = None if best is None or best.value is None else 1 - best.value
            metric, subject = f"test_accuracy_at_{latency:g}_ms", f"{name} {strategy}"
            answers.append(Row(metric, subject, seed, accuracy, "fraction", errors[0].n))
    return answers


if __name__ == "__main__":
    main()
