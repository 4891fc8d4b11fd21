"""Is a training step of the supernet with one active subnet slower than the subnet's own step?

Both make the same step (forward, backward, AdamW) on the same images, with interleaved timing. The
supernet uses slices of its shared weights; the extracted subnet has weights of its own.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.deploy.measurement.latency_timer import LatencyTimer, TimingSettings, interleave
from hwnas.search.training import Batch, NetworkStep, StepContext, TrainConfig
from hwnas.search_spaces import Architecture, SearchSpace, Supernet
from hwnas.stages.run_inputs import RunInputs

_ROUND_MS = 100.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--networks", type=int, default=8, help="random networks, in addition to two extremes"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20, help="undisturbed rounds per network")
    parser.add_argument("--batch", type=int, default=64, help="images in a step")


def work(arguments: argparse.Namespace) -> None:
    config = {"rounds": arguments.rounds, "batch": arguments.batch, "networks": arguments.networks}
    setting = Setting(arguments, config)
    settings = TimingSettings(3, arguments.rounds, _ROUND_MS, 30.0, max_slowdown=math.inf)
    for seed in setting.seeds:
        run_inputs = setting.run_inputs(seed)
        for threads in arguments.threads:
            for role, network in networks(run_inputs.space, arguments.networks, seed):
                subject = f"{network.id}-t{threads}"
                if setting.observations.find("cpu_ratio", subject, seed) is None:
                    print(
                        f"seed {seed}: {threads} threads, {role} network {network.id}", flush=True
                    )
                    rows = compare(run_inputs, network, role, threads, arguments.batch, settings)
                    setting.observations.put(rows)
        observed = [row for row in setting.observations.rows if row.seed == seed]
        setting.answer(summary(observed, arguments.threads, seed))
    setting.show()


def networks(space: SearchSpace, count: int, seed: int) -> list[tuple[str, Architecture]]:
    """Return the largest, the smallest and some random networks, each with its role."""
    rng = random.Random(seed)
    drawn = [("random", space.sample(rng)) for _ in range(count)]
    return [("largest", space.largest()), ("smallest", space.smallest()), *drawn]


def compare(
    run_inputs: RunInputs,
    network: Architecture,
    role: str,
    threads: int,
    batch: int,
    settings: TimingSettings,
) -> list[Row]:
    """Time both steps and return the ratio of the supernet's to the subnet's, on both clocks."""
    torch.set_num_threads(threads)
    seed = run_inputs.recipe.seed
    torch.manual_seed(seed)
    supernet = run_inputs.space.supernet()
    supernet.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    extracted = supernet.extract(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    activation_ms = _activation_ms(supernet, network)
    shared = _stepper(supernet, run_inputs, network, batch)

    def supernet_step() -> None:
        supernet.activate(network)
        shared()

    alone = LatencyTimer(
        _stepper(extracted, run_inputs, network, batch),
        settings,
        time.process_time,
        one_thread=threads == 1,
    )
    active = LatencyTimer(supernet_step, settings, time.process_time, one_thread=threads == 1)
    interleave([alone], [active], settings.retries)
    clean = min(active.clean, alone.clean)
    rows = []
    for clock in ("cpu", "wall"):
        of_supernet, of_network = active.quantiles(clock), alone.quantiles(clock)
        details = {
            "role": role,
            "threads": threads,
            "supernet_ms": of_supernet.p50,
            "extracted_ms": of_network.p50,
            "activation_ms": activation_ms,
            "contended": clean < active.wanted,
            "architecture": network.to_json(),
        }
        spread = {
            "supernet_p20": of_supernet.p20,
            "supernet_p80": of_supernet.p80,
            "extracted_p20": of_network.p20,
            "extracted_p80": of_network.p80,
        }
        ratio = of_supernet.p50 / of_network.p50
        subject = f"{network.id}-t{threads}"
        rows.append(
            Row(f"{clock}_ratio", subject, seed, ratio, "ratio", active.wanted, spread, details)
        )
    return rows


def _activation_ms(supernet: Supernet, network: Architecture) -> float:
    """Return the CPU time in ms of the first activation of a network, as occurs in training."""
    start = time.process_time()
    supernet.activate(network)
    return 1e3 * (time.process_time() - start)


def _stepper(
    network: nn.Module, run_inputs: RunInputs, architecture: Architecture, batch: int
) -> Callable[[], None]:
    """Return a function that makes one full training step, always on the same images."""
    config: TrainConfig = run_inputs.recipe.train
    images, targets = map(torch.from_numpy, run_inputs.data.train.take(np.arange(batch)))
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    shape = run_inputs.space.input_shape(architecture)
    step = NetworkStep(network, run_inputs.task, shape)
    network.train()

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        step(Batch(images, targets), StepContext(random.Random(0)))
        optimizer.step()

    return run


def summary(rows: list[Row], threads: list[int], seed: int) -> list[Row]:
    """Return the median over networks, with the extremes."""
    answers = []
    for clock in ("cpu", "wall"):
        for count in threads:
            ratios = [
                row.value
                for row in rows
                if row.metric == f"{clock}_ratio"
                and row.details["threads"] == count
                and row.value is not None
            ]
            spread = {"least": min(ratios), "most": max(ratios)}
            subject, n = f"{clock}-t{count}", len(ratios)
            answers.append(Row("step_ratio", subject, seed, median(ratios), "ratio", n, spread))
            answers.append(Row("worst_step_ratio", subject, seed, max(ratios), "ratio", n))
    first = [row.details["activation_ms"] for row in rows if row.metric == "cpu_ratio"]
    answers.append(Row("first_activation", "cpu", seed, median(first), "ms", len(first)))
    return answers


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, add_options)
