"""Simulated GPU for tests of the tuner: times by a formula, a simulated clock, and a problem."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch

from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.compile_ahead import Compiled
from hwnas.kernels.operator import Config
from hwnas.kernels.resources import Resources
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.kernels.tuning.trial import Footprint, TuningTask

H200 = ACCELERATORS["nvidia-h200"]
LIGHT = (Resources(registers=64, spilled_bytes=0, shared_bytes=8192, warps=4),)
VARIABLES = {
    "BLOCK_M": (16, 32, 64, 128),
    "BLOCK_N": (16, 32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "num_warps": (1, 2, 4, 8),
    "num_stages": (1, 2, 3, 4, 5),
}
PROBLEM = Problem(
    VARIABLES,
    (
        Constraint(
            lambda BLOCK_M, BLOCK_N, BLOCK_K, num_stages: (
                (BLOCK_M + BLOCK_N) * BLOCK_K * num_stages * 2 <= H200.shared_bytes
            ),
            "too much shared memory",
        ),
        Constraint(
            lambda BLOCK_M, BLOCK_N, num_warps: 8 <= BLOCK_M * BLOCK_N // (num_warps * 32) <= 127,
            "too many registers",
        ),
    ),
)
START = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 1, "num_stages": 2}


def task(problem: Problem = PROBLEM, start: Config = START) -> TuningTask:
    return TuningTask("planted", {"rows": 196}, torch.float16, H200, problem, (start,))


@dataclass
class PlantedCard:
    """Made-up `Bench`: one run takes `time_us(config)`, and a compilation a fifth of a second.

    Attributes:
        time_us: Time of one run of a configuration.
        resources: Resources of a configuration, or why it does not compile; `LIGHT` by default.
        wrong: Whether the results of a configuration are wrong.
        now: Seconds since the start.
        runs: Number of runs of each configuration that was timed, in the order of timing.
    """

    time_us: Callable[[Config], float]
    resources: Callable[[Config], Compiled] = lambda config: LIGHT
    wrong: Callable[[Config], bool] = lambda config: False
    now: float = 0.0
    runs: dict[tuple[int, ...], int] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now

    def footprint(self, config: Config) -> Footprint:
        return Footprint(200, 1000.0)

    def compile(self, configs: Sequence[Config]) -> Sequence[Compiled]:
        self.now += 0.2 * len(configs)
        return [self.resources(config) for config in configs]

    def error(self, config: Config) -> float:
        self.now += 1e-3
        return 5.0 if self.wrong(config) else 0.5

    def times_us(self, config: Config, runs: int) -> Sequence[float]:
        key = tuple(config.values())
        self.runs[key] = self.runs.get(key, 0) + runs
        self.now += runs * self.time_us(config) * 1e-6
        return [self.time_us(config)] * runs


def surface(seed: int) -> Callable[[Config], float]:
    """Return a time for each configuration: one minimum, and steps for waves and for spills."""
    random = Random(seed)
    centre = {name: random.uniform(0, len(values) - 1) for name, values in VARIABLES.items()}
    weight = {name: random.uniform(0.03, 0.25) for name in VARIABLES}
    one, other = random.sample([*VARIABLES], 2)
    warp, rows, columns = random.uniform(-0.1, 0.1), random.randrange(50, 4000), 192

    def time_us(config: Config) -> float:
        off = {n: values.index(config[n]) - centre[n] for n, values in VARIABLES.items()}
        hollow = sum(weight[n] * off[n] ** 2 for n in VARIABLES) + warp * off[one] * off[other]
        programs = -(-rows // config["BLOCK_M"]) * -(-columns // config["BLOCK_N"])
        waves = programs / 132
        spills = config["BLOCK_M"] * config["BLOCK_N"] / config["num_warps"] > 3000
        return float(5 * 2**hollow * (-(-programs // 132) / waves) ** 0.1 * (1.5 if spills else 1))

    return time_us
