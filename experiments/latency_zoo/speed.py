"""How long does it take to adapt a predictor to a new device and to predict very many networks?

The networks are cells of NAS-Bench-201 and of FBNet, encoded as integers; the timing covers the
computation from these encodings to costs with their intervals. All 21 shipped targets are known.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from experiments.command import run_command
from experiments.latency_zoo.run import FOLDER
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.predictors import DevicePredictor, shipped_prior
from hwnas.predictors.devices.shipped import shipped_profiles
from hwnas.predictors.features.blocks import blocks_of_steps
from hwnas.search_spaces.tabular import TABULAR_SPACES

SAMPLES = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.latency_zoo.speed", description=__doc__
    )
    parser.add_argument("--networks", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    answers = Results(arguments.out / "speed.jsonl", {"networks": arguments.networks})
    for seed in range(arguments.seeds):
        answers.put(timed(arguments.networks, seed))
    print(crosstab(answers.rows))


def timed(count: int, seed: int) -> list[Row]:
    """Return the wall-clock seconds of adaptation, and the networks predicted per second."""
    rng = np.random.default_rng(seed)
    profile = shipped_profiles()["cpu-onnxruntime-fp32-b1-t1"]
    untouched = DevicePredictor("new", shipped_prior())
    chosen = rng.choice(len(profile), SAMPLES, replace=False)
    steps, costs = profile.steps.rows(chosen), profile.costs[chosen]
    first = blocks_of_steps(profile.steps)
    untouched.parts(first)  # data that is read from files is cached from now on

    def adapt() -> DevicePredictor:
        adapted = untouched.adapt_steps(steps, costs)
        adapted.logs(first)
        return adapted

    start = time.perf_counter()
    predictor = adapt()
    seconds = time.perf_counter() - start
    rows = [Row("adapt_seconds", "all default", seed, seconds, "s", SAMPLES)]
    for name in ("nasbench201", "fbnet"):
        space = TABULAR_SPACES[name]
        codes = np.column_stack([rng.integers(0, n, count) for n in space.options])
        start = time.perf_counter()
        predictor.logs(blocks_of_steps(space.steps(codes)))
        rate = count / (time.perf_counter() - start)
        rows.append(Row("networks_per_second", f"{name} default", seed, rate, "1/s", count))
    return rows


if __name__ == "__main__":
    main()
