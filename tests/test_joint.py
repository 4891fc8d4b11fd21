"""Joint search of networks and their training settings, from recipe to bundle."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.progress import make_reporter

QUIET = make_reporter(quiet=True)
JOINT = """
name = "joint"
seed = 3

[data]
source = "digits"
validation_fraction = 0.25
train_limit = 300
test_limit = 200

[space]
name = ["mobilenet", "recipe"]
resolution = [8]
width = [1.0]
stem_channels = 8
stem_stride = 1
head_channels = 16
feature_channels = 16
stages = [{ channels = 8, stride = 2, kernel_size = [3, 5], expand_ratio = [1, 2, 3] }]

[space.recipe]
learning_rate = [0.000001, 0.03]
weight_decay = [0.02]
label_smoothing = [0.0, 0.1]
shift_pixels = [0, 1]
cutout = []
epochs = [4]

[train]
budget_minutes = 60
batch_size = 16
workers = 0

[[objective]]
metric = "accuracy"
direction = "maximize"

[[objective]]
metric = "params"
direction = "minimize"

[search]
evaluator = "train"
trials = 10
workers = 0
random_baseline = true

[deploy]
top = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joint")
    (folder / "recipe.toml").write_text(JOINT)
    experiment.run(folder / "recipe.toml", folder / "run", reporter=QUIET)
    return folder / "run"


def trials_of(run: Path, study: str = "search") -> list[optuna.trial.FrozenTrial]:
    found = optuna.load_study(study_name=study, storage=f"sqlite:///{run / 'study.db'}").trials
    return [trial for trial in found if trial.state is optuna.trial.TrialState.COMPLETE]


def front_of(run: Path) -> list[dict[str, str]]:
    with (run / "front.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_joint_search_candidates_are_networks_with_training_settings(run: Path) -> None:
    for study in ("search", "random"):
        trials = trials_of(run, study)
        assert len({trial.user_attrs["candidate"] for trial in trials}) == 10
        recipes = [trial.user_attrs["roles"]["recipe"]["values"] for trial in trials]
        assert [values.keys() for values in recipes] == [
            {"learning_rate", "label_smoothing", "shift_pixels"}
        ] * 10
        for trial, values in zip(trials, recipes, strict=True):
            assert values["learning_rate"] == trial.params["recipe.learning_rate"]
    networks = {json.dumps(t.user_attrs["architecture"]) for t in trials_of(run)}
    assert len(networks) <= 6, "some networks were trained by several recipes"


@pytest.mark.slow
def test_joint_search_accuracy_depends_on_training_settings(run: Path) -> None:
    def best(rate: float) -> float:
        return max(t.values[0] for t in trials_of(run) if t.params["recipe.learning_rate"] == rate)

    assert best(0.03) > 2 * best(0.000001)


@pytest.mark.slow
def test_joint_search_finalists_record_their_training_settings(run: Path) -> None:
    rows = front_of(run)
    assert {"recipe.learning_rate", "recipe.label_smoothing", "stage0.block0.kernel_size"} <= set(
        rows[0]
    )
    by_id = {row["id"]: row for row in rows}
    folders = sorted((run / "bundles").iterdir())
    assert len(folders) == 2
    for folder in folders:
        bundle = Bundle.load(folder)
        assert all(check.ok for check in bundle.verify())
        assert bundle.description["id"] == folder.name
        recipe = bundle.description["roles"]["recipe"]["values"]
        row = by_id[folder.name]
        assert recipe["learning_rate"] == float(row["recipe.learning_rate"])
        assert (
            f"| recipe.learning_rate | {recipe['learning_rate']:g} |"
            in next(folder.glob("*.md")).read_text()
        )
        described = {
            m["name"]: m for m in bundle.description["metrics"] if m.get("split") == "test"
        }
        if recipe["learning_rate"] == 0.03:
            assert described["accuracy"]["value"] > 0.3, "trained by its own recipe"
    page = (run / "report.html").read_text()
    assert "recipe: learning_rate 0.03" in page
    assert "mobilenet and recipe" in page


@pytest.mark.slow
def test_joint_search_resume_remakes_bundles_from_the_scores(run: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(run, tmp_path / "run"))
    before, rows = (again / "scores.jsonl").read_bytes(), front_of(again)
    shutil.rmtree(again / "bundles")
    experiment.resume(again, QUIET)
    assert (again / "scores.jsonl").read_bytes() == before
    assert front_of(again) == rows


@pytest.mark.slow
def test_joint_search_exports_other_candidates_with_their_settings(
    run: Path, tmp_path: Path
) -> None:
    packed = {folder.name for folder in (run / "bundles").iterdir()}
    other = next(t for t in trials_of(run) if t.user_attrs["candidate"] not in packed)
    bundle = experiment.export(run, tmp_path / "out", other.user_attrs["candidate"])
    assert bundle.description["roles"]["recipe"] == other.user_attrs["roles"]["recipe"]
    assert all(check.ok for check in bundle.verify())


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        (
            "search.evaluator=supernet",
            ["role 'recipe'", "evaluator 'supernet'", 'set search.evaluator = "train"'],
        ),
        ("space.recipe.learning_rate=[-1.0, 0.1]", ["train.learning_rate is -1.0", "above 0"]),
        ("space.recipe.batch_size=[16, 4000]", ["train.batch_size is 4000", "lower it"]),
        ("space.recipe.rate=[1]", ["[space.recipe] has no key 'rate'"]),
        ("space.recipe.cutout=[2.0, 0.1]", ["train.cutout is 2.0"]),
        ('space.name=["recipe", "mobilenet"]', ["'recipe', which builds no networks"]),
        ("space.name=[]", ["space.name", "expected a name"]),
    ],
)
def test_joint_search_refuses_settings_that_do_not_fit(
    hwnas: Callable[..., object], tmp_path: Path, override: str, parts: list[str]
) -> None:
    (tmp_path / "recipe.toml").write_text(JOINT)
    answer = hwnas("search", tmp_path / "recipe.toml", "--run", tmp_path / "run", "--set", override)
    answer.refused(*parts)  # type: ignore[attr-defined]
    assert not (tmp_path / "run").exists()
