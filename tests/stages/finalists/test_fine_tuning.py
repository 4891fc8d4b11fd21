"""Finalists are fine-tuned with several seeds; the best one is delivered, the spread is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from torch import Tensor

from hwnas import experiment
from hwnas.cli.terminal import print_summary
from hwnas.deploy import Bundle
from hwnas.progress import SilentReporter
from hwnas.search.training import load_weights
from hwnas.stages.finalists.bundles import score_of

QUIET = SilentReporter()


def statistics_of(run: Path) -> dict[str, Tensor]:
    """Return the statistics of all normalisations of a run's only finalist."""
    [file] = (run / "finalists").glob("*.safetensors")
    return {name: t for name, t in load_weights(file).items() if "running_" in name}


@pytest.mark.slow
def test_fine_tuning_keeps_the_statistics_if_the_recipe_says_so(
    quick_recipe: Path, tmp_path: Path
) -> None:
    run, fixed = tmp_path / "run", ["deploy.finetune_norm_statistics=fixed"]
    experiment.run(quick_recipe, run, reporter=QUIET, overrides=["deploy.finetune_epochs=0"])
    before = statistics_of(run)
    for rate in ("0.01", "0.02"):
        overrides = ["deploy.finetune_epochs=1", f"deploy.finetune_learning_rate={rate}"]
        experiment.resume(run, QUIET, overrides=[*overrides, *fixed])
        for name, found in statistics_of(run).items():
            assert found.equal(before[name]), name
    followed = experiment.resume(run, QUIET, overrides=["deploy.finetune_norm_statistics=batch"])
    assert any(not found.equal(before[name]) for name, found in statistics_of(run).items())
    assert any(row.bundle for row in followed.front)


@pytest.mark.slow
def test_finalists_are_fine_tuned_with_several_seeds(quick_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    once = experiment.run(quick_recipe, run, reporter=QUIET)
    [row] = [row for row in once.front if row.bundle]
    assert row.test_of_seeds == ()
    first = score_of(Bundle.load(run / str(row.bundle)), once.metric, "validation")["value"]
    weights = run / f"finalists/{row.id}.safetensors"
    written = weights.stat().st_mtime_ns

    found = experiment.resume(run, QUIET, overrides=["deploy.finetune_seeds=3"])
    [row] = [row for row in found.front if row.bundle]
    assert len(set(row.test_of_seeds)) > 1
    assert len(row.test_of_seeds) == 3
    assert any(row.test == pytest.approx(value, abs=1e-6) for value in row.test_of_seeds)
    assert weights.stat().st_mtime_ns == written, "the first fine-tuning is reused"

    bundle = Bundle.load(run / str(row.bundle))
    metric = found.metric
    assert score_of(bundle, metric, "test")["of_seeds"] == list(row.test_of_seeds)
    assert "of_seeds" not in score_of(bundle, metric, "validation")
    assert score_of(bundle, metric, "validation")["value"] >= first

    console = Console(record=True, width=200)
    print_summary(console, found)
    low, high = min(row.test_of_seeds), max(row.test_of_seeds)
    text = console.export_text()
    assert f"({low:.4f} to {high:.4f})" in text
    assert "lowest to highest of 3 fine-tunings" in text
    page = (run / "report.html").read_text()
    assert f"{low:.4f} to {high:.4f} over 3 fine-tunings" in page
    assert f"lowest_test_{metric}" in (run / "front.csv").read_text()
