"""Searches for other costs on devices than latency: energy and peak memory."""

import csv
import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from hwnas import experiment
from hwnas.deploy.measurement.energy import energy_of
from hwnas.errors import ConfigError, EnergyUnavailable
from hwnas.predictors import DeviceProfile, DeviceStore
from hwnas.progress import make_reporter
from hwnas.search_spaces import OperatorCountTable
from hwnas.stages.calibrate import store_of

TARGET = "cpu-onnxruntime-fp32-b1-t1"
QUIET = make_reporter(quiet=True)
SMALL = ["search.trials=6", "deploy.top=1", "predictor.networks=4"]


def recipe_for(quick_recipe: Path, *metrics: str, limit: float | None = None) -> Path:
    """Write a recipe whose second objective and further ones are metrics on the target."""
    text = quick_recipe.read_text(encoding="utf-8")
    start = text.index("[[objective]]", text.index("[[objective]]") + 1)
    end = text.index("[predictor]")
    bound = "" if limit is None else f"limit = {limit}\n"
    rest = f'direction = "minimize"\ntarget = "{TARGET}"\n{bound}\n'
    added = "".join(f'[[objective]]\nmetric = "{metric}"\n{rest}' for metric in metrics)
    path = quick_recipe.parent / "metrics.toml"
    path.write_text(text[:start] + added + text[end:], encoding="utf-8")
    return path


@pytest.mark.slow
def test_search_minimises_peak_memory_within_a_limit(quick_recipe: Path, tmp_path: Path) -> None:
    recipe = recipe_for(quick_recipe, "peak_memory_bytes", limit=5e7)
    summary = experiment.run(recipe, tmp_path / "run", SMALL, reporter=QUIET)
    label = f"peak_memory_bytes@{TARGET}"
    [finalist] = summary.finalists
    assert set(finalist.picks) == {"knee", "lowest-peak-memory", "most-accurate"}
    assert 1e5 < finalist.measured[label] < 5e7
    assert 0.5 < finalist.predicted[label] / finalist.measured[label] < 2
    [check] = finalist.limits
    assert (check.label, check.kind, check.state) == (label, "measured", "kept")
    with (tmp_path / "run" / "front.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {label, f"measured_{label}"} <= rows[0].keys()
    described = json.loads((tmp_path / "run" / str(finalist.bundle) / "bundle.json").read_text())
    [row] = [row for row in described["metrics"] if row["name"] == "peak_memory_bytes"]
    assert (row["kind"], row["unit"], row["target"]) == ("measured", "bytes", TARGET)
    assert "peak memory" in (tmp_path / "run" / "report.html").read_text()
    again = experiment.resume(tmp_path / "run", reporter=QUIET)
    assert again == summary


@pytest.mark.slow
def test_search_minimises_energy_with_a_counter(
    quick_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter of constant five watts replaces the counter of the hardware."""

    class FiveWatts:
        name, least_s = "five watts", 0.0

        def read_mj(self) -> float:
            return 5e3 * time.perf_counter()

    module = "hwnas.deploy.measurement.energy"
    monkeypatch.setattr(f"{module}.energy_counter", lambda hardware: FiveWatts())
    monkeypatch.setattr(
        f"{module}.energy_of", lambda run, counter, seconds: energy_of(run, counter, 0.02)
    )
    recipe = recipe_for(quick_recipe, "latency_ms", "energy_mj")
    summary = experiment.run(recipe, tmp_path / "run", SMALL, reporter=QUIET)
    [finalist] = summary.finalists
    energy, latency = (finalist.measured[f"{m}@{TARGET}"] for m in ("energy_mj", "latency_ms"))
    assert finalist.measured_latency_ms == latency
    assert energy > 2 * latency, "five watts are 5 mJ a millisecond of wall time"
    assert set(finalist.picks) == {"knee", "fastest", "lowest-energy", "most-accurate"}


@pytest.mark.slow
def test_search_predicts_energy_from_a_table_where_there_is_no_counter(
    quick_recipe: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(quick_recipe, "energy_mj")
    with pytest.raises(EnergyUnavailable, match=r"looked for .* with `hwnas calibrate --from"):
        experiment.run(recipe, tmp_path / "none", SMALL, reporter=QUIET)
    space, rng = experiment.space_of(recipe), random.Random(0)
    drawn = dict.fromkeys([space.smallest(), space.largest(), *map(space.sample, [rng] * 6)])
    networks = list(drawn)
    workloads = [space.workload(network) for network in networks]
    profile = DeviceProfile(
        TARGET,
        "energy_mj",
        tuple(network.id for network in networks),
        OperatorCountTable.of_workloads(workloads),
        np.array([1e-6 * workload.macs + 0.1 for workload in workloads]),
        kind="table",
    )
    DeviceStore.default().save(profile)
    summary = experiment.run(recipe, tmp_path / "run", SMALL, reporter=QUIET)
    [finalist] = summary.finalists
    assert f"energy_mj@{TARGET}" in finalist.predicted
    assert f"energy_mj@{TARGET}" not in finalist.measured
    assert store_of(tmp_path / "run").load(TARGET, "energy_mj").kind == "table"
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert "energy is predicted from" in log
    assert "energy_mj of the finalists remains predicted" in log


def test_peak_memory_is_refused_where_it_cannot_be_measured(
    quick_recipe: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(quick_recipe, "peak_memory_bytes")
    text = recipe.read_text().replace(TARGET, "cpu-openvino-fp32-b1-t1")
    recipe.write_text(text)
    with pytest.raises(ConfigError, match="the only runtime with a memory model"):
        experiment.run(recipe, tmp_path / "run", reporter=QUIET)
    assert not (tmp_path / "run").exists()
