"""How well are targets of one runtime and format predicted from all others and few measurements?

One family (a runtime in a format, at several batches and threads) is new. All others are known with
half of the networks; the scores are computed on the other half, which no method has seen. Besides
ten measurements of the new target, two more cases are scored. With no measurement, the known
targets are mixed by their fingerprints. With no other target, four fifths of the target's own
networks are known and the last fifth is predicted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import BayesianRidge

from experiments.command import run_command
from experiments.latency_zoo.run import FOLDER
from experiments.latency_zoo.zoo import read_zoo
from experiments.over_cases import mean_over_cases
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.selection import most_informative
from hwnas.predictors.devices.shipped import family, prior_of_devices
from hwnas.predictors.devices.store import DeviceProfile
from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.features.blocks import blocks_of_steps
from hwnas.predictors.features.physical import physical_features
from hwnas.predictors.models.cold_start import ColdStart
from hwnas.predictors.models.coverage import learn_widening
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.transfer_prior import TransferPrior

SCORES = {
    "spearman": "rho",
    "median_ape": "%",
    "coverage90": "ratio",
    "width90": "%",
    "relative_width90": "%",
}
OWN, FOLDS = "own-160", 5


@dataclass(frozen=True, eq=False)
class Known:
    """Data that is known before a family is measured.

    Attributes:
        profiles: Profiles of the other families, with the networks of the pool only.
        transfer_prior: Transfer prior that these profiles give.
        fingerprints: Logarithms of the times of probes, by target.
    """

    profiles: Sequence[DeviceProfile]
    transfer_prior: TransferPrior
    fingerprints: dict[str, Numbers]


Method = Callable[[Known, DeviceProfile, DeviceProfile, np.random.Generator], Numbers]
"""Prediction method: a function from the known data, the new target on the offered networks and the
target on the queried networks (whose costs only the scores use) to medians and interval bounds, of
shape (3, N)."""


def adapted(samples: int) -> Method:
    """Return the method of `hwnas calibrate` and `hwnas predict`."""

    def method(
        known: Known, offered: DeviceProfile, asked: DeviceProfile, rng: np.random.Generator
    ) -> Numbers:
        untouched = DevicePredictor(asked.device, known.transfer_prior)
        parts = untouched.parts(blocks_of_steps(offered.steps))
        rows = np.array(most_informative(parts, untouched.variances, samples))
        predictor = untouched.adapt_steps(offered.steps.rows(rows), offered.costs[rows])
        estimates = predictor.predict_steps(asked.steps)
        return np.array([(e.mean, *e.interval90) for e in estimates]).T

    return method


def ridge(samples: int) -> Method:
    """Return the method that fits log latency by a linear function of the physical features.

    It is fitted on random networks.
    """

    def method(
        known: Known, offered: DeviceProfile, asked: DeviceProfile, rng: np.random.Generator
    ) -> Numbers:
        rows = rng.choice(len(offered), samples, replace=False)
        features = physical_features(offered.steps)
        centre, spread = features.mean(0), np.maximum(features.std(0), 1e-9)
        model = BayesianRidge().fit(
            ((features - centre) / spread)[rows], np.log(offered.costs[rows])
        )
        found = model.predict((physical_features(asked.steps) - centre) / spread, return_std=True)
        return _bounds(*found)

    return method


def nearest(samples: int) -> Method:
    """Return the method that rescales the known target with the most similar ranking.

    The ranking is that of random networks.
    """

    def method(
        known: Known, offered: DeviceProfile, asked: DeviceProfile, rng: np.random.Generator
    ) -> Numbers:
        rows = rng.choice(len(offered), samples, replace=False)
        logs = np.log(offered.costs[rows])
        at_rows, at_asked = (
            known.transfer_prior.see(blocks_of_steps(steps)).predicted
            for steps in (offered.steps.rows(rows), asked.steps)
        )
        ranks = [spearmanr(column, logs).statistic for column in at_rows.T]
        best = int(np.argmax(ranks))
        slope, level = np.polyfit(at_rows[:, best], logs, 1)
        spread = np.std(slope * at_rows[:, best] + level - logs, ddof=2)
        return _bounds(slope * at_asked[:, best] + level, np.full(len(asked), spread))

    return method


def from_fingerprint(
    known: Known, offered: DeviceProfile, asked: DeviceProfile, rng: np.random.Generator
) -> Numbers:
    """Predict without measured networks: mix the known targets by their fingerprints."""
    logs = known.transfer_prior.logs(blocks_of_steps(asked.steps))
    described = np.array([known.fingerprints[p.device] for p in known.profiles])
    start = ColdStart(described, logs, [family(p.device) for p in known.profiles])
    mean, spread = start.predict(known.fingerprints[asked.device])
    return _bounds(mean, np.full(len(asked), spread))


def mean_of_targets(
    known: Known, offered: DeviceProfile, asked: DeviceProfile, rng: np.random.Generator
) -> Numbers:
    """Predict without measured networks: take the mean of the known targets."""
    logs = known.transfer_prior.logs(blocks_of_steps(asked.steps))
    return _bounds(logs.mean(1), np.full(len(asked), logs.mean(0).std()))


def _bounds(mean: Numbers, std: Numbers) -> Numbers:
    return np.exp(np.array([mean, mean - NORMAL_90 * std, mean + NORMAL_90 * std]))


METHODS: dict[str, Method] = {
    "default-10": adapted(10),
    "default-20": adapted(20),
    "ridge-10": ridge(10),
    "nearest-10": nearest(10),
    "fingerprint-0": from_fingerprint,
    "mean-0": mean_of_targets,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.latency_zoo.held_out", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1")
    parser.add_argument("--zoo", type=Path, default=FOLDER / "zoo.parquet")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    answers = Results(arguments.out / "results.jsonl", {"seeds": arguments.seeds})
    profiles = read_zoo(arguments.zoo)
    probes = json.loads((arguments.zoo.parent / "fingerprints.json").read_text(encoding="utf-8"))
    fingerprints = {name: np.log([*each.values()]) for name, each in probes.items()}
    half = len(profiles[0]) // 2
    pool, queries = np.arange(half), np.arange(half, len(profiles[0]))
    families = list(dict.fromkeys(family(p.device) for p in profiles))
    for name in families:
        own = [p for p in profiles if family(p.device) == name]
        missing = [m for m in METHODS if answers.find("spearman", f"{name} {m}", 0) is None]
        if missing:
            others = _rows([p for p in profiles if family(p.device) != name], pool)
            known = Known(others, _taught(others), fingerprints)
        for method in missing:
            rows = [
                (p.device, seed, _score(method, known, p, pool, queries, seed))
                for p in own
                for seed in range(arguments.seeds)
            ]
            answers.put(_summary(f"{name} {method}", rows))
            print(f"{name} {method}: {fmean(r['spearman'] for *_, r in rows):.4f}", flush=True)
        if answers.find("spearman", f"{name} {OWN}", 0) is None:
            folds = [(p.device, fold, _own(p, fold)) for p in own for fold in range(FOLDS)]
            answers.put(_summary(f"{name} {OWN}", folds))
    answers.put(mean_over_cases(answers.rows, {"mean": families}))
    print(crosstab(answers.rows))


def _taught(profiles: Sequence[DeviceProfile]) -> TransferPrior:
    """Return the transfer prior of some targets, with learnt widenings of the intervals."""
    plain = prior_of_devices(profiles)
    learnt = {samples: learn_widening(plain, samples) for samples in (10, 20)}
    widenings = {samples: widening for samples, widening in learnt.items() if widening}
    return replace(plain, known_hyperparameters=replace(plain.hyperparameters, widenings=widenings))


def _rows(profiles: Sequence[DeviceProfile], rows: Numbers) -> list[DeviceProfile]:
    """Return the same targets with some of their networks, shared by all."""
    steps = profiles[0].steps.rows(rows)
    return [
        replace(p, networks=tuple(p.networks[i] for i in rows), steps=steps, costs=p.costs[rows])
        for p in profiles
    ]


def _score(
    method: str, known: Known, new: DeviceProfile, pool: Numbers, queries: Numbers, seed: int
) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    half = np.sort(rng.permutation(pool)[: len(pool) // 2])
    [offered], [asked] = _rows([new], half), _rows([new], queries)
    return _scores(METHODS[method](known, offered, asked, rng), asked.costs)


def _own(target: DeviceProfile, fold: int) -> dict[str, float]:
    """Score a fifth of a target's networks, predicted from the other four fifths."""
    left_out = np.arange(fold, len(target), FOLDS)
    [known] = _rows([target], np.delete(np.arange(len(target)), left_out))
    [asked] = _rows([target], left_out)
    predictor = DevicePredictor.of(known, prior_of_devices([known]).only(known.device))
    estimates = predictor.predict_steps(asked.steps)
    return _scores(np.array([(e.mean, *e.interval90) for e in estimates]).T, asked.costs)


def _scores(predicted: Numbers, costs: Numbers) -> dict[str, float]:
    """Return the scores of medians and bounds, of shape (3, N)."""
    found, lower, upper = predicted
    return {
        "spearman": float(spearmanr(found, costs).statistic),
        "median_ape": 100 * float(np.median(np.abs(found / costs - 1))),
        "coverage90": float(((lower <= costs) & (costs <= upper)).mean()),
        "width90": 100 * float(np.median(upper / lower - 1)),
        "relative_width90": 100 * float(np.median((upper - lower) / found)),
    }


def _summary(subject: str, rows: Sequence[tuple[str, int, dict[str, float]]]) -> list[Row]:
    answers = []
    for score, unit in SCORES.items():
        seeds = [
            fmean(r[score] for _, s, r in rows if s == seed)
            for seed in {seed for _, seed, _ in rows}
        ]
        devices = {
            device: round(fmean(r[score] for d, _, r in rows if d == device), 4)
            for device in dict.fromkeys(d for d, *_ in rows)
        }
        spread = {"least": min(seeds), "most": max(seeds)}
        details = {"devices": devices}
        answers.append(Row(score, subject, 0, fmean(seeds), unit, len(rows), spread, details))
    return answers


if __name__ == "__main__":
    main()
