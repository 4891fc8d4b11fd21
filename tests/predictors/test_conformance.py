"""Conformance of cost sources and predictors. A new one is added to the lists below."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors import (
    CostSource,
    DevicePredictor,
    Estimate,
    Predictor,
    shipped_prior,
)
from hwnas.predictors.models.transfer_prior import TransferPrior
from hwnas.search_spaces import MobileNetConfig, MobileNetSpace, Stage, Workload, mobilenet

Latency = Callable[[Workload], float]


class Table:
    """Smallest possible cost source: a table of milliseconds by network."""

    def __init__(self, rows: dict[str, float]) -> None:
        self._rows = rows

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        if len(workloads) != len(targets):
            raise ConfigError(f"got {len(workloads)} workloads and {len(targets)} targets")
        return [
            Estimate("latency_ms", self._rows[workload.id], 0.0, "table", target.name)
            for workload, target in zip(workloads, targets, strict=True)
        ]


def taught(target: Target) -> Predictor:
    """Return a predictor with the measurements of all known devices."""
    return DevicePredictor(target.name, shipped_prior())


def alone(target: Target) -> Predictor:
    """Return a predictor without other devices; it has only the networks that scale features."""
    nothing = TransferPrior((), shipped_prior().reference)
    return DevicePredictor(target.name, nothing)


PREDICTORS: dict[str, Callable[[Target], Predictor]] = {"taught": taught, "alone": alone}
SOURCES = [*PREDICTORS, "table"]


@pytest.fixture(params=PREDICTORS)
def empty(request: pytest.FixtureRequest, target: Target) -> Predictor:
    return PREDICTORS[request.param](target)


@pytest.fixture
def predictor(empty: Predictor, unseen: list[Workload], true_latency_ms: Latency) -> Predictor:
    return empty.adapt(unseen[:12], [true_latency_ms(workload) for workload in unseen[:12]])


@pytest.fixture(params=SOURCES)
def source(
    request: pytest.FixtureRequest,
    target: Target,
    unseen: list[Workload],
    true_latency_ms: Latency,
) -> CostSource:
    if request.param == "table":
        return Table({workload.id: true_latency_ms(workload) for workload in unseen})
    latencies = [true_latency_ms(workload) for workload in unseen[:12]]
    return PREDICTORS[request.param](target).adapt(unseen[:12], latencies)


class TestCostSource:
    def test_returns_one_estimate_per_pair_in_order(
        self, source: CostSource, target: Target, unseen: list[Workload]
    ) -> None:
        estimates = source.cost(unseen, [target] * len(unseen))
        assert len(estimates) == len(unseen)
        alone = [source.cost([workload], [target])[0] for workload in unseen[:5]]
        assert [e.mean for e in alone] == pytest.approx([e.mean for e in estimates[:5]])
        for estimate in estimates:
            assert estimate.target == target.name
            assert estimate.metric == "latency_ms"
            assert 0 < estimate.mean < math.inf
            assert 0 <= estimate.std < math.inf

    def test_returns_no_estimates_for_no_pairs(self, source: CostSource) -> None:
        assert source.cost([], []) == []

    def test_refuses_lists_of_different_lengths(
        self, source: CostSource, target: Target, unseen: list[Workload]
    ) -> None:
        with pytest.raises(ConfigError, match="got 2 workloads and 1 targets"):
            source.cost(unseen[:2], [target])

    def test_survives_pickling(
        self, source: CostSource, target: Target, unseen: list[Workload]
    ) -> None:
        copy = pickle.loads(pickle.dumps(source))
        assert copy.cost(unseen[:3], [target] * 3) == source.cost(unseen[:3], [target] * 3)


SPAWNED = """
import pickle, sys
from pathlib import Path
predictor, workloads, targets = pickle.loads(Path(sys.argv[1]).read_bytes())
print([e.mean for e in predictor.cost(workloads, targets)])
"""


class TestPredictor:
    def test_adapts_into_a_new_predictor(
        self,
        empty: Predictor,
        target: Target,
        unseen: list[Workload],
        true_latency_ms: Latency,
    ) -> None:
        latencies = [true_latency_ms(workload) for workload in unseen]
        first = empty.adapt(unseen[:8], latencies[:8])
        before = first.cost(unseen, [target] * len(unseen))
        second = first.adapt(unseen[8:20], latencies[8:20])
        assert first.cost(unseen, [target] * len(unseen)) == before
        assert second.cost(unseen, [target] * len(unseen)) != before
        at_once = empty.adapt(unseen[:20], latencies[:20])
        assert at_once.cost(unseen, [target] * len(unseen)) == second.cost(
            unseen, [target] * len(unseen)
        )
        with pytest.raises(ConfigError, match="needs at least"):
            empty.cost(unseen[:1], [target])

    def test_marks_estimates_as_predicted(
        self, predictor: Predictor, target: Target, unseen: list[Workload]
    ) -> None:
        assert {e.kind for e in predictor.cost(unseen, [target] * len(unseen))} == {"predicted"}

    @pytest.mark.slow
    def test_predicts_the_same_in_another_process(
        self, predictor: Predictor, target: Target, unseen: list[Workload], tmp_path: Path
    ) -> None:
        here = [e.mean for e in predictor.cost(unseen[:5], [target] * 5)]
        (tmp_path / "work").write_bytes(pickle.dumps((predictor, unseen[:5], [target] * 5)))
        done = subprocess.run(
            [sys.executable, "-c", SPAWNED, str(tmp_path / "work")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert [float(x) for x in done.stdout.strip("[]\n").split(",")] == pytest.approx(here)

    @pytest.mark.slow
    def test_gives_larger_options_higher_costs(self, predictor: Predictor, target: Target) -> None:
        space = mobilenet((8, 8, 1), 10)
        costs = predictor.choice_costs(space, target)
        assert costs.keys() == {choice.name for choice in space.choices}
        for choice in space.choices:
            ordered = [costs[choice.name][str(option)] for option in choice.options]
            if choice.name.endswith(("depth", "expand_ratio")):
                assert all(a < b for a, b in pairwise(ordered)), choice.name

    def test_orders_expansion_ratios_by_cost(self, predictor: Predictor, target: Target) -> None:
        """The space has one choice, so each option is one network."""
        space = MobileNetSpace(
            MobileNetConfig(
                (Stage(16, 1, expand_ratio=(2, 4, 8)),), (16,), in_channels=3, outputs=10
            )
        )
        table = predictor.choice_costs(space, target)
        assert predictor.choice_costs(space, target) == table
        [(name, costs)] = [(name, costs) for name, costs in table.items() if len(costs) > 1]
        assert name.endswith("expand_ratio")
        assert costs["2"] < costs["4"] < costs["8"]


def test_estimate_refuses_a_negative_standard_deviation() -> None:
    with pytest.raises(ConfigError, match=r"standard deviation of latency_ms is -1.0; expected"):
        Estimate("latency_ms", 1.0, -1.0, "predicted", "cpu")


@pytest.mark.parametrize("log_std", [0.0, 0.05, 0.8])
def test_estimate_interval_is_log_normal(log_std: float) -> None:
    estimate = Estimate.log_normal("latency_ms", math.log(2.0), log_std, "cpu")
    low, high = estimate.interval90
    assert math.log(high / 2.0) == pytest.approx(1.645 * log_std, abs=1e-3)
    assert low * high == pytest.approx(4.0)


def test_estimate_survives_a_json_round_trip() -> None:
    estimate = Estimate("latency_ms", 1.5, 0.25, "measured", "cpu-onnxruntime-fp32-b1-t1")
    assert Estimate.from_json(estimate.to_json()) == estimate


def test_cost_table_covers_spaces_for_other_image_sizes(
    target: Target, true_latency_ms: Latency
) -> None:
    other = mobilenet((8, 8, 1), 10)
    workloads = [other.workload(other.smallest()), other.workload(other.largest())]
    table = Table({w.id: true_latency_ms(w) for w in workloads})
    small, large = table.cost(workloads, [target] * 2)
    assert small.mean < large.mean
