"""How well does the latency predictor price networks that it has not seen?

Per seed, some networks chosen for calibration and others drawn at random are timed against each
other in one session. The timed networks are recorded with their architectures, so a new predictor
is judged on the same table without timing anything: a run whose seeds are recorded only refits.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy import Target, export_onnx, measure
from hwnas.predictors import DevicePredictor, shipped_experience
from hwnas.search.objective import LATENCY
from hwnas.search_spaces import Architecture, SearchSpace, Workload
from hwnas.stages.calibrate import networks_to_time

TIMED, UNSEEN = "timed", "unseen"
_Z90 = 1.6449  # quantile of the normal distribution that leaves a twentieth on either side
Numbers = npt.NDArray[np.float64]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timed", type=int, default=20, help="networks that the predictor gets")
    parser.add_argument("--unseen", type=int, default=30, help="networks that it is judged on")


def work(arguments: argparse.Namespace) -> None:
    config = {"timed": arguments.timed, "unseen": arguments.unseen}
    setting = Setting(arguments, config)
    for seed in setting.seeds:
        rows = [row for row in setting.observations.rows if row.seed == seed]
        ingredients = setting.ingredients(seed)
        objectives = ingredients.recipe.objective
        target = Target.parse(
            next(o.target for o in objectives if o.metric == LATENCY and o.target)
        )
        if not rows:
            drawn = draw(ingredients.space, target, arguments.timed, arguments.unseen, seed)
            rows = timed_rows(ingredients.space, drawn, target, seed, setting.work / "onnx")
            setting.observations.put(rows)
        setting.answer(judge(ingredients.space, target, rows, seed))
    setting.show()


def draw(
    space: SearchSpace, target: Target, timed: int, unseen: int, seed: int
) -> dict[str, list[Architecture]]:
    """Networks to calibrate with and other, random ones."""
    chosen = networks_to_time(space, target.name, timed, seed)
    rng = random.Random(f"unseen-{seed}")
    others: dict[Architecture, None] = {}
    while len(others) < unseen:
        architecture = space.sample(rng)
        if architecture not in chosen:
            others[architecture] = None
    return {TIMED: chosen, UNSEEN: list(others)}


def timed_rows(
    space: SearchSpace,
    drawn: dict[str, list[Architecture]],
    target: Target,
    seed: int,
    folder: Path,
) -> list[Row]:
    """Time all networks in one session, in which they take turns."""
    networks = [(role, network) for role, some in drawn.items() for network in some]
    models = {network.id: folder / f"{network.id}.onnx" for _, network in networks}
    for done, (_, network) in enumerate(networks, start=1):
        if not models[network.id].exists():
            print(f"seed {seed}: exporting {done}/{len(networks)}", flush=True)
            shape = space.input_shape(network)
            export_onnx(space.build(network), shape, models[network.id])
    print(f"seed {seed}: timing {len(models)} networks", flush=True)
    measured = measure(models, target)
    rows = []
    for role, network in networks:
        m, workload = measured[network.id], space.workload(network)
        rows.append(
            Row(
                "latency",
                network.id,
                seed,
                m.latency_ms,
                "ms",
                m.n,
                {"p20": m.headline.p20, "p80": m.headline.p80},
                {
                    "role": role,
                    "target": m.target,
                    "clock": m.clock,
                    "wall_ms": m.wall_ms.p50,
                    "anchor_ms": m.anchor_ms,
                    "contended": m.contended,
                    "macs": workload.macs,
                    "params": workload.params,
                    "architecture": network.to_json(),
                },
            )
        )
    return rows


def judge(space: SearchSpace, target: Target, rows: Sequence[Row], seed: int) -> list[Row]:
    """Fit on the timed networks and judge on the unseen ones, beside two one-number baselines."""
    workloads = {
        role: [
            space.workload(Architecture.from_json(row.details["architecture"]))
            for row in rows
            if row.details["role"] == role
        ]
        for role in (TIMED, UNSEEN)
    }
    latencies = {
        role: np.array([row.value for row in rows if row.details["role"] == role], dtype=float)
        for role in (TIMED, UNSEEN)
    }
    fitted = DevicePredictor(target.name, shipped_experience()).adapt(
        workloads[TIMED], latencies[TIMED].tolist()
    )
    estimates = fitted.cost(workloads[UNSEEN], [target] * len(workloads[UNSEEN]))
    means = np.array([estimate.mean for estimate in estimates])
    log_std = np.arcsinh([estimate.std / estimate.mean for estimate in estimates])
    truth, n = latencies[UNSEEN], len(latencies[UNSEEN])
    inside = np.abs(np.log(truth / means)) <= _Z90 * log_std
    predictions = {
        "default": means,
        "macs": _log_linear(lambda w: w.macs, workloads, latencies[TIMED]),
        "params": _log_linear(lambda w: w.params, workloads, latencies[TIMED]),
    }
    disturbed = float(np.mean([row.details["contended"] for row in rows]))
    answers = []
    for method, predicted in predictions.items():
        errors = np.abs(predicted / truth - 1)
        spread = {"p20": float(np.quantile(errors, 0.2)), "p80": float(np.quantile(errors, 0.8))}
        rho = float(spearmanr(predicted, truth).statistic)
        answers.append(Row("spearman", method, seed, rho, "rho", n))
        answers.append(
            Row("median_error", method, seed, float(np.median(errors)), "fraction", n, spread)
        )
    answers.append(Row("coverage_of_90", "default", seed, float(inside.mean()), "fraction", n))
    answers.append(Row("disturbed_timings", "all", seed, disturbed, "fraction", len(rows)))
    return answers


def _log_linear(
    size: Callable[[Workload], int], workloads: dict[str, list[Workload]], latencies: Numbers
) -> Numbers:
    """Latency as a power of one size, by least squares on logarithms."""
    known, asked = (np.log([size(w) for w in workloads[role]]) for role in (TIMED, UNSEEN))
    fitted: Numbers = np.exp(np.polyval(np.polyfit(known, np.log(latencies), 1), asked))
    return fitted


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
