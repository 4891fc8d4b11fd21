"""Comparison of runs, on studies of a real search with a score that is computed at once."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError, RunError
from hwnas.experiment import space_of
from hwnas.predictors import Estimate
from hwnas.recipe import read_recipe
from hwnas.search import Evaluation, Fidelity, SearchOptions, StudyStorage, run_search
from hwnas.search_spaces import Candidate, Workload
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.finalists.limits import LimitCheck
from hwnas.stages.finalists.shortlist import Shortlist, TriedFinalist
from hwnas.stages.results.comparison import compare_runs, write_comparison

TARGET = "cpu-onnxruntime-fp32-b1-t1"
LATENCY = f"latency_ms@{TARGET}"


@dataclass(frozen=True)
class ByKernels:
    """Evaluator whose score grows with kernel sizes, by a factor that differs between runs."""

    liking: float = 1.0

    @property
    def key(self) -> str:
        return f"by-kernels-{self.liking}"

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        kernels = [float(v) for n, v in candidate.network.values if n.endswith("kernel_size")]
        value = self.liking * sum(kernels) / 20
        return Evaluation({"accuracy": value}, {"accuracy": 0.01}, 100, "validation")


class ByMacs:
    """Cost source with one millisecond per million multiply-accumulates."""

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        return [
            Estimate("latency_ms", workload.macs / 1e6, 0.001, "table", target.name)
            for workload, target in zip(workloads, targets, strict=True)
        ]


def searched_again(finished: Path, to: Path, trials: int, liking: float = 1.0) -> Path:
    """Copy the run and replace its study by one with other trials."""
    shutil.copytree(finished, to)
    shutil.rmtree(to / "bundles")
    for path in to.glob("study.db*"):
        path.unlink()
    run_search(
        space_of(to),
        read_recipe(to / "recipe.toml")[0].objective,
        ByKernels(liking),
        SearchOptions(trials, "random"),
        costs={LATENCY: ByMacs()},
        storage=StudyStorage(to / "study.db"),
    )
    return to


@pytest.mark.slow
def test_compare_runs_finds_that_a_longer_run_covers_the_shorter(
    finished: Path, tmp_path: Path
) -> None:
    short = searched_again(finished, tmp_path / "short", 6)
    long = searched_again(finished, tmp_path / "long", 24)
    found = compare_runs([short, long])
    first, second = found.runs
    assert (first.trials, second.trials) == (6, 24)
    assert first.covered_by == {str(long): 1.0}
    assert second.covered_by[str(short)] < 1
    assert 0 < first.hypervolume <= second.hypervolume
    assert second.hypervolume_share == pytest.approx(1)
    assert first.hypervolume_share == pytest.approx(first.hypervolume / second.hypervolume)
    assert second.best["accuracy"] >= first.best["accuracy"]
    assert second.best[LATENCY] <= first.best[LATENCY]
    assert found.reference_point["accuracy"] < min(run.best["accuracy"] for run in found.runs)
    assert json.loads(json.dumps(found.to_json()))["objectives"] == ["accuracy", LATENCY]


@pytest.mark.slow
def test_compare_runs_finds_that_a_dominating_run_is_not_covered(
    finished: Path, tmp_path: Path
) -> None:
    behind = searched_again(finished, tmp_path / "behind", 12)
    ahead = searched_again(finished, tmp_path / "ahead", 12, liking=1.5)
    first, second = compare_runs([behind, ahead]).runs
    assert first.covered_by == {str(ahead): 1.0}
    assert second.covered_by == {str(behind): 0.0}
    assert first.hypervolume < second.hypervolume


@pytest.mark.slow
def test_compare_runs_is_independent_of_the_order_of_runs(finished: Path, tmp_path: Path) -> None:
    one = searched_again(finished, tmp_path / "one", 8)
    two = Path(shutil.copytree(one, tmp_path / "two"))
    found = compare_runs([one, two, finished])
    assert found.runs[0].hypervolume == found.runs[1].hypervolume
    assert found.runs[0].covered_by[str(two)] == found.runs[1].covered_by[str(one)] == 1
    back = compare_runs([finished, two, one])
    assert back.reference_point == found.reference_point
    assert {run.run: run.hypervolume for run in back.runs} == {
        run.run: run.hypervolume for run in found.runs
    }


def test_write_comparison_writes_a_csv_table(finished: Path, tmp_path: Path) -> None:
    other = searched_again(finished, tmp_path / "other", 6)
    found = compare_runs([finished, other])
    write_comparison(found, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, run in zip(rows, found.runs, strict=True):
        assert row["run"] == run.run
        assert float(row["hypervolume"]) == run.hypervolume
        assert float(row[f"best_{LATENCY}"]) == run.best[LATENCY]
        assert row[f"covered_by_{run.run}"] == ""


def changed(run: Path, to: Path, old: str, new: str) -> Path:
    """Copy the run and replace a text in its recipe."""
    shutil.copytree(run, to)
    text = (to / "recipe.toml").read_text()
    assert old in text
    (to / "recipe.toml").write_text(text.replace(old, new))
    about = json.loads((to / "run.json").read_text())
    recipe = read_recipe(to / "recipe.toml")[0].hash
    (to / "run.json").write_text(json.dumps({**about, "recipe": recipe}))
    return to


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f'"{TARGET}"', '"cpu-openvino-fp32-b1-t1"', rf"only \S+run has latency_ms@{TARGET}"),
        (
            f'"{TARGET}"',
            f'"{TARGET}"\nlimit = 5',
            r"has the limit none in \S+run and 5 in \S+other",
        ),
    ],
)
def test_compare_runs_refuses_runs_with_different_objectives(
    finished: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare_runs([finished, changed(finished, tmp_path / "other", old, new)])


def test_compare_runs_needs_two_different_runs(finished: Path, tmp_path: Path) -> None:
    for runs in ([finished], [finished, finished / "."], []):
        with pytest.raises(ConfigError, match="expected two or more different runs"):
            compare_runs(runs)
    with pytest.raises(RunError, match="holds no run"):
        compare_runs([finished, tmp_path / "none"])


def test_compare_runs_leaves_out_networks_measured_to_break_a_limit(
    finished: Path, tmp_path: Path
) -> None:
    """The recipe has a limit, and the record says that the finalists broke it."""
    given = f'target = "{TARGET}"'
    one = changed(finished, tmp_path / "one", given, f"{given}\nlimit = 1e6")
    two = changed(finished, tmp_path / "two", given, f"{given}\nlimit = 1e6")
    whole = compare_runs([one, two]).runs[1]
    assert whole.left_out == ()
    bundles = read_bundles(two / "bundles")
    for bundle in bundles.values():
        shutil.rmtree(bundle.folder)
    check = LimitCheck(LATENCY, 1e6, 2e6, 2e6, 2e6, "measured", None, "broken", 1.0)
    Shortlist(tuple(TriedFinalist(name, 0, "broken", False, (check,)) for name in bundles)).write(
        two
    )
    first, second = compare_runs([one, two]).runs
    assert second.left_out == tuple(sorted(bundles))
    assert second.hypervolume < first.hypervolume
    assert second.trials == first.trials, "they were evaluated all the same"
    assert "left_out" in compare_runs([one, two]).to_json()["runs"][1]
