"""Regression gate: limits, growth beyond noise, and invalid budgets."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.deploy import Export, Target, TimingSettings, export_onnx
from hwnas.deploy.gate.gate import COSTS, CostBudget, CostCheck, gate, read_budget
from hwnas.deploy.gate.gate import _growth as growth_of
from hwnas.deploy.gate.junit import junit
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.errors import ConfigError

ONE = Target.parse("cpu-onnxruntime-fp32-b1-t1")
QUICK = TimingSettings(warmup=2, rounds=20, round_ms=1e-3)


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of a network with several times the latency, memory and size."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 192, 3, padding=1)]
    layers += [nn.Conv2d(192, 192, 3, padding=1) for _ in range(3)]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 10))
    return export_onnx(
        network, (1, 8, 8), tmp_path_factory.mktemp("larger") / "larger.onnx", traceable=True
    ).path


GENEROUS = CostBudget(ONE, dict.fromkeys(COSTS, 1e12), {"p50_ms": 0.3, "p95_ms": 0.1})


@pytest.mark.slow
def test_gate_rejects_a_larger_network_in_all_costs(exported: Export, larger: Path) -> None:
    worse = gate(larger, GENEROUS, exported.path, settings=QUICK)
    assert [verdict.name for verdict in worse] == list(COSTS)
    for verdict in worse:
        assert verdict.grown
        assert not verdict.ok
        assert verdict.name in verdict.failure
        assert verdict.growth is not None
        assert verdict.growth > 1
    assert {verdict.kind for verdict in worse} == {"measured", "counted"}
    assert "bytes (counted)" in worse[-1].note


@pytest.mark.slow
def test_gate_accepts_a_smaller_network_in_all_costs(exported: Export, larger: Path) -> None:
    assert all(v.ok for v in gate(exported.path, GENEROUS, larger, settings=QUICK))


@pytest.mark.slow
def test_gate_accepts_a_network_compared_with_itself(exported: Export) -> None:
    allowed = CostBudget(ONE, growth={"p50_ms": 0.1, "p95_ms": 0.5, "peak_memory_bytes": 0.2})
    for verdict in gate(exported.path, allowed, exported.path, settings=QUICK):
        assert verdict.ok, verdict.failure
        assert verdict.interval is not None
        assert verdict.interval[0] <= verdict.growth <= verdict.interval[1]


@pytest.mark.slow
def test_gate_checks_limits_without_a_baseline(exported: Export) -> None:
    size = exported.path.stat().st_size
    limits = {"size_bytes": size - 1, "p50_ms": 1e3, "peak_memory_bytes": 1e10}
    verdicts = gate(exported.path, CostBudget(ONE, limits), settings=QUICK)
    failed = [verdict for verdict in verdicts if not verdict.ok]
    assert [verdict.name for verdict in failed] == ["size_bytes"]
    assert failed[0].failure == f"size_bytes is {size} bytes; the limit is {size - 1}"


@given(
    st.lists(st.floats(0.5, 2), min_size=3, max_size=6),
    st.lists(st.floats(0.5, 2), min_size=3, max_size=6),
)
def test_growth_lies_in_its_interval_and_inverts_with_swapped_samples(
    new: list[float], old: list[float]
) -> None:
    growth, (low, high) = growth_of(new, old)
    assert low <= growth + 1e-12
    assert growth <= high + 1e-12
    back, (back_low, back_high) = growth_of(old, new)
    assert (1 + growth) * (1 + back) == pytest.approx(1)
    assert (1 + low) * (1 + back_high) == pytest.approx(1)
    assert (1 + high) * (1 + back_low) == pytest.approx(1)


def test_growth_interval_has_few_false_alarms() -> None:
    """The 95 % interval of two samples of one distribution lies above 0 in about 2.5 % of cases."""
    rng = np.random.default_rng(0)
    draws = (rng.lognormal(sigma=0.05, size=(2, 4)) for _ in range(400))
    false_alarms = np.mean([growth_of(new, old)[1][0] > 0 for new, old in draws])
    assert 0.005 < false_alarms < 0.05  # 2.5 %: one side of the 5 % outside the interval


def budget_file(folder: Path, text: str) -> Path:
    path = folder / "budget.toml"
    path.write_text(text)
    return path


def test_read_budget_reads_target_limits_growth_and_data(tmp_path: Path) -> None:
    path = budget_file(
        tmp_path,
        f'target = "{ONE.name}"\ndata = "digits"\n'
        "[limits]\np50_ms = 2\n[growth]\naccuracy = 0.01\n",
    )
    assert read_budget(path) == CostBudget(ONE, {"p50_ms": 2.0}, {"accuracy": 0.01}, "digits")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target = ", "is not TOML"),
        ("[limits]\np50_ms = 1", "target is missing"),
        ('target = "cpu"', "closest target"),
        (f'target = "{ONE.name}"\nlimit = 1', "unknown key 'limit'; did you mean 'limits'"),
        (f'target = "{ONE.name}"\nlimits = 1', "expected a table"),
        (f'target = "{ONE.name}"\n[limits]\np50_ms = "1"', "limits.p50_ms is '1'"),
        (f'target = "{ONE.name}"\n[growth]\np50_ms = -1', "expected a number, 0 or more"),
        (f'target = "{ONE.name}"\ndata = 3', "data is 3"),
    ],
)
def test_read_budget_refuses_invalid_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_budget(budget_file(tmp_path, text))
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        read_budget(tmp_path / "nowhere.toml")


def test_gate_refuses_budgets_that_do_not_fit_the_file(exported: Export) -> None:
    with pytest.raises(ConfigError, match=r"'accuracy', which is not a cost .* set data to"):
        gate(exported.path, CostBudget(ONE, {"accuracy": 0.9}), settings=QUICK)
    int8 = Target.parse("cpu-onnxruntime-int8-b1-t1")
    with pytest.raises(ConfigError, match="give the file that is deployed"):
        gate(exported.path, CostBudget(int8), settings=QUICK)


def test_junit_escapes_the_name_of_the_suite() -> None:
    root = ElementTree.fromstring(junit('a "b" <c> & d', []).encode())
    assert root[0].attrib["name"] == 'a "b" <c> & d'


def test_gate_notes_int8_files_that_saturate_on_this_processor(
    exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = random_batches((1, 8, 8), 4)
    model = quantize_int8(exported.path, tmp_path / "a.onnx", batches, ["full"], reduce_range=False)
    budget = CostBudget(Target.parse("cpu-onnxruntime-int8-b1-t1"))
    monkeypatch.setattr("hwnas.deploy.gate.gate._latencies", lambda *_: [])
    monkeypatch.setattr(
        "hwnas.deploy.gate.gate._memory", lambda *_: CostCheck("m", "", "measured", 1.0)
    )
    for saturates in (True, False):
        place = "hwnas.deploy.quantization.saturation.sums_saturate"
        monkeypatch.setattr(place, lambda flags, machine, saturates=saturates: saturates)
        first, _ = gate(model, budget)
        assert ("no VNNI" in first.note) is saturates
