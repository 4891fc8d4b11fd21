import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hwnas.errors import ConfigError, RunError, StorageError
from hwnas.identity import Identity
from hwnas.recipe import read_recipe
from hwnas.run_folder import RunFolder, all_or_nothing

A, B = Identity({"train.epochs": 1}), Identity({"train.epochs": 2})


def create(folder: Path, recipe_file: Path, *overrides: str) -> RunFolder:
    recipe, text = read_recipe(recipe_file, overrides)
    return RunFolder.create(folder, recipe, text, recipe_file.parent)


@pytest.fixture
def run(tmp_path: Path, tiny_recipe: Path) -> RunFolder:
    return create(tmp_path / "run", tiny_recipe)


def test_run_folder_keeps_the_recipe_and_its_origin(run: RunFolder, tiny_recipe: Path) -> None:
    assert (run.path / "recipe.toml").read_text() == tiny_recipe.read_text()
    about = json.loads((run.path / "run.json").read_text())
    assert (about["name"], about["seed"], about["stages"]) == ("tiny", 0, {})
    assert about["versions"]["torch"]
    assert about["machine"]["processor"]
    opened = RunFolder.open(run.path)
    assert opened.recipe == run.recipe
    assert opened.recipe_folder == tiny_recipe.parent
    assert opened.specialised == []


def test_run_folder_opens_for_its_recipe_and_refuses_another(
    run: RunFolder, tiny_recipe: Path
) -> None:
    created = run.about["created"]
    assert create(run.path, tiny_recipe).about["created"] == created
    with pytest.raises(RunError, match=r"of another recipe.*--run DIR"):
        create(run.path, tiny_recipe, "search.trials=13")


def test_run_folder_create_refuses_a_folder_without_a_run(
    tmp_path: Path, tiny_recipe: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "recipe.toml").write_text("the user's own")
    for path in (tmp_path / "thesis", tiny_recipe):
        with pytest.raises(RunError, match="exists and holds no run; choose an empty"):
            create(path, tiny_recipe)
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["recipe.toml"]


def test_run_folder_create_continues_after_a_killed_start(
    tmp_path: Path, tiny_recipe: Path
) -> None:
    folder = tmp_path / "run"
    (folder / "cache").mkdir(parents=True)
    (folder / ".run.json.17.tmp").write_text("{")
    (folder / "recipe.toml").write_text(tiny_recipe.read_text())
    assert create(folder, tiny_recipe).stages == {}


def test_all_or_nothing_removes_only_folders_that_the_start_made(tmp_path: Path) -> None:
    folder = tmp_path / "runs/one"

    def fail() -> None:
        (folder / "supernet").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), all_or_nothing(folder):
        fail()
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    with pytest.raises(KeyboardInterrupt), all_or_nothing(folder):
        fail()
    assert [*(tmp_path / "runs").iterdir()] == []


def test_run_folder_create_raises_a_storage_error_below_a_file(
    tmp_path: Path, tiny_recipe: Path
) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        create(tiny_recipe / "run", tiny_recipe)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 3, "stages": {}}',
        '{"schema": 1}',
        '{"schema": 1, "stages": {}}',
        "[" * 100_000,
    ],
)
def test_run_folder_open_reports_a_damaged_run_json_in_one_line(run: RunFolder, text: str) -> None:
    (run.path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json cannot be read") as caught:
        RunFolder.open(run.path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["recipe", "recipe_folder", "created", "versions", "stages"])
@pytest.mark.parametrize("value", [None, 3, {"train": {"state": "tired", "inputs": "a"}}])
def test_run_folder_open_refuses_wrong_values_in_run_json(
    run: RunFolder, key: str, value: object
) -> None:
    about = json.loads((run.path / "run.json").read_text())
    if isinstance(value, dict) and key == "versions":
        value = "1.0"
    (run.path / "run.json").write_text(json.dumps({**about, key: value}))
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        RunFolder.open(run.path)


def test_run_folder_open_uses_an_edited_recipe(run: RunFolder) -> None:
    recipe = run.path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("trials = 12", "trials = 13"))
    assert RunFolder.open(run.path).recipe.search.trials == 13


def test_run_folder_revises_the_recipe_only_if_it_is_valid(run: RunFolder) -> None:
    before = (run.path / "recipe.toml").read_text()
    with pytest.raises(ConfigError, match=r"search\.trials is 0"):
        run.revised(["search.trials=0"])
    assert (run.path / "recipe.toml").read_text() == before
    run.revise(*run.revised(["search.trials=13"]))
    assert RunFolder.open(run.path).recipe.search.trials == 13


def test_run_folder_refuses_to_change_a_planned_budget(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"run\.minutes .* has no effect now; set train\.epochs"):
        run.revised(["run.minutes=90"])


def test_run_folder_of_an_older_version_keeps_its_defaults(run: RunFolder) -> None:
    recipe, about = run.path / "recipe.toml", json.loads((run.path / "run.json").read_text())
    recipe.write_text(recipe.read_text().replace("classification", "regression"))
    assert RunFolder.open(run.path).recipe.train.shift_pixels is None
    del about["recipe_schema"]
    (run.path / "run.json").write_text(json.dumps(about))
    assert RunFolder.open(run.path).recipe.train.shift_pixels == 1


def test_run_folder_open_refuses_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no run; start one with `hwnas search RECIPE --run"):
        RunFolder.open(tmp_path / "nowhere")


def test_run_folder_lock_admits_one_process(run: RunFolder) -> None:
    with run:
        second = RunFolder.open(run.path)
        with pytest.raises(RunError, match="another process works on"), second:
            pytest.fail("two at once")
    with second:
        second.perform("train", A, lambda: None)


def test_run_folder_lock_rereads_the_stages_of_another_process(run: RunFolder) -> None:
    waiting = RunFolder.open(run.path)
    with run:
        run.perform("train", A, lambda: None)
    with waiting:
        assert waiting.is_done("train", A)


def test_run_folder_removes_temporary_files_of_dead_processes(run: RunFolder) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead, alive = f".a.{child.pid}.tmp", f".a.{os.getpid()}.tmp"
    (run.path / "supernet" / dead).mkdir(parents=True)
    for name in (dead, alive):
        (run.path / name).touch()
    with run:
        assert [path.name for path in run.path.rglob("*.tmp")] == [alive]


def test_run_folder_stage_is_done_only_for_its_inputs(run: RunFolder) -> None:
    run.perform("train", A, lambda: None)
    assert RunFolder.open(run.path).is_done("train", A)
    assert not run.is_done("train", B)
    assert not run.is_done("search", A)


def test_failed_stage_is_not_done_and_its_time_counts(run: RunFolder) -> None:
    def fail() -> None:
        time.sleep(0.05)
        raise ValueError("tired")

    for _ in range(2):
        with pytest.raises(ValueError, match="tired"):
            run.perform("train", A, fail)
    assert run.stages["train"].state == "running"
    run.perform("train", A, lambda: time.sleep(0.05))
    assert run.stages["train"].state == "done"
    assert run.stages["train"].wall_s == pytest.approx(0.15, abs=0.1)
    assert run.stages["train"].wall_s >= 0.15


def burn(seconds: float) -> None:
    while time.process_time() < seconds:
        pass


@pytest.mark.slow
def test_stage_cpu_time_includes_processes_that_have_ended(run: RunFolder) -> None:
    """Ray's workers are such processes: grandchildren, whose times are lost when they end."""
    burner = "import time\nwhile time.process_time() < 1.8: pass"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burner!r}]).wait()"

    def work() -> None:
        child = subprocess.Popen([sys.executable, "-c", parent])
        child.wait()

    run.perform("train", A, work)
    assert 0.8 < run.stages["train"].cpu_s < 4


def test_stage_cpu_time_counts_the_own_process_once(run: RunFolder) -> None:
    start = time.process_time()
    run.perform("train", A, lambda: burn(start + 0.3))
    assert run.stages["train"].cpu_s == pytest.approx(time.process_time() - start, abs=0.1)


def test_stage_measurement_leaves_no_threads(run: RunFolder) -> None:
    before = threading.active_count()
    for number in range(3):
        run.perform("train", Identity({"number": number}), lambda: None)
    assert threading.active_count() == before
    assert not multiprocessing.active_children()
