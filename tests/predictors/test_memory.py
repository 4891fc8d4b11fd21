from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from torch import nn

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.metrics.memory import MemoryPredictor, arena_bytes, memory_features
from hwnas.search_spaces import MobileNetSpace, Workload, mobilenet
from hwnas.search_spaces.cost_model.workload import trace

SIDE = 64


def chain(*channels: int) -> Workload:
    """Return a chain of convolutions on images of 64 x 64 pixels."""
    layers = [nn.Conv2d(before, after, 3, padding=1) for before, after in pairwise(channels)]
    return trace(nn.Sequential(*layers), (channels[0], SIDE, SIDE))


@pytest.fixture(scope="module")
def networks() -> list[Workload]:
    space: MobileNetSpace = mobilenet((32, 32, 3), 10)
    rng = random.Random(3)
    return [space.workload(space.sample(rng)) for _ in range(50)]


def true_bytes(workload: Workload, rng: random.Random) -> float:
    """Simulate peak memory with constants unlike those of `memory_features`, and 2% noise."""
    exact = 4e5 + 3.0 * workload.weight_bytes + 1.2 * arena_bytes(workload)
    return exact * math.exp(rng.gauss(0, 0.02))


def test_arena_bytes_equal_values_computed_by_hand() -> None:
    one = 4 * 16 * SIDE**2  # 256 KiB
    assert arena_bytes(chain(3, 16)) == one
    assert arena_bytes(chain(3, 16, 16)) == 2 * one
    # The third output reuses the memory of the first.
    assert arena_bytes(chain(3, 16, 16, 16, 16)) == 2 * one
    # 768 KiB each: one in a region of 1 MiB, one in a region of 2 MiB, then both in the latter.
    assert arena_bytes(chain(3, 48, 48)) == 768 * 1024 + 2 * 768 * 1024


def test_arena_bytes_include_channel_padding_only_in_floating_point() -> None:
    assert arena_bytes(chain(3, 24)) == arena_bytes(chain(3, 32))
    pointwise = [trace(nn.Conv2d(3, channels, 1), (3, SIDE, SIDE)) for channels in (24, 32)]
    assert arena_bytes(pointwise[0], "int8") < arena_bytes(pointwise[1], "int8")


def test_arena_bytes_ignore_normalisations_and_activations() -> None:
    plain = [nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)]
    dressed = [plain[0], nn.BatchNorm2d(16), nn.ReLU(), plain[1], nn.BatchNorm2d(32)]
    two = (trace(nn.Sequential(*some), (3, SIDE, SIDE)) for some in (plain, dressed))
    assert len({arena_bytes(workload) for workload in two}) == 1


def test_arena_bytes_grow_with_the_batch_size() -> None:
    space = mobilenet((32, 32, 3), 10)
    largest = space.largest()
    one, eight = (arena_bytes(space.workload(largest, batch)) for batch in (1, 8))
    assert eight > 4 * one


def test_modelled_peak_grows_by_the_same_for_each_operator() -> None:
    """Operators without weights, on the same maps, differ by what a runtime loads for each."""

    def peak(relus: int) -> float:
        layers = [nn.Conv2d(3, 16, 3, padding=1), *(nn.AvgPool2d(1) for _ in range(relus))]
        workload = trace(nn.Sequential(*layers), (3, SIDE, SIDE))
        return float(np.exp(memory_features([workload])[0, 0])) - arena_bytes(workload)

    first, second, third = peak(1), peak(2), peak(3)
    assert second - first == pytest.approx(third - second)
    assert second > first + 1000


def test_memory_features_are_finite_and_the_first_is_largest(networks: list[Workload]) -> None:
    for number_format in ("fp32", "int8"):
        features = memory_features(networks, number_format)
        assert features.shape == (50, 3)
        assert np.isfinite(features).all()
        assert (features[:, :1] >= features).all()
    assert memory_features([]).shape == (0, 3)


def test_memory_predictor_is_accurate_after_ten_measurements(
    target: Target, networks: list[Workload]
) -> None:
    rng = random.Random(0)
    peaks = [true_bytes(workload, rng) for workload in networks]
    predictor = MemoryPredictor(target).adapt(networks[:10], peaks[:10])
    estimates = predictor.cost(networks[10:], [target] * 40)
    errors = [abs(e.mean / peak - 1) for e, peak in zip(estimates, peaks[10:], strict=True)]
    assert np.median(errors) < 0.06
    inside = [
        e.interval90[0] <= peak <= e.interval90[1]
        for e, peak in zip(estimates, peaks[10:], strict=True)
    ]
    assert np.mean(inside) >= 0.8
    assert np.median([e.std / e.mean for e in estimates]) < 0.1  # the intervals are not too wide
    assert {(e.metric, e.kind, e.target) for e in estimates} == {
        ("peak_memory_bytes", "predicted", target.name)
    }


def test_memory_predictor_adapts_in_steps_as_at_once(
    target: Target, networks: list[Workload]
) -> None:
    rng = random.Random(0)
    peaks = [true_bytes(workload, rng) for workload in networks[:8]]
    at_once = MemoryPredictor(target).adapt(networks[:8], peaks)
    in_turn = MemoryPredictor(target).adapt(networks[:3], peaks[:3])
    in_turn = in_turn.adapt(networks[3:8], peaks[3:])
    asked = networks[20:22], [target] * 2
    assert [e.mean for e in in_turn.cost(*asked)] == [e.mean for e in at_once.cost(*asked)]
    assert at_once.cost([], []) == []


def test_memory_predictor_refuses_wrong_measurements_and_targets(
    target: Target, networks: list[Workload]
) -> None:
    empty = MemoryPredictor(target)
    with pytest.raises(ConfigError, match=r"0 networks were measured on .* at least 3"):
        empty.cost(networks[:1], [target])
    with pytest.raises(ConfigError, match="got 2 workloads and 1 peaks; expected one for each"):
        empty.adapt(networks[:2], [1e6])
    with pytest.raises(ConfigError, match=r"a peak is nan bytes; expected a positive number"):
        empty.adapt(networks[:1], [math.nan])
    with pytest.raises(ConfigError, match=r"is for cpu-onnxruntime-fp32-b1-t1, not for .*-b8-t1"):
        empty.cost(networks[:1], [Target.parse("cpu-onnxruntime-fp32-b8-t1")])
    with pytest.raises(ConfigError, match="does not use onnxruntime"):
        MemoryPredictor(Target.parse("cpu-pytorch-fp32-b1-t1"))
