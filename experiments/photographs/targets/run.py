"""What does a further target cost, if networks were trained alone, or within a supernet?

For each seed, the planned job and the job that is planned with a supernet are run for one target,
and then specialised for further targets. Their networks are timed against each other on each of
these.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command import run_command
from experiments.equal_accuracy import hypervolume_ratio
from experiments.photographs.options import images_of, name_of_images, parser_of
from experiments.photographs.run import LIMIT_MS, OURS
from experiments.photographs.strategies.run import STRATEGIES
from experiments.readme_table import markdown
from experiments.record import Results, Row
from experiments.sides import Network, best_within, measured_rows, of_bundle, of_job, usable
from hwnas.experiment import Experiment
from hwnas.recipe.keys import parts_of
from hwnas.run_folder import RunFolder
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.run_inputs import RunInputs

SUPERNET = "supernet"
FURTHER = ("cpu-openvino-fp32-b1-t1", "cpu-onnxruntime-fp32-b8-t1")


def main() -> None:
    parser = parser_of(Path(__file__).parent, __doc__, seeds=[0])
    parser.add_argument("--minutes", type=float, default=15.0, metavar="M")
    parser.add_argument("--further", nargs="+", default=list(FURTHER), metavar="TARGET")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    usable(arguments.further)
    config: dict[str, Any] = {
        "images": name_of_images(arguments),
        "set": arguments.set,
        "limit_ms": LIMIT_MS,
        "minutes": arguments.minutes,
        "further": list(arguments.further),
        "strategies": {name: list(STRATEGIES[name]) for name in (OURS, SUPERNET)},
    }
    results = Results(arguments.out / "results.jsonl", config)
    for seed in arguments.seeds:
        if not results.find("minutes_of_a_further_target", OURS, seed):
            results.put(_rows(arguments, seed))
    print(markdown(results.rows))


def _rows(arguments: argparse.Namespace, seed: int) -> list[Row]:
    """Run and specialise both jobs, resuming interrupted work, and compare their networks."""
    folder = arguments.work / f"{arguments.minutes:g}-minutes" / f"seed-{seed}"
    found: dict[str, list[Network]] = {target: [] for target in arguments.further}
    rows: list[Row] = []
    job_minutes, further_minutes = {}, {}
    run_inputs: RunInputs | None = None
    for strategy in (OURS, SUPERNET):
        print(f"seed {seed}: {arguments.minutes:g} minutes, {strategy}", flush=True)
        run = folder / strategy
        overrides = [f"seed={seed}", *STRATEGIES[strategy], *arguments.set]
        job = Experiment.of_images(
            images_of(arguments), arguments.minutes, limit_ms=LIMIT_MS, overrides=overrides
        )
        _, run_inputs, seconds = of_job(strategy, job, run, arguments.further)
        for target in arguments.further:
            bundles = read_bundles(run / "targets" / target / "bundles").values()
            found[target] += [of_bundle(strategy, bundle, run_inputs) for bundle in bundles]
        job_minutes[strategy] = seconds / 60
        further_minutes[strategy] = _further_minutes(run, arguments.further)
    assert run_inputs is not None
    for name, minutes in {
        "minutes_of_the_job": job_minutes,
        "minutes_of_a_further_target": further_minutes,
    }.items():
        rows += [Row(name, side, seed, value, "min", 1) for side, value in minutes.items()]
    rows.append(_break_even(job_minutes, further_minutes, seed))
    for target, networks in found.items():
        rows += _on(target, networks, run_inputs, seed)
    return rows


def _further_minutes(run: Path, targets: Sequence[str]) -> float:
    """Return the mean minutes of the stages of a further target."""
    with RunFolder.open(run) as opened:
        stages = opened.stages
    seconds = [each.wall_s for name, each in stages.items() if parts_of(name)[1] in targets]
    return sum(seconds) / 60 / len(targets)


def _break_even(job: Mapping[str, float], further: Mapping[str, float], seed: int) -> Row:
    """Return the number of targets from which a supernet takes less time; None if there is none."""
    saved = further[OURS] - further[SUPERNET]  # by the supernet, with each further target
    spent = job[SUPERNET] - job[OURS]
    value = None if saved <= 0 else float(max(1, 1 + math.ceil(spent / saved)))
    return Row("break_even_targets", SUPERNET, seed, value, "targets", 1)


def _on(target: str, networks: Sequence[Network], run_inputs: RunInputs, seed: int) -> list[Row]:
    """Time the networks of both jobs on a target, and compare them."""
    errors = [
        row
        for row in measured_rows(networks, usable([target]), run_inputs, seed)
        if row.metric == "test_error"
    ]
    sides = {
        side: [row for row in errors if row.details["side"] == side] for side in (OURS, SUPERNET)
    }
    points = {
        side: np.array([(row.value, row.details["latency_ms"]) for row in some], dtype=float)
        for side, some in sides.items()
    }
    ratio = hypervolume_ratio(points[OURS], points[SUPERNET])
    details = {side: some.tolist() for side, some in points.items()}
    answers = [Row("hypervolume_ratio", target, seed, ratio, "ratio", len(errors), details=details)]
    for side, some in sides.items():
        best = best_within(some, math.inf)
        accuracy = None if best is None or best.value is None else 1 - best.value
        answers.append(
            Row("test_accuracy", f"{target} {side}", seed, accuracy, "fraction", some[0].n)
        )
    return answers


if __name__ == "__main__":
    main()
