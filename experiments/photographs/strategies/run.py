"""Which use of a budget finds better networks: training each alone, or training a supernet?

For each budget and seed, three jobs are run: the planned job, and those that are planned if the
recipe asks for a supernet, trained as a whole from the start or by progressive shrinking. The
networks of all jobs are timed against each other.
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
from hwnas.stages.run_inputs import RunInputs

STRATEGIES: Mapping[str, Sequence[str]] = {
    OURS: (),
    "supernet": ("search.evaluator=supernet",),
    "progressive": ("search.evaluator=supernet", "train.sampling=progressive"),
}
"""Recipe settings of each strategy; the first is the job of `experiments.photographs.run`."""

LATENCIES_MS = (0.1, 0.2, 0.4)


def main() -> None:
    parser = parser_of(Path(__file__).parent, __doc__, seeds=[0])
    parser.add_argument("--minutes", type=float, nargs="+", default=[15.0, 45.0], metavar="M")
    parser.add_argument("--limit-ms", type=float, default=LIMIT_MS, metavar="MS")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    config = {
        "images": name_of_images(arguments),
        "set": arguments.set,
        "limit_ms": arguments.limit_ms,
        "latencies_ms": LATENCIES_MS,
        "strategies": {name: list(settings) for name, settings in STRATEGIES.items()},
    }
    results = Results(arguments.out / "results.jsonl", config)
    for minutes in arguments.minutes:
        for seed in arguments.seeds:
            case = _case(arguments, minutes)
            if not results.find(f"test_accuracy_at_{LATENCIES_MS[0]:g}_ms", f"{case} {OURS}", seed):
                folder = arguments.work / case / f"seed-{seed}"
                results.put(_rows(arguments, minutes, seed, folder))
    print(markdown(results.rows))


def _case(arguments: argparse.Namespace, minutes: float) -> str:
    """Return the name of a budget, with the limit where it differs from the default."""
    limit = arguments.limit_ms
    return f"{minutes:g}-minutes" + (f"-{limit:g}-ms" if limit != LIMIT_MS else "")


def _rows(arguments: argparse.Namespace, minutes: float, seed: int, folder: Path) -> list[Row]:
    """Make the networks of all strategies, resuming interrupted work, and compare them."""
    networks: list[Network] = []
    run_inputs: RunInputs | None = None
    for strategy, settings in STRATEGIES.items():
        print(f"seed {seed}: {minutes:g} minutes, {strategy}", flush=True)
        overrides = [f"seed={seed}", *settings, *arguments.set]
        images = images_of(arguments)
        job = Experiment.of_images(
            images, minutes, limit_ms=arguments.limit_ms, overrides=overrides
        )
        found, run_inputs, _ = of_job(strategy, job, folder / strategy)
        networks += found
    assert run_inputs is not None
    rows = measured_rows(networks, [Target.parse(DEFAULT_TARGET)], run_inputs, seed)
    errors, case = [row for row in rows if row.metric == "test_error"], _case(arguments, minutes)
    answers = []
    for strategy in STRATEGIES:
        side = [row for row in errors if row.details["side"] == strategy]
        answers += _answers(side, f"{case} {strategy}", seed)
        if strategy != OURS:
            answers.append(_ratio(errors, strategy, case, seed))
    return answers


def _answers(errors: Sequence[Row], subject: str, seed: int) -> list[Row]:
    """Return the test accuracies of one strategy under latency limits."""
    answers = []
    for latency in LATENCIES_MS:
        best = best_within(errors, latency)
        accuracy = None if best is None or best.value is None else 1 - best.value
        metric, n = f"test_accuracy_at_{latency:g}_ms", errors[0].n
        answers.append(Row(metric, subject, seed, accuracy, "fraction", n))
    return answers


def _ratio(errors: Sequence[Row], rival: str, case: str, seed: int) -> Row:
    """Return the hypervolume of the planned job over that of a baseline."""
    ours, theirs = (
        np.array([(row.value, row.details["latency_ms"]) for row in errors
                  if row.details["side"] == strategy], dtype=float)
        for strategy in (OURS, rival)
    )  # fmt: skip
    details = {OURS: ours.tolist(), rival: theirs.tolist()}
    value, n = hypervolume_ratio(ours, theirs), len(ours) + len(theirs)
    return Row("hypervolume_ratio", f"{case} {rival}", seed, value, "ratio", n, details=details)


if __name__ == "__main__":
    main()
