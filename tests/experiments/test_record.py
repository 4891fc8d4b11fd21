import json
import multiprocessing
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import record
from experiments.record import Results, Row, read_rows
from hwnas.errors import RunError, StorageError

CONFIG = {"networks": 20}


def row(seed: int = 0, value: float = 0.5, subject: str = "regression") -> Row:
    return Row("spearman", subject, seed, value, "rho", 30, {"p20": 0.4}, {"role": "unseen"})


def test_results_write_rows_with_their_provenance(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", CONFIG)
    results.put([row()])
    line = json.loads((tmp_path / "results.jsonl").read_text())
    assert line["metric"] == "spearman"
    assert line["unit"] == "rho"
    assert line["n"] == 30
    assert line["seed"] == 0
    provenance = line["provenance"]
    assert provenance["config"] == results.config
    assert "cores" in provenance["device"] or "logical" in provenance["device"]
    assert {"hwnas", "torch", "onnxruntime"} <= set(provenance["versions"])
    assert provenance["commit"]
    assert provenance["date"].startswith("20")


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    Results(path, CONFIG).put([row(), row(1, subject="macs")])
    found = Results(path, CONFIG).rows
    assert [replace(r, provenance=None) for r in found] == [row(), row(1, subject="macs")]


def test_results_find_rows_that_were_recorded_earlier(tmp_path: Path) -> None:
    Results(tmp_path / "results.jsonl", CONFIG).put([row(seed=3)])
    again = Results(tmp_path / "results.jsonl", CONFIG)
    assert again.find("spearman", "regression", 3) is not None
    assert again.find("spearman", "regression", 4) is None
    assert again.find("spearman", "macs", 3) is None


def test_results_replace_an_older_row_of_the_same_key(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", CONFIG)
    results.put([row(value=0.1), row(seed=1)])
    results.put([row(value=0.9)])
    assert [(r.seed, r.value) for r in results.rows] == [(0, 0.9), (1, 0.5)]


def test_results_keep_configurations_apart(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path, CONFIG).put([row(value=0.1)])
    other = Results(path, {"networks": 8})
    assert other.rows == []
    other.put([row(value=0.2)])
    assert [r.value for r in Results(path, CONFIG).rows] == [0.1]
    assert [r.value for r in read_rows(path)] == [0.1, 0.2]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), max_size=6))
def test_results_keep_the_last_value_of_each_seed(
    tmp_path_factory: pytest.TempPathFactory, puts: list[tuple[int, float]]
) -> None:
    results = Results(tmp_path_factory.mktemp("law") / "results.jsonl", CONFIG)
    for seed, value in puts:
        results.put([row(seed, value)])
    assert {r.seed: r.value for r in results.rows} == dict(puts)


def test_results_name_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path, CONFIG).put([row()])
    path.write_text(path.read_text() + '{"metric": "spear')
    with pytest.raises(RunError, match="line 2"):
        read_rows(path)
    with pytest.raises(RunError, match="line 2"):
        Results(path, CONFIG).put([row(1)])


def test_results_raise_a_storage_error_if_the_folder_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        Results(tmp_path / "file" / "results.jsonl", CONFIG).put([row()])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace this repository by one with a single commit."""
    for file in ("src/hwnas/a.py", "experiments/b/run.py", "experiments/b/results.jsonl"):
        path = tmp_path / "tree" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n")
    tree = tmp_path / "tree"
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*who, "commit", "--quiet", "-m", "a"]):
        subprocess.run(["git", "-C", tree, *command], check=True)
    monkeypatch.setattr(record, "ROOT", tree)
    return tree


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        ("experiments/b/results.jsonl", False),
        ("README.md", False),
        ("src/hwnas/a.py", True),
        ("src/hwnas/new.py", True),
        ("experiments/b/run.py", True),
        ("experiments/b/new.py", True),
        ("experiments/new/recipe.toml", True),
    ],
)
def test_commit_is_dirty_if_code_differs_from_the_commit(
    repository: Path, file: str, dirty: bool
) -> None:
    clean = record._commit.__wrapped__()
    assert len(clean) == 12
    (repository / file).parent.mkdir(exist_ok=True)
    (repository / file).write_text("changed\n")
    assert record._commit.__wrapped__() == (f"{clean}-dirty" if dirty else clean)


def test_commit_is_not_taken_from_an_outer_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "ROOT", repository / "experiments")
    monkeypatch.delenv("HWNAS_COMMIT", raising=False)
    assert record._commit.__wrapped__() == "unknown"
    monkeypatch.setenv("HWNAS_COMMIT", "0123456789ab")
    assert record._commit.__wrapped__() == "0123456789ab"


def put_ten(path: Path, seed: int) -> None:
    results = Results(path, CONFIG)
    for number in range(10):
        results.put([row(seed, subject=str(number))])


def test_results_keep_all_rows_of_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=put_ten, args=(path, seed)) for seed in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(read_rows(path)) == 20
