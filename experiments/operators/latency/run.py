"""How far is the expected latency of a distribution over networks from measured latencies?

A strategy needs a cost with a gradient: a sum over the options of the choices, fitted to the
latencies that the device's predictor gives random networks. Random networks are timed, and the sum
for each of them is compared with its measured latency.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from experiments.record import Row
from experiments.setting import Setting, main
from experiments.timed_networks import networks_to_time, timed_rows
from hwnas.deploy import Target
from hwnas.predictors import DevicePredictor, shipped_prior
from hwnas.search.strategies import AdditiveCost
from hwnas.search_spaces import Architecture, SearchSpace, mobilenet, nasbench201

SPACES = {
    "nasbench201": nasbench201((32, 32, 3), 10, operator_weights="own"),
    "fbnet at 32 pixels": mobilenet((32, 32, 3), 10, preset="fbnet", operator_weights="own"),
    "proxyless at 112 pixels": mobilenet((112, 112, 3), 10, preset="proxyless"),
}
TARGET = "cpu-onnxruntime-fp32-b1-t1"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measured", type=int, default=20, metavar="N")
    parser.add_argument("--asked", type=int, default=20, metavar="N")


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(
        arguments,
        {"spaces": [space.fingerprint for space in SPACES.values()], "target": TARGET}
        | {"measured": arguments.measured, "asked": arguments.asked},
    )
    for seed in setting.seeds:
        for name, space in SPACES.items():
            if not setting.observed(name, seed):
                observe(setting, name, space, seed, arguments.measured, arguments.asked)
            setting.answer(answers(setting, name, space, seed))
    setting.show()


def observe(
    setting: Setting, name: str, space: SearchSpace, seed: int, measured: int, asked: int
) -> None:
    """Time the networks that a predictor learns from, and random ones, in one session."""
    rng = random.Random(seed)
    roles = {
        "learned": networks_to_time(space, TARGET, measured, seed),
        "asked": [space.sample(rng) for _ in range(asked)],
    }
    folder = setting.work / f"{name}-{seed}"
    rows = timed_rows(space, roles, Target.parse(TARGET), seed, folder)
    setting.observations.put(
        [
            Row(
                *(row.metric, f"{name} {row.details['role']} {row.subject}", seed, row.value),
                *(row.unit, row.n, row.spread, row.details),
            )
            for row in rows
        ]
    )


def answers(setting: Setting, name: str, space: SearchSpace, seed: int) -> list[Row]:
    """Return the median errors of the sum, of the predictor, and of multiply-accumulates."""
    rows = setting.observed(name, seed)

    def of(role: str) -> tuple[list[Architecture], np.ndarray]:
        some = [row for row in rows if row.details["role"] == role]
        networks = [Architecture.from_json(row.details["architecture"]) for row in some]
        return networks, np.array([row.value for row in some])

    known, latencies = of("learned")
    asked, measured = of("asked")
    predictor = DevicePredictor(TARGET, shipped_prior()).adapt(
        [space.workload(network) for network in known], list(latencies)
    )

    def predicted(codes: np.ndarray) -> np.ndarray:
        steps = space.steps(codes)
        assert steps is not None
        return np.array([estimate.mean for estimate in predictor.predict_steps(steps)])

    cost = AdditiveCost.fit(space, predicted)
    codes = np.array([space.encode(network) for network in asked])
    macs = [np.array([space.workload(n).macs for n in some]) for some in (known, asked)]
    slope = float(macs[0] @ latencies / (macs[0] @ macs[0]))
    ways = {
        "expected": expected(space, cost, codes),
        "predictor": predicted(codes),
        "multiply-accumulates": slope * macs[1],
    }
    found = []
    for way, values in ways.items():
        error = float(np.median(np.abs(values / measured - 1)))
        found.append(Row("median_error", f"{name}, {way}", seed, error, "fraction", len(asked)))
    return found


def expected(space: SearchSpace, cost: AdditiveCost, codes: Sequence[np.ndarray]) -> np.ndarray:
    """Return the expected cost of distributions that are certain of one network each."""
    most = max(len(choice.options) for choice in space.choices)
    hot = torch.nn.functional.one_hot(torch.tensor(np.array(codes)), most).float()
    found: np.ndarray = cost(hot).numpy()
    return found


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, options)
