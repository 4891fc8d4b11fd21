"""How much faster is a cascade of two networks than the best single one at the same accuracy?

For each seed, the recipe runs with more finalists than usual. The accuracy targets lie some points
below that of the most accurate finalist on validation images. For each target, the fastest single
finalist and the fastest cascade that reach it are chosen. Both are timed, interleaved, on the same
test images, which were not used for either choice.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.errors import InfeasibleError
from hwnas.experiment import cascade
from hwnas.stages.deployment.cascade_result import CascadeOption, Cascading
from hwnas.stages.finalists.bundles import read_bundles, score_of


def work(arguments: argparse.Namespace) -> None:
    points, margin = list(arguments.points), float(arguments.margin)
    config = {"points": points, "margin": margin}
    setting = Setting(arguments, config, [f"deploy.top={arguments.finalists}"])
    done = {row.seed for row in setting.answers.rows}
    for seed in setting.seeds:
        if seed not in done:
            setting.answer(list(observe(setting, seed, points, margin)))
    setting.show()


def observe(setting: Setting, seed: int, points: list[float], margin: float) -> Iterator[Row]:
    """Run the recipe, and build a cascade of its finalists for each accuracy target."""
    run = setting.work / f"seed-{seed}" / "run"
    print(f"seed {seed}: running the whole job", flush=True)
    setting.experiment(seed).run(run)
    bundles = read_bundles(run / "bundles").values()
    best = max(float(score_of(b, "accuracy", "validation")["value"]) for b in bundles)
    for below in points:
        target = best - below / 100
        out = setting.work / f"seed-{seed}" / f"cascade-{below:g}"
        shutil.rmtree(out, ignore_errors=True)
        case = f"{below:g} points below the best"
        try:
            found = cascade(run, target, out, margin, among="finalists")
        except InfeasibleError as error:
            print(f"seed {seed}: {case}: {error}", flush=True)
            yield Row("latency_ratio", case, seed, None, "ratio", 0, {}, {"why": str(error)})
            continue
        yield from rows_of(found, case, seed)


def rows_of(found: Cascading, case: str, seed: int) -> Iterator[Row]:
    """Yield test accuracy and latency of both, and their latency ratio if a cascade was timed."""
    for name, way in (("cascade", found.cascade), ("single", found.single)):
        if way is not None:
            yield from _rows_of(way, f"{case}: {name}", seed, found.timed_images)
    gain = None
    if found.cascade is not None and found.single is not None and found.choice.gains:
        mine, other = found.cascade.measured_ms, found.single.measured_ms
        if mine is not None and other is not None:
            gain = mine.p50 / other.p50
    details = {"target": found.target, "target_accuracy": found.target_accuracy}
    yield Row("latency_ratio", case, seed, gain, "ratio", found.timed_images, {}, details)


def _rows_of(way: CascadeOption, subject: str, seed: int, timed: int) -> Iterator[Row]:
    test, details = way.test, {"network": way.name, "modelled_ms": way.expected}
    spread = {"standard_error": test.standard_error}
    yield Row("test_accuracy", subject, seed, test.accuracy, "fraction", test.n, spread, details)
    yield Row("share_of_big", subject, seed, test.share, "fraction", test.n)
    if way.measured_ms is not None:
        quantiles = {"p20": way.measured_ms.p20, "p80": way.measured_ms.p80}
        yield Row("mean_latency", subject, seed, way.measured_ms.p50, "ms", timed, quantiles)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--points",
        type=float,
        nargs="+",
        default=[0.0, 0.5, 1.0, 2.0],
        help="points of accuracy below the most accurate finalist",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.0,
        help="required distance above the accuracy, in standard errors",
    )
    parser.add_argument("--finalists", type=int, default=8)


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, _options)
