"""Is the family of networks that a planned job finds better than one scaled by hand?

For each seed, the job of `job.toml` is run. Hand-scaled MobileNetV3 networks of several widths
share the seconds that the whole job took, and are trained by the same recipe. All networks are
timed against each other in one session.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.alone import for_seconds, seconds_each, train_alone
from experiments.fashion_mnist.hand_scaled import hand_scaled
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import best_within, of_job, rows_of
from hwnas.deploy import Target, measure
from hwnas.search.objectives.front import hypervolume, reference_point
from hwnas.stages.goal import SearchGoal

HWNAS, HAND = "hwnas", "hand-scaled"
_QUANTILES = (0.25, 0.5, 0.75)
_DRAWS = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--widths", type=float, nargs="+", default=[0.25, 0.5, 0.75, 1.0])


def work(arguments: argparse.Namespace) -> None:
    widths: list[float] = arguments.widths
    setting = Setting(arguments, {"widths": widths})
    for seed in setting.seeds:
        rows = [row for row in setting.observations.rows if row.seed == seed]
        if not rows:
            rows = observe(setting, widths, seed)
            setting.observations.put(rows)
        setting.answer(judge(rows, seed))
    setting.show()


def observe(setting: Setting, widths: Sequence[float], seed: int) -> list[Row]:
    """Make the networks of both sides, resuming interrupted work, and time them together."""
    folder = setting.work / f"seed-{seed}"
    print(f"seed {seed}: running the whole job", flush=True)
    found, run_inputs, seconds = of_job(HWNAS, setting.experiment(seed), folder / HWNAS)
    with cores(run_inputs.recipe) as at_once:
        share = seconds_each(seconds, len(widths), at_once)
        training = for_seconds(run_inputs, share)
        rivals = [hand_scaled(run_inputs, width) for width in widths]
        hand, _ = train_alone(HAND, rivals, run_inputs, [training], folder / HAND, at_once)
    networks = [*found, *hand]
    models = {network.subject: network.onnx for network in networks}
    (target,) = SearchGoal(run_inputs.recipe.objective).targets
    measured = measure(models, Target.parse(target))
    n = len(run_inputs.data.test)
    return [
        *(row for x in networks for row in rows_of(x, measured[x.subject], n, seed)),
        Row("seconds", f"{HWNAS}, and all {HAND}", seed, seconds, "s", 1),
    ]


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Compare the sides of one seed.

    Hypervolumes share one reference point. Under a latency budget, each side uses its network with
    the best validation accuracy, which is scored on the test images.
    """
    errors = [row for row in rows if row.metric == "test_error"]
    points = np.array([[row.value, row.details["latency_ms"]] for row in errors], dtype=float)
    side_of = np.array([row.details["side"] for row in errors])
    reference = reference_point(points)
    volumes = {side: hypervolume(points[side_of == side], reference) for side in (HWNAS, HAND)}
    counts = {side: int((side_of == side).sum()) for side in volumes}
    named = dict(zip(("test_error", "latency_ms"), reference.tolist(), strict=True))
    answers = [
        Row("hypervolume", side, seed, volume, "ms", counts[side], details={"reference": named})
        for side, volume in volumes.items()
    ]
    answers.append(ratio(errors, seed))
    for quantile in _QUANTILES:
        budget = float(np.quantile(points[:, 1], quantile))
        for side in volumes:
            best = best_within([r for r in errors if r.details["side"] == side], budget)
            answers.append(
                Row(
                    f"test_accuracy_at_latency_q{100 * quantile:.0f}",
                    side,
                    seed,
                    None if best is None or best.value is None else 1 - best.value,
                    "fraction",
                    errors[0].n,
                    details={"budget_ms": budget},
                )
            )
    return [*answers, *(row for row in rows if row.metric == "seconds")]


def ratio(errors: Sequence[Row], seed: int) -> Row:
    """Return the hypervolume of hwnas over that of its baseline, with its spread.

    The spread is the 5% and 95% quantiles of the ratio over draws in which every test error is
    sampled independently from the distribution of its standard error. The latencies stay as they
    were measured.
    """
    side_of = np.array([row.details["side"] for row in errors])
    deviations = np.array([row.spread["standard_error"] for row in errors])
    points = np.array([[row.value, row.details["latency_ms"]] for row in errors], dtype=float)
    drawn = np.repeat(points[None], 1 + _DRAWS, axis=0)
    noise = np.random.default_rng(0).standard_normal((_DRAWS, len(errors)))
    drawn[1:, :, 0] += deviations * noise
    found = []
    for each in drawn:
        reference = reference_point(each)
        ours, theirs = (hypervolume(each[side_of == side], reference) for side in (HWNAS, HAND))
        found.append(ours / theirs)
    low, high = np.quantile(found[1:], (0.05, 0.95))
    return Row(
        "hypervolume_ratio",
        f"{HWNAS} / {HAND}",
        seed,
        found[0],
        "ratio",
        len(errors),
        {"p05": float(low), "p95": float(high)},
    )


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "job.toml")
