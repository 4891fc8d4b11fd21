"""Are pairs of all scored networks better cascades than pairs of finalists? What does a cache save?

For each seed, the recipe runs once. For accuracies some points below that of the most accurate
finalist on validation images, the cheapest network or cascade is chosen among the finalists, and
among the finalists and the networks that `hwnas cascade` makes of the best pairs of all scored
networks. All networks of a choice are timed in one session. The last cascade, or else the last
single network, then answers a stream of test images with repeats, with and without a cache.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy.caching import PredictionCache
from hwnas.deploy.cascades.cascade import open_packed
from hwnas.errors import InfeasibleError
from hwnas.experiment import cascade
from hwnas.stages.deployment.cache_comparison import CacheComparison, compare_cache, fitted_near
from hwnas.stages.deployment.cascade_result import Cascading
from hwnas.stages.deployment.streams import StreamSettings
from hwnas.stages.finalists.bundles import read_bundles, score_of

_NOISE = 4  # levels of 255, of near repeats


def work(arguments: argparse.Namespace) -> None:
    names = ("points", "margin", "pairs", "images", "repeats", "risk")
    config = {name: getattr(arguments, name) for name in names}
    setting = Setting(arguments, config, [f"deploy.top={arguments.finalists}"])
    done = {row.seed for row in setting.answers.rows}
    for seed in setting.seeds:
        if seed not in done:
            setting.answer(list(observe(setting, seed, arguments)))
    setting.show()


def observe(setting: Setting, seed: int, arguments: argparse.Namespace) -> Iterator[Row]:
    """Run the recipe, choose cascades at each accuracy, and try a cache."""
    run = setting.work / f"seed-{seed}" / "run"
    print(f"seed {seed}: running the whole job", flush=True)
    setting.experiment(seed).run(run)
    bundles = read_bundles(run / "bundles")
    scores = {n: float(score_of(b, "accuracy", "validation")["value"]) for n, b in bundles.items()}
    model = bundles[max(scores, key=scores.__getitem__)].folder
    for below in arguments.points:
        target, case = max(scores.values()) - below / 100, f"{below:g} points below the best"
        out = setting.work / f"seed-{seed}" / f"cascade-{below:g}"
        shutil.rmtree(out, ignore_errors=True)
        try:
            found = cascade(run, target, out, arguments.margin, pairs=arguments.pairs)
        except InfeasibleError as error:
            yield Row("cost_ratio", case, seed, None, "ratio", 0, {}, {"why": str(error)})
            continue
        yield from rows_of(found, case, seed)
        model = found.folder or model
    yield from cache_rows(model, run, seed, arguments)


def rows_of(found: Cascading, case: str, seed: int) -> Iterator[Row]:
    """Yield the expected cost over that of finalists only, and the accuracies of both choices."""
    assert found.search is not None
    assert found.of_finalists is not None
    best, alone = found.choice.cost, found.of_finalists.cost
    ratio = None if best is None or alone is None else best / alone
    details = {
        "target": found.target,
        "target_accuracy": found.target_accuracy,
        "scored": found.search.scored,
        "networks": found.search.networks,
        "made": len(found.search.made),
        "expected_ms": best,
        "expected_ms_of_finalists": alone,
    }
    yield Row("cost_ratio", case, seed, ratio, "ratio", found.search.scored, {}, details)
    for pair in found.delivered:
        estimates = {(p.small, p.big): p for p in found.search.pairs}
        estimate = estimates.get((pair.small, pair.big))
        if estimate is not None:
            error = pair.tally.accuracy - estimate.tally.accuracy - found.search.shift
            subject = f"{case}: {pair}"
            yield Row("estimate_error", subject, seed, error, "fraction", pair.tally.n)
    for name, way in found.ways.items():
        spread = {"standard_error": way.test.standard_error}
        subject = f"{case}: {'cascade' if name == 'cascade' else way.name}"
        accuracy = way.test.accuracy
        yield Row("test_accuracy", subject, seed, accuracy, "fraction", way.test.n, spread)


def cache_rows(model: Path, run: Path, seed: int, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield hit rate, time and accuracy with a cache of equal, and of nearly equal images."""
    opened, source = open_packed(model), str(run)
    exact = StreamSettings(arguments.images, arguments.repeats, seed=seed)
    yield from _cache_rows(compare_cache(opened, source, exact, PredictionCache()), "equal", seed)
    try:
        rule = fitted_near(opened, source, arguments.risk)
    except InfeasibleError as error:
        yield Row("hit_rate", "near", seed, None, "fraction", 0, {}, {"why": str(error)})
        return
    noisy = StreamSettings(arguments.images, arguments.repeats, _NOISE, seed)
    cache = PredictionCache(near=rule)
    yield from _cache_rows(compare_cache(opened, source, noisy, cache), "near", seed)


def _cache_rows(found: CacheComparison, case: str, seed: int) -> Iterator[Row]:
    n, counts = found.images, found.counts
    details = {"without_ms": found.without.mean_ms, "cached_ms": found.cached.mean_ms}
    ratio = found.cached.mean_ms / found.without.mean_ms
    change = found.cached.metrics["accuracy"] - found.without.metrics["accuracy"]
    yield Row("hit_rate", case, seed, counts.hit_rate, "fraction", n)
    yield Row("time_ratio", case, seed, ratio, "ratio", n, {}, details)
    yield Row("accuracy_change", case, seed, change, "fraction", n)
    yield Row("differing", case, seed, found.differing, "fraction", n)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--points",
        type=float,
        nargs="+",
        default=[0.0, 0.5, 1.0, 2.0],
        help="points of accuracy below the most accurate finalist",
    )
    parser.add_argument("--margin", type=float, default=0.0, help="margin, in standard errors")
    parser.add_argument("--finalists", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=3, help="pairs that are made and measured")
    parser.add_argument("--images", type=int, default=2000, help="images of the stream")
    parser.add_argument("--repeats", type=float, default=0.5, help="share of repeats in the stream")
    parser.add_argument("--risk", type=float, default=0.05, help="risk of near repeats")


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, _options)
