"""Is the family that hwnas finds better than one made by hand, or by a random search?

Per seed: the whole job of the recipe; hand-scaled MobileNetV3 widths that get the seconds which the
job took for calibration, training and search; and random search on the same supernet with as many
trials. Every side has as many networks, fine-tuned, tested and exported in the same way, and all of
them are timed against each other in one session.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.fashion_mnist.hand_scaled import train_hand_scaled
from experiments.record import Row
from experiments.setting import Setting, cores, main
from experiments.sides import of_bundle, rows_of
from hwnas.deploy import Bundle, Target, measure
from hwnas.errors import ConfigError
from hwnas.progress import Silent
from hwnas.run_folder import RunFolder
from hwnas.search.front import hypervolume, reference_point
from hwnas.search.training import load_weights
from hwnas.stages.finalists import choose, make_bundles, read_bundles
from hwnas.stages.job import Goal, Ingredients, Job
from hwnas.stages.search import BASELINE, found

HWNAS, RANDOM, HAND = "hwnas", "random", "hand-scaled"
_QUANTILES = (0.25, 0.5, 0.75)
_DRAWS = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--widths", type=float, nargs="+", default=[0.25, 0.5, 0.75, 1.0])


def work(arguments: argparse.Namespace) -> None:
    widths: list[float] = arguments.widths
    setting = Setting(arguments, {"widths": widths})
    recipe = setting.recipe(0)
    if recipe.deploy.top != len(widths) or not recipe.search.random_baseline:
        raise ConfigError(
            f"deploy.top is {recipe.deploy.top}, there are {len(widths)} --widths and "
            f"search.random_baseline is {recipe.search.random_baseline}; the sides are compared by "
            "as many networks each, and random search is one of them"
        )
    for seed in setting.seeds:
        rows = [row for row in setting.observations.rows if row.seed == seed]
        if not rows:
            rows = observe(setting, widths, seed)
            setting.observations.put(rows)
        setting.answer(judge(rows, seed))
    setting.show()


def observe(setting: Setting, widths: Sequence[float], seed: int) -> list[Row]:
    """Make the networks of all sides, going on where that was stopped, and time them together."""
    folder = setting.work / f"seed-{seed}"
    run = folder / "run"
    setting.experiment(seed).run(run)
    ingredients = setting.ingredients(seed)
    goal = Goal(ingredients.recipe.objective)
    (target,) = goal.targets
    with RunFolder.open(run) as opened:
        random_bundles = bundles_of_random_search(opened, ingredients, goal, folder / RANDOM)
    spent = {
        side: sum(opened.stages[s].wall_s for s in (f"calibrate@{target}", "train", search))
        for side, search in ((HWNAS, "search"), (RANDOM, "random-baseline"))
    }
    with cores(ingredients.recipe) as at_once:
        hand, spent[HAND] = train_hand_scaled(
            ingredients, widths, spent[HWNAS], folder / HAND, at_once
        )
    networks = [
        *(
            of_bundle(HWNAS, bundle, ingredients)
            for bundle in read_bundles(run / "bundles").values()
        ),
        *(of_bundle(RANDOM, bundle, ingredients) for bundle in random_bundles),
        *hand,
    ]
    models = {network.subject: network.onnx for network in networks}
    measured = measure(models, Target.parse(target))
    n = len(ingredients.data.test)
    return [
        *(row for x in networks for row in rows_of(x, measured[x.subject], n, seed)),
        *(Row("training_seconds", side, seed, s, "s", 1) for side, s in spent.items()),
    ]


def bundles_of_random_search(
    run: RunFolder, ingredients: Ingredients, goal: Goal, folder: Path
) -> list[Bundle]:
    """Finalists of the random search, chosen and made as those of the search itself."""
    job = Job(ingredients, run, Silent())
    trials = choose(found(run.path, goal, BASELINE), ingredients.recipe.deploy.top)
    if set(read_bundles(folder)) != {trial.candidate.id for trial in trials}:
        print("finalists of the random search", flush=True)
        weights = load_weights(run.path / "supernet" / "weights.safetensors")
        with cores(ingredients.recipe):
            make_bundles(job, goal, trials, weights, folder, lambda share, detail="": None)
    return list(read_bundles(folder).values())


def judge(rows: Sequence[Row], seed: int) -> list[Row]:
    """Compare the sides of one seed.

    Hypervolumes share one reference point. Under a latency budget each side plays the network with
    its best validation accuracy, and is judged by the test.
    """
    errors = [row for row in rows if row.metric == "test_error"]
    points = np.array([[row.value, row.details["latency_ms"]] for row in errors], dtype=float)
    side_of = np.array([row.details["side"] for row in errors])
    reference = reference_point(points)
    volumes = {
        side: hypervolume(points[side_of == side], reference) for side in (HWNAS, HAND, RANDOM)
    }
    counts = {side: int((side_of == side).sum()) for side in volumes}
    named = dict(zip(("test_error", "latency_ms"), reference.tolist(), strict=True))
    answers = [
        Row("hypervolume", side, seed, volume, "ms", counts[side], details={"reference": named})
        for side, volume in volumes.items()
    ]
    answers += ratios(errors, seed)
    for quantile in _QUANTILES:
        budget = float(np.quantile(points[:, 1], quantile))
        for side in volumes:
            best = _best_within([r for r in errors if r.details["side"] == side], budget)
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
    return [*answers, *(row for row in rows if row.metric == "training_seconds")]


def ratios(errors: Sequence[Row], seed: int) -> list[Row]:
    """Hypervolume of hwnas over that of each rival, and how sure the test images make it.

    For the spread every test error is drawn again from the distribution of its standard error, each
    on its own: 5% and 95% quantiles of the ratio, with the latencies as they were measured.
    """
    side_of = np.array([row.details["side"] for row in errors])
    deviations = np.array([row.spread["standard_error"] for row in errors])
    points = np.array([[row.value, row.details["latency_ms"]] for row in errors], dtype=float)
    drawn = np.repeat(points[None], 1 + _DRAWS, axis=0)
    noise = np.random.default_rng(0).standard_normal((_DRAWS, len(errors)))
    drawn[1:, :, 0] += deviations * noise
    answers = []
    for rival in (HAND, RANDOM):
        found = []
        for each in drawn:
            reference = reference_point(each)
            ours, theirs = (
                hypervolume(each[side_of == side], reference) for side in (HWNAS, rival)
            )
            found.append(ours / theirs)
        low, high = np.quantile(found[1:], (0.05, 0.95))
        answers.append(
            Row(
                "hypervolume_ratio",
                f"{HWNAS} / {rival}",
                seed,
                found[0],
                "ratio",
                len(errors),
                {"p05": float(low), "p95": float(high)},
            )
        )
    return answers


def _best_within(rows: Sequence[Row], budget_ms: float) -> Row | None:
    fast = [row for row in rows if row.details["latency_ms"] <= budget_ms]
    return max(fast, key=lambda row: float(row.details["validation_accuracy"]), default=None)


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, add_options)
