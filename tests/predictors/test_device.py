from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import spearmanr

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors import DevicePredictor, Pool, shipped_prior
from hwnas.search_spaces import MobileNetSpace, Workload

Latency = Callable[[Workload], float]
NOISE = 0.03
TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")


@pytest.fixture(scope="module")
def timed(space: MobileNetSpace) -> list[Workload]:
    return chosen(space, 20)


def untouched(target: Target) -> DevicePredictor:
    return DevicePredictor(target.name, shipped_prior())


def chosen(space: MobileNetSpace, count: int) -> list[Workload]:
    pool = Pool.of(space)
    some = pool.most_informative(untouched(TARGET), count)
    return [space.workload(pool.networks[i]) for i in some]


def noisy(workloads: list[Workload], latency: Latency, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [latency(workload) * math.exp(rng.gauss(0, NOISE)) for workload in workloads]


@pytest.fixture(scope="module")
def fitted(target: Target, timed: list[Workload], true_latency_ms: Latency) -> DevicePredictor:
    return untouched(target).adapt(timed, noisy(timed, true_latency_ms))


def test_predictor_recovers_a_roofline_from_twenty_noisy_timings(
    fitted: DevicePredictor, target: Target, unseen: list[Workload], true_latency_ms: Latency
) -> None:
    predicted = [e.mean for e in fitted.cost(unseen, [target] * len(unseen))]
    true = [true_latency_ms(workload) for workload in unseen]
    assert spearmanr(predicted, true).statistic > 0.95
    errors = [abs(p / t - 1) for p, t in zip(predicted, true, strict=True)]
    assert np.median(errors) < 0.06


@pytest.mark.slow
def test_predictor_ranks_networks_with_eight_timings(
    target: Target,
    space: MobileNetSpace,
    unseen: list[Workload],
    true_latency_ms: Latency,
) -> None:
    timed = chosen(space, 8)
    fitted = untouched(target).adapt(timed, noisy(timed, true_latency_ms))
    predicted = [e.mean for e in fitted.cost(unseen, [target] * len(unseen))]
    assert spearmanr(predicted, [true_latency_ms(w) for w in unseen]).statistic > 0.9


def test_predictor_intervals_cover_measured_latencies(
    fitted: DevicePredictor, target: Target, unseen: list[Workload], true_latency_ms: Latency
) -> None:
    measured = noisy(unseen, true_latency_ms, seed=1)
    estimates = fitted.cost(unseen, [target] * len(unseen))
    inside = [abs(m - e.mean) <= 2 * e.std for m, e in zip(measured, estimates, strict=True)]
    assert np.mean(inside) >= 0.85
    assert np.median([e.std / e.mean for e in estimates]) < 4 * NOISE  # intervals are narrow


@pytest.mark.slow
def test_predictor_is_less_certain_for_unfamiliar_networks(
    target: Target, space: MobileNetSpace, true_latency_ms: Latency
) -> None:
    rng = random.Random(0)
    smallest = space.workload(space.smallest())
    near = [space.workload(space.mutate(space.largest(), rng, rate=0.2)) for _ in range(12)]
    fitted = untouched(target).adapt(near, noisy(near, true_latency_ms))
    familiar, strange = fitted.cost([near[0], smallest], [target] * 2)
    assert strange.std / strange.mean > 1.5 * familiar.std / familiar.mean


def test_held_out_prediction_ignores_the_network_itself(
    target: Target, timed: list[Workload], true_latency_ms: Latency
) -> None:
    latencies = noisy(timed[:6], true_latency_ms)
    honest = untouched(target).adapt(timed[:6], latencies).held_out()
    latencies[2] *= 100
    spoiled = untouched(target).adapt(timed[:6], latencies).held_out()
    assert len(honest) == 6
    assert spoiled[2] == honest[2]
    assert spoiled[3] != honest[3]


@pytest.mark.parametrize(
    ("latencies", "message"),
    [
        ([1.0, 2.0], "got 3 workloads and 2 costs; expected one for each"),
        ([1.0, 0.0, 1.0], "a latency_ms is 0.0; expected a positive number"),
        ([1.0, -2.0, 1.0], "a latency_ms is -2.0"),
        ([1.0, math.nan, 1.0], "a latency_ms is nan"),
        ([1.0, math.inf, 1.0], "a latency_ms is inf"),
    ],
)
def test_predictor_refuses_invalid_measurements(
    target: Target, timed: list[Workload], latencies: list[float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        untouched(target).adapt(timed[:3], latencies)


def test_predictor_refuses_too_few_measurements(target: Target, timed: list[Workload]) -> None:
    few = untouched(target).adapt(timed[:2], [1.0, 2.0])
    with pytest.raises(
        ConfigError, match=rf"2 networks were measured on {target.name}; .* at least 3"
    ):
        few.cost(timed[:1], [target])


def test_predictor_refuses_another_target(fitted: DevicePredictor, timed: list[Workload]) -> None:
    other = Target.parse("cpu-onnxruntime-fp32-b1-t2")
    with pytest.raises(ConfigError, match=r"is for cpu-onnxruntime-fp32-b1-t1, not for cpu-.*2"):
        fitted.cost(timed[:1], [other])


def test_predictor_fits_equal_latencies(target: Target, timed: list[Workload]) -> None:
    flat = untouched(target).adapt(timed[:5], [2.0] * 5)
    assert flat.cost(timed[5:6], [target])[0].mean == pytest.approx(2.0, rel=0.01)
