"""Every recorded row can be traced: its table is current, its commit and configuration known."""

import json
from pathlib import Path

import pytest

from experiments import check_records
from experiments.check_records import FOLDER, recorded_files, scripts_of, unknown_commits, wrong
from experiments.configuration import Configurations
from experiments.readme_table import old_pages
from experiments.record import Results, Row


def test_tables_are_made_from_what_is_recorded() -> None:
    assert not list(old_pages()), "run `python -m experiments.readme_table`"


def test_recorded_commits_exist() -> None:
    unknown = unknown_commits()
    if unknown is None:
        pytest.skip("no whole git history here: a copy or a shallow clone")
    assert not unknown


def test_configurations_are_those_of_today_or_marked() -> None:
    assert not [line for file in recorded_files() for line in wrong(file)]


def test_a_made_up_commit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if unknown_commits() is None:
        pytest.skip("no whole git history here: a copy or a shallow clone")
    path = tmp_path / "results.jsonl"
    Results(path, {}).put([Row("a", "b", 0, 1.0, "", 1)])
    row = json.loads(path.read_text())
    row["provenance"]["commit"] = "0123456789ab"
    path.write_text(json.dumps(row))
    monkeypatch.setattr(check_records, "FOLDER", tmp_path)
    assert unknown_commits() == ["results.jsonl: commit 0123456789ab is not in the history"]


def test_another_configuration_has_to_be_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_records, "FOLDER", tmp_path)
    path = tmp_path / "zero_cost" / "results.jsonl"
    results = Results(path, {"networks": 7})
    results.put([Row("a", "b", 0, 1.0, "", 1)])
    [line] = wrong(path)
    assert "networks: 7 -> 200" in line
    assert not list(wrong(path, mark=True))
    assert Configurations(path.parent)[results.config].superseded == "networks: 7 -> 200"
    assert not list(wrong(path))
    (path.parent / "configurations.json").unlink()
    [line] = wrong(path)
    assert "not in configurations.json" in line


def test_every_file_of_rows_has_a_script() -> None:
    for file in recorded_files():
        for script in scripts_of(file):
            path = FOLDER.joinpath(*script.module.split(".")).with_suffix(".py")
            assert path.exists(), f"{file}: {script.module}"
