"""Recorded rows are traceable: current tables, existing commits, known configurations."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from experiments import check_records, record
from experiments.check_records import FOLDER, recorded_files, scripts_of, unknown_commits, wrong
from experiments.configuration import Configuration, Configurations
from experiments.readme_table import END, NOTHING, START, old_pages, pages
from experiments.record import Provenance, Results, Row, git


def needs_history() -> None:
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no whole git history here: a copy or a shallow clone")


def test_readme_tables_are_up_to_date() -> None:
    assert not list(old_pages()), "run `python -m experiments.readme_table`"


def test_readmes_with_recorded_rows_have_one_pair_of_table_markers() -> None:
    for page, table in pages().items():
        lines = page.read_text(encoding="utf-8").splitlines()
        assert table == NOTHING or [lines.count(START), lines.count(END)] == [1, 1], page


def test_recorded_commits_exist() -> None:
    needs_history()
    assert unknown_commits() == []


@pytest.mark.slow
def test_recorded_configurations_are_current_or_marked() -> None:
    assert not [line for file in recorded_files() for line in wrong(file)]


def test_unknown_commits_finds_a_commit_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_history()
    record_at("0123456789ab", tmp_path)
    monkeypatch.setattr(check_records, "FOLDER", tmp_path)
    assert unknown_commits() == ["results.jsonl: commit 0123456789ab is not in the history"]


def test_unknown_commits_finds_a_nonexistent_commit_in_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_history()
    provenance = {**asdict(Provenance.now("100 cases")), "commit": "0123456789ab"}
    (tmp_path / "fuzz.json").write_text(json.dumps({"cases": 100, "provenance": provenance}))
    (tmp_path / "other.json").write_text("[]")
    monkeypatch.setattr(check_records, "FOLDER", tmp_path)
    assert unknown_commits() == ["fuzz.json: commit 0123456789ab is not in the history"]


@pytest.mark.parametrize("name", ["HEAD", "main", "d8658b97a9f9-dirty", "unknown", ""])
def test_unknown_commits_accepts_only_hashes_of_clean_commits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_history()
    record_at(name, tmp_path / "zero_cost")
    monkeypatch.setattr(check_records, "FOLDER", tmp_path)
    assert unknown_commits() == [f"zero_cost/results.jsonl: commit {name} is not in the history"]


def test_unknown_commits_finds_rows_older_than_their_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_history()
    first = (git("rev-list", "--max-parents=0", "HEAD") or "").split()
    record_at(first[-1][:12], tmp_path / "predictor_intervals")
    monkeypatch.setattr(check_records, "FOLDER", tmp_path)
    [line] = unknown_commits() or []
    assert line.endswith(f"commit {first[-1][:12]} has no experiments/predictor_intervals/run.py")


def test_unknown_commits_ignores_the_history_of_an_outer_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "copy").mkdir()
    monkeypatch.setattr(record, "ROOT", tmp_path / "copy")
    assert unknown_commits() is None


def record_at(commit: str, folder: Path) -> None:
    path = folder / "results.jsonl"
    Results(path, {"networks": 200}).put([Row("a", "b", 0, 1.0, "", 1)])
    row = json.loads(path.read_text())
    row["provenance"]["commit"] = commit
    path.write_text(json.dumps(row))


def test_wrong_finds_changes_beyond_those_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_records, "FOLDER", tmp_path)
    path = tmp_path / "zero_cost" / "results.jsonl"
    results = Results(path, {"networks": 7})
    results.put([Row("a", "b", 0, 1.0, "", 1)])
    known = Configurations(path.parent)
    known.put(results.config, Configuration({"networks": 7}, "something else: 1 -> 2"))
    [line] = wrong(path)
    assert "differs in more than its mark says: networks: 7 -> 200" in line
    assert not list(wrong(path, mark=True))
    assert known[results.config].superseded == "networks: 7 -> 200"


def test_wrong_finds_changed_configurations_until_they_are_marked(
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


def test_recorded_files_have_a_script() -> None:
    for file in recorded_files():
        for script in scripts_of(file):
            path = FOLDER.joinpath(*script.module.split(".")).with_suffix(".py")
            assert path.exists(), f"{file}: {script.module}"
