"""Stale results: a run never mixes old results with new inputs, and redoes only what it must."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState
from PIL import Image
from safetensors.numpy import load_file

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.deploy.targets.machine import machine
from hwnas.errors import RunError
from hwnas.progress import make_reporter
from hwnas.recipe.keys import decides, redone_by
from hwnas.run_folder import RunFolder
from hwnas.search.evaluation.converted import Executed
from hwnas.search.evaluation.scoring import score
from hwnas.stages import RunInputs

OLD_RUNS = Path(__file__).parent / "old_runs"
NOT_WANTED = {"calibrate", "ranking", "strategy", "random-baseline", "reference"}
"""Stages that the recipe does not ask for."""
QUIET = make_reporter(quiet=True)
TARGET = "cpu-onnxruntime-fp32-b1-t1"
Command = Callable[..., Any]

RECIPE = """
name = "stale"
seed = 0

[data]
source = "npz:images.npz"

[space]
name = "mobilenet"
resolution = [8]
width = [1.0]
stem_channels = 4
stem_stride = 1
head_channels = 8
feature_channels = 8
stages = [
    { channels = 4, depth = [1, 2], kernel_size = [3, 5], expand_ratio = [1, 2] },
    { channels = 8, stride = 2, kernel_size = [3, 5], expand_ratio = [2, 4] },
]

[train]
epochs = 2
batch_size = 32
learning_rate = 0.01
workers = 0

[[objective]]
metric = "accuracy"
direction = "maximize"

[[objective]]
metric = "params"
direction = "minimize"

[search]
trials = 6
workers = 0

[deploy]
top = 1
finetune_epochs = 1
"""


def digits() -> dict[str, np.ndarray]:
    """Return a few digits as the arrays of an ``npz`` file."""
    with np.load(OLD_RUNS / "schema_1" / "digits.npz") as found:
        return {name: found[name] for name in found}


def shift_labels(path: Path) -> None:
    arrays = dict(np.load(path))
    for name in ("y_train", "y_test"):
        arrays[name] = (arrays[name] + 1) % 10
    np.savez(path, **arrays)


@pytest.fixture(scope="session")
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with recipe, images and a finished run, then move it."""
    folder = tmp_path_factory.mktemp("made") / "here"
    folder.mkdir()
    np.savez(folder / "images.npz", **digits())
    (folder / "recipe.toml").write_text(RECIPE)
    experiment.run(folder / "recipe.toml", folder / "run", reporter=QUIET)
    return folder.rename(folder.parent / "moved")  # copies must find the images in their own folder


@pytest.fixture
def made(_made_once: Path, tmp_path: Path) -> Path:
    """Copy the folder, which the test may change."""
    return Path(shutil.copytree(_made_once, tmp_path / "made"))


def performed(run: Path, since: int = 0) -> list[str]:
    """Return the stages that began after the first `since` lines of the log."""
    lines = (run / "log.jsonl").read_text().splitlines()[since:]
    rows = map(json.loads, lines)
    return [row["stage"] for row in rows if row["event"] == "stage"]


def logged(run: Path) -> int:
    return len((run / "log.jsonl").read_text().splitlines())


def evaluations(run: Path) -> list[list[str]]:
    return [json.loads(line)["key"] for line in (run / "scores.jsonl").read_text().splitlines()]


def counted(run: Path) -> list[optuna.trial.FrozenTrial]:
    trials = optuna.load_study(study_name="search", storage=f"sqlite:///{run}/study.db").trials
    done = [t for t in trials if t.state is TrialState.COMPLETE]
    return [t for t in done if "stale" not in t.user_attrs]


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def assert_finalists_are_of(run: Path) -> None:
    """Check the test accuracy of each bundle against its file on the current images."""
    opened = RunFolder.open(run)
    i = RunInputs.prepare(opened.recipe, opened.recipe_folder)
    bundles = [Bundle.load(path) for path in (run / "bundles").iterdir()]
    assert bundles
    for bundle in bundles:
        bundle.verify()
        recorded = next(r for r in bundle.description["metrics"] if r.get("split") == "test")
        shape = i.space.input_shape(bundle.architecture)
        found = score(Executed(bundle.onnx_file), i.task, i.data.test, shape, "test")
        assert recorded["value"] == pytest.approx(found.values["accuracy"])


# Changed images


def budget(folder: Path) -> Path:
    path = folder / "budget.toml"
    path.write_text(f'target = "{TARGET}"\n[limits]\nsize_bytes = 1e9\n')
    return path


OPTIONS: dict[str, Callable[[Path], tuple[str | Path, ...]]] = {
    "export": lambda folder: ("--out", folder / "out"),
    "report": lambda folder: (),
    "sweep": lambda folder: ("--target", TARGET, "--variants", "fp32"),
    "check": lambda folder: ("--budget", budget(folder)),
    "cascade": lambda folder: ("--target-accuracy", "0.1", "--out", folder / "out"),
}
"""Options that commands need beside a run."""


@pytest.mark.slow
@pytest.mark.parametrize("removed", [(), ("report.html", "supernet")])
def test_resume_replaces_all_results_of_changed_labels(
    hwnas: Command, made: Path, removed: tuple[str, ...]
) -> None:
    """Shift all labels by one; then remove files, as an earlier message advised."""
    run = made / "run"
    before = evaluations(run)
    tuned = {path.name: path.read_bytes() for path in (run / "finalists").iterdir()}
    shift_labels(made / "images.npz")
    told = hwnas("status", run).out
    assert "stale: stale" in told
    assert "train is stale: data: y_test and y_train changed" in told
    assert "search is stale: data: y_test and y_train changed" in told
    for command in ("export", "report", "sweep", "check", "cascade"):
        hwnas(command, run, *OPTIONS[command](made)).refused("is stale: train", "hwnas resume")
    assert "is stale: train" in hwnas("front", run).err
    for name in removed:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    start = logged(run)
    assert hwnas("resume", run).status == 0
    assert performed(run, start) == ["train", "search", "finalists", "report"]
    assert len(counted(run)) == 6
    assert not {tuple(key) for key in before} & {
        tuple(key) for key in evaluations(run)[len(before) :]
    }
    assert len(evaluations(run)) == len(before) + 6, "every candidate is evaluated anew"
    for bundle in (run / "bundles").iterdir():
        weights = run / "finalists" / f"{bundle.name}.safetensors"
        assert weights.read_bytes() != tuned.get(weights.name)
    assert_finalists_are_of(run)
    fresh = experiment.run(made / "recipe.toml", made / "fresh", reporter=QUIET).run
    theirs, ours = (load_file(each / "supernet/weights.safetensors") for each in (fresh, run))
    assert all((theirs[name] == ours[name]).all() for name in theirs)
    assert hwnas("status", run).out.startswith("stale: finished")
    assert "nothing is left to do" in hwnas("resume", run).err


@pytest.mark.slow
def test_specialise_command_refuses_a_stale_run(hwnas: Command, old: Path) -> None:
    hwnas("export", old, "--out", old.parent / "out")  # this records the names of its inputs
    shift_labels(old.parent / "digits.npz")
    before = content(old)
    target = ("--target", "cpu-onnxruntime-fp32-b2-t1")
    hwnas("specialise", old, *target).refused("is stale: train", "hwnas resume")
    assert content(old) == before


def test_status_command_detects_one_changed_pixel(hwnas: Command, made: Path) -> None:
    arrays = dict(np.load(made / "images.npz"))
    arrays["x_train"][207, 3, 3] ^= 1
    np.savez(made / "images.npz", **arrays)
    assert "train is stale: data: x_train changed" in hwnas("status", made / "run").out


@pytest.mark.slow
def test_status_command_ignores_rewritten_files_with_equal_content(
    hwnas: Command, made: Path
) -> None:
    arrays = dict(np.load(made / "images.npz"))
    np.savez(made / "images.npz", **arrays)
    told = hwnas("status", made / "run").out
    assert told.startswith("stale: finished")
    assert "nothing is left to do" in hwnas("resume", made / "run").err


@pytest.mark.slow
def test_resume_redoes_the_run_after_one_image_of_a_folder_changed(
    hwnas: Command, tmp_path: Path
) -> None:
    found = digits()
    for split, count in (("train", 120), ("test", 40)):
        for i, (image, label) in enumerate(
            zip(found[f"x_{split}"][:count, :, :, 0], found[f"y_{split}"][:count], strict=True)
        ):
            path = tmp_path / "photos" / split / str(label) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("npz:images.npz", "folder:photos"))
    run = experiment.run(recipe, tmp_path / "run", ["search.trials=2"], QUIET).run
    one = min((tmp_path / "photos" / "train" / "3").iterdir())
    Image.fromarray(255 - np.asarray(Image.open(one))).save(one)
    told = hwnas("status", run).out
    assert "train is stale: data: 1 of 160 files changed" in told
    start = logged(run)
    assert hwnas("resume", run).status == 0
    assert performed(run, start) == ["train", "search", "finalists", "report"]
    assert_finalists_are_of(run)


# Changed recipe


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "evaluated"),
    [
        ("search.trials=9", 3),
        ("deploy.top=2", 0),
        ("deploy.finetune_epochs=2", 0),
        ("train.checkpoint_seconds=1", 0),
        ("train.workers=1", 0),
        ("train.patience=1", 0),
        ("search.workers=2", 0),
        ("search.retries=2", 0),
        ("name=other", 0),
        ("objective.1.limit=3000", 0),
        ("objective.1.metric=macs", 0),
        ("search.validation_images=20", 6),
        ("train.batch_size=16", 6),
        ("train.epochs=3", 6),
        ("seed=1", 6),
    ],
)
def test_resume_redoes_the_stages_listed_for_a_changed_key(
    hwnas: Command, made: Path, override: str, evaluated: int
) -> None:
    run, key = made / "run", override.partition("=")[0]
    key = "objective" if key.startswith("objective") else key
    before, start = len(evaluations(run)), logged(run)
    answer = hwnas("resume", run, "--set", override)
    assert answer.status == 0, answer.err
    first = next((line for line in answer.err.splitlines() if key in line), "")
    assert (" continues: " in first) == (decides(key).how == "continued"), answer.err
    done, listed = performed(run, start), redone_by(key)
    assert done == [stage for stage in listed if stage in done]
    left_out = {*listed} - {*done} - NOT_WANTED
    # If the search chooses the same networks as before, the finalists stay.
    assert left_out <= ({"finalists"} if "search" in decides(key).stages else set())
    assert len(evaluations(run)) == before + evaluated
    assert_finalists_are_of(run)
    start = logged(run)
    assert "nothing is left to do" in hwnas("resume", run).err
    assert performed(run, start) == []
    assert hwnas("status", run).out.startswith(f"{RunFolder.open(run).recipe.name}: finished")


@pytest.mark.slow
def test_resume_reuses_evaluations_for_a_further_objective(hwnas: Command, made: Path) -> None:
    run = made / "run"
    before = evaluations(run)
    names = {trial.user_attrs["candidate"] for trial in counted(run)}
    further = 'objective=[{metric="accuracy",direction="maximize"},' \
        '{metric="params",direction="minimize"},{metric="macs",direction="minimize"}]'  # fmt: skip
    answer = hwnas("resume", run, "--set", further)
    assert answer.status == 0, answer.err
    assert evaluations(run) == before
    assert {trial.user_attrs["candidate"] for trial in counted(run)} == names
    assert all(len(trial.values) == 3 for trial in counted(run))
    assert "macs" in (run / "front.csv").read_text().splitlines()[0]


@pytest.mark.slow
def test_resume_continues_training_for_more_epochs(hwnas: Command, made: Path) -> None:
    run, steps_per_epoch = made / "run", 270 // 32
    lines = (run / "supernet" / "training.jsonl").read_text().splitlines()
    answer = hwnas("resume", run, "--set", "train.epochs=4")
    assert "train continues: train.epochs was 2.0, is 4.0" in answer.err
    after = (run / "supernet" / "training.jsonl").read_text().splitlines()
    assert after[: len(lines)] == lines
    steps = [json.loads(line)["step"] for line in after]  # rows are written at intervals
    made_before = 2 * steps_per_epoch
    assert max(steps[: len(lines)]) < made_before <= min(steps[len(lines) :])
    assert max(steps) < 2 * made_before


WRONG = [
    "search.trials",
    "search.trial=5",
    "search.trials=many",
    "search.trials=0",
    "deploy.top=-1",
    "train.batch_size=100000",
    "objective.9.limit=3",
    "objective.1.metric=beauty",
    "objective.1.direction=sideways",
    "data.source=npz:none.npz",
    "task.name=knitting",
    "space.name=castle",
    "=3",
]


@pytest.mark.parametrize("override", WRONG)
def test_resume_refuses_wrong_overrides_and_changes_nothing(
    hwnas: Command, made: Path, override: str
) -> None:
    before = content(made / "run")
    hwnas("resume", made / "run", "--set", override).refused()
    assert content(made / "run") == before


def test_status_command_detects_an_edited_recipe(hwnas: Command, made: Path) -> None:
    recipe = made / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("trials = 6", "trials = 7"))
    assert "search is stale: search.trials was 6, is 7" in hwnas("status", made / "run").out


@pytest.mark.slow
def test_export_refuses_a_run_with_an_edited_validation_split(hwnas: Command, made: Path) -> None:
    run = made / "run"
    recipe = run / "recipe.toml"
    text = recipe.read_text()
    recipe.write_text(text.replace("[data]", "[data]\nvalidation_fraction = 0.3"))
    told = "train is stale: data.validation_fraction was the default, is 0.3"
    assert told in hwnas("status", run).out
    hwnas("export", run, "--out", made / "out").refused("is stale: train", "data changed")
    recipe.write_text(text)
    assert hwnas("status", run).out.startswith("stale: finished")
    assert hwnas("export", run, "--out", made / "out").status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("added", "removed", "stage"),
    [
        ("search.random_baseline=true", "search.random_baseline=false", "random-baseline"),
        ("train.ranking_check=4", "train.ranking_check=0", "ranking"),
    ],
)
def test_resume_updates_the_report_for_added_and_removed_comparisons(
    hwnas: Command, made: Path, added: str, removed: str, stage: str
) -> None:
    run = made / "run"
    for override, stages in ((added, [stage, "report"]), (removed, ["report"])):
        start = logged(run)
        answer = hwnas("resume", run, "--set", override, "--set", "train.ranking_epochs=1")
        assert answer.status == 0, answer.err
        assert performed(run, start) == stages
        assert hwnas("status", run).out.startswith("stale: finished")
    assert hwnas("export", run, "--out", made / "out").status == 0


# Interrupted while results are redone


CUT = {
    "train": ("hwnas.stages.training.train_supernet", "search is stale: train is not finished"),
    "train, after it": (
        "hwnas.stages.search._trial_identity",
        "search is stale: its inputs were redone since",
    ),
    "search": ("hwnas.stages.search.run_search", "finalists is stale: search is not finished"),
    "finalists": (
        "hwnas.stages.finalists.stage.make_bundles",
        "report is stale: finalists is not finished",
    ),
}
"""Function that fails in each stage, and the reason that the status gives first."""


@pytest.mark.slow
@pytest.mark.parametrize("stage", CUT)
def test_interrupted_resume_leaves_a_stale_run(
    hwnas: Command, made: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Results of earlier inputs are never shown as results of the current ones."""
    run, (function, reason) = made / "run", CUT[stage]

    def stopped(*args: Any, **options: Any) -> None:
        raise RunError("stopped")

    with monkeypatch.context() as cut:
        cut.setattr(function, stopped)
        hwnas("resume", run, "--set", "train.epochs=3").refused("stopped")
    told = hwnas("status", run).out
    assert told.startswith("stale: stale")
    assert reason in told
    assert ("6 of 6 candidates evaluated" in told) == (stage == "finalists")
    hwnas("export", run, "--out", made / "out").refused("is stale", "hwnas resume")
    assert hwnas("resume", run).status == 0
    assert hwnas("status", run).out.startswith("stale: finished")
    assert_finalists_are_of(run)
    assert hwnas("export", run, "--out", made / "out").status == 0


# Changed code


EVALUATOR = """
from hwnas.search import Evaluation

class Mine:
    key = "mine"
    def evaluate(self, candidate, fidelity):
        return Evaluation({"accuracy": VALUE}, {"accuracy": 0.0}, 10, "validation")
"""


@pytest.mark.slow
def test_status_command_detects_edited_evaluator_code(hwnas: Command, tmp_path: Path) -> None:
    """The key of the evaluator is the same, but its file has changed."""
    np.savez(tmp_path / "images.npz", **digits())
    (tmp_path / "judge_of_digits.py").write_text(EVALUATOR.replace("VALUE", "0.5"))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    own = ["search.evaluator=judge_of_digits:Mine", "search.trials=2", "train.epochs=1"]
    run = experiment.run(recipe, tmp_path / "run", own, QUIET).run
    (tmp_path / "judge_of_digits.py").write_text(EVALUATOR.replace("VALUE", "0.25"))
    told = hwnas("status", run).out
    assert "search is stale: code of judge_of_digits changed" in told
    assert len(evaluations(run)) == 2


# Runs of an older hwnas


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy a run of the first release, with a further target and its images, on its processor."""
    shutil.copytree(OLD_RUNS / "schema_1", tmp_path / "old")
    run = tmp_path / "old" / "run"
    move_to(monkeypatch, json.loads((run / "run.json").read_text())["machine"]["processor"])
    return run


def move_to(monkeypatch: pytest.MonkeyPatch, processor: str) -> None:
    here = {**machine(), "processor": processor}
    monkeypatch.setattr("hwnas.deploy.targets.machine.machine", lambda: here)


@pytest.mark.slow
def test_old_run_can_be_opened_and_exported(hwnas: Command, old: Path) -> None:
    before = {path.name: content(path) for path in (old / "bundles").iterdir()}
    told = hwnas("status", old).out
    assert told.startswith("digits: finished")
    assert "8 of 8 candidates evaluated" in told
    answer = hwnas("export", old, "--out", old.parent / "out")
    assert answer.status == 0, answer.err
    assert content(old.parent / "out") in before.values()
    assert RunFolder.open(old).unnamed == [], "from now on its inputs have names"
    assert "nothing is left to do" in hwnas("resume", old).err


@pytest.mark.slow
def test_export_of_a_run_from_another_processor_prints_a_note(
    hwnas: Command, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [content(path) for path in (old / "bundles").iterdir()]
    move_to(monkeypatch, "another processor")
    answer = hwnas("export", old, "--out", old.parent / "out")
    assert answer.status == 0, answer.err
    assert content(old.parent / "out") in before
    changed = "hardware was 'Intel(R) Xeon(R) Processor', is 'another processor'"
    assert changed in " ".join(answer.err.split())
    assert changed in hwnas("status", old).out
    hwnas("verify", old.parent / "out")


@pytest.mark.slow
def test_resume_on_another_processor_measures_again_without_training(
    hwnas: Command, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hwnas("export", old, "--out", old.parent / "out")  # this records the names of its inputs
    assert hwnas("resume", old, "--set", "search.trials=9").status == 0
    weights = (old / "supernet" / "weights.safetensors").read_bytes()
    before, start = evaluations(old), logged(old)
    move_to(monkeypatch, "another processor")
    answer = hwnas("resume", old)
    assert answer.status == 0, answer.err
    told = " ".join(answer.err.split())
    now = "but the hardware is now another processor"
    assert f"was calibrated on Intel(R) Xeon(R) Processor, {now}" in told
    assert (old / "supernet" / "weights.safetensors").read_bytes() == weights
    assert "train" not in performed(old, start)
    assert evaluations(old) == before
    for path in (old / "bundles").iterdir():
        rows = Bundle.load(path).measurements
        assert {row.hardware for row in rows} == {"another processor"}
    assert "nothing is left to do" in hwnas("resume", old).err


@pytest.mark.slow
def test_resume_extends_an_old_run_without_training(hwnas: Command, old: Path) -> None:
    """Its networks are evaluated again, because that release recalibrated on other images."""
    weights = (old / "supernet" / "weights.safetensors").read_bytes()
    before = evaluations(old)
    answer = hwnas("resume", old, "--set", "search.trials=10")
    assert answer.status == 0, answer.err
    assert (old / "supernet" / "weights.safetensors").read_bytes() == weights
    assert len(counted(old)) == 10
    assert evaluations(old)[: len(before)] == before
    assert len(evaluations(old)) == 8 + 10, "both of its searches share their evaluations"
    assert_finalists_are_of(old)


@pytest.mark.slow
def test_resume_redoes_an_old_run_of_other_images(hwnas: Command, old: Path) -> None:
    shift_labels(old.parent / "digits.npz")
    hwnas("export", old, "--out", old.parent / "out").refused("is stale", "other images")
    answer = hwnas("resume", old)
    assert answer.status == 0, answer.err
    assert "was made from other images than the current ones" in answer.err
    assert_finalists_are_of(old)


def test_status_and_resume_commands_name_missing_images(hwnas: Command, made: Path) -> None:
    (made / "images.npz").unlink()
    hwnas("resume", made / "run").refused("images.npz")
    assert "images.npz" in hwnas("status", made / "run").out
