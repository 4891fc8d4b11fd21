"""Costs of a training step besides its arithmetic: activation of a network, and weight sharing."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from experiments.once_for_all.rival import settings_of
from experiments.once_for_all.steps import Batch, make_all_blocks, optimiser
from experiments.record import Results, Row
from hwnas.deploy.measurement.latency_timer import LatencyTimer, TimingSettings, interleave
from hwnas.search_spaces import Architecture, MobileNetSpace

__all__ = ["activations", "step_ratios"]

_NETWORKS, _REPEATS = 500, 10
_CLOCKS: tuple[Literal["cpu"], Literal["wall"]] = ("cpu", "wall")
_TIMING = TimingSettings(
    warmup=2, rounds=10, round_ms=100.0, max_seconds=20.0, max_slowdown=math.inf
)


def activations(space: MobileNetSpace, theirs: Any, seed: int) -> list[Row]:
    """Return microseconds of CPU time per activation, as medians over repeats of 500 networks.

    For our supernet there are four cases: a network that was active before; one that never was; one
    whose blocks must be created (the first random network, so most of its blocks); and drawing a
    random network and activating it. For theirs there are two: drawing with activation, which is
    one method, and activation alone.
    """
    rng = random.Random(seed)
    supernet = space.supernet().train()
    first = space.sample(rng)
    made = _microseconds(lambda: supernet.activate(first), 1)
    make_all_blocks(supernet)
    seen = [space.sample(rng) for _ in range(_NETWORKS)]
    for network in seen:
        supernet.activate(network)
    settings = [settings_of(space, network) for network in seen]

    def ours(networks: Sequence[Architecture]) -> None:
        for network in networks:
            supernet.activate(network)

    def new() -> float:
        networks = [space.sample(rng) for _ in range(_NETWORKS)]
        return _microseconds(lambda: ours(networks), _NETWORKS)

    def drawn() -> None:
        for _ in range(_NETWORKS):
            supernet.activate(space.sample(rng))

    def set_theirs() -> None:
        for each in settings:
            theirs.set_active_subnet(**each)

    def draw_theirs() -> None:
        for _ in range(_NETWORKS):
            theirs.sample_active_subnet()

    timed: dict[str, Callable[[], float]] = {
        "hwnas seen": lambda: _microseconds(lambda: ours(seen), _NETWORKS),
        "hwnas new": new,
        "hwnas sample": lambda: _microseconds(drawn, _NETWORKS),
        "ofa set": lambda: _microseconds(set_theirs, _NETWORKS),
        "ofa sample": lambda: _microseconds(draw_theirs, _NETWORKS),
    }
    found: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(_REPEATS):
        for name, time_once in timed.items():
            found[name].append(time_once())
    rows = [Row("activation", "hwnas with blocks to be made", seed, made, "us", 1)]
    for name, values in found.items():
        spread = {"least": min(values), "most": max(values)}
        rows.append(Row("activation", name, seed, median(values), "us", _NETWORKS, spread))
    theirs.set_max_net()
    return rows


def _microseconds(run: Callable[[], None], count: int) -> float:
    start = time.thread_time()
    run()
    return 1e6 * (time.thread_time() - start) / count


def step_ratios(
    observed: Results,
    space: MobileNetSpace,
    theirs: Any,
    batch: Batch,
    networks: int,
    threads: int,
    seed: int,
) -> None:
    """Record for each network and side the ratio of a step in the supernet to the subnet's own.

    Both sides use the memory format in which they train; ours is channels-last.
    """
    rng = random.Random(seed)
    drawn = [("random", space.sample(rng)) for _ in range(networks)]
    ours = space.supernet().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    supernets = {"hwnas": ours.train(), "ofa": theirs.train()}
    for role, network in [("largest", space.largest()), ("smallest", space.smallest()), *drawn]:
        for side, supernet in supernets.items():
            subject = f"{side} {network.id}"
            if observed.find("cpu_step_ratio", subject, seed) is not None:
                continue
            print(f"seed {seed}: a step of the {role} network {subject}", flush=True)
            inputs = batch.inputs(side == "hwnas")
            if side == "hwnas":
                supernet.activate(network)
                alone = supernet.extract(network)
                alone = alone.to(memory_format=torch.channels_last)
            else:
                supernet.set_active_subnet(**settings_of(space, network))
                alone = supernet.get_active_subnet(preserve_weight=True)
            own, shared = (
                LatencyTimer(
                    _step(each, inputs, batch), _TIMING, time.process_time, one_thread=threads == 1
                )
                for each in (alone.train(), supernet)
            )
            interleave([own], [shared], _TIMING.retries)
            observed.put(_ratios(own, shared, role, subject, seed))


def _ratios(
    own: LatencyTimer, shared: LatencyTimer, role: str, subject: str, seed: int
) -> list[Row]:
    rows = []
    for clock in _CLOCKS:
        supernet_ms, extracted_ms = shared.quantiles(clock).p50, own.quantiles(clock).p50
        details = {"role": role, "supernet_ms": supernet_ms, "extracted_ms": extracted_ms}
        ratio, n = supernet_ms / extracted_ms, shared.wanted
        rows.append(Row(f"{clock}_step_ratio", subject, seed, ratio, "ratio", n, details=details))
    return rows


def _step(network: nn.Module, inputs: Tensor, batch: Batch) -> Callable[[], None]:
    optimizer, task = optimiser(network), batch.task

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        task.loss(network(inputs), batch.targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return run
