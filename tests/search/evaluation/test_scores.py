from __future__ import annotations

import random
from pathlib import Path

import pytest

from hwnas.errors import RunError, StorageError
from hwnas.search.evaluation.scores import ScoreStore
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate, mobilenet

SPACE = mobilenet((8, 8, 1), 10)
ONE, TWO, THREE = (Candidate.of(SPACE.sample(random.Random(i))) for i in range(3))
ALL = Fidelity()


def evaluation(accuracy: float) -> Evaluation:
    return Evaluation({"accuracy": accuracy}, {"accuracy": 0.01}, 50, "validation", 0.2, 0.1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store with two scores."""
    store = ScoreStore(tmp_path / "scores.jsonl")
    store.put(ONE, "evaluator", ALL, evaluation(0.5))
    store.put(TWO, "evaluator", ALL, evaluation(0.75))
    return tmp_path / "scores.jsonl"


def test_score_store_reads_earlier_scores_from_its_file(path: Path) -> None:
    store = ScoreStore(path)
    assert len(store) == 2
    assert store.get(ONE, "evaluator", ALL) == evaluation(0.5)
    assert [e.values["accuracy"] for e in store] == [0.5, 0.75]


@pytest.mark.parametrize(
    ("candidate", "evaluator", "fidelity"),
    [
        (THREE, "evaluator", ALL),
        (ONE, "other weights", ALL),
        (ONE, "evaluator", Fidelity(images=100)),
    ],
)
def test_score_store_finds_no_score_for_another_key(
    path: Path, candidate: Candidate, evaluator: str, fidelity: Fidelity
) -> None:
    assert ScoreStore(path).get(candidate, evaluator, fidelity) is None


@pytest.mark.parametrize("kept_bytes", [1, 40])
def test_score_store_drops_a_truncated_last_line(path: Path, kept_bytes: int) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes()[:kept_bytes])
    store = ScoreStore(path)
    assert len(store) == 2
    store.put(THREE, "evaluator", ALL, evaluation(0.25))
    again = ScoreStore(path)
    assert len(again) == 3
    assert again.get(THREE, "evaluator", ALL) == evaluation(0.25)


def test_score_store_treats_a_single_truncated_line_as_empty(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:30])
    assert len(ScoreStore(path)) == 0
    ScoreStore(path).put(ONE, "evaluator", ALL, evaluation(0.5))
    assert len(ScoreStore(path)) == 1


@pytest.mark.parametrize(
    "damage", [b"{]", b"[1, 2]", b"7", b'{"key": ["a", "b"]}', b'{"key": ["a", "b", "c"]}', b"\xff"]
)
def test_score_store_names_a_damaged_line(path: Path, damage: bytes) -> None:
    first, second = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, damage, second, b""]))
    with pytest.raises(RunError, match=r"scores\.jsonl is damaged at line 2 .*remove") as e:
        ScoreStore(path)
    assert "\n" not in str(e.value)


def test_score_store_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        ScoreStore(tmp_path)


def test_score_store_names_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    store = ScoreStore(tmp_path / "missing" / "scores.jsonl")
    with pytest.raises(StorageError, match=r"cannot write .*scores\.jsonl"):
        store.put(ONE, "evaluator", ALL, evaluation(0.5))


def test_score_store_without_a_file_keeps_scores_in_memory() -> None:
    store = ScoreStore()
    store.put(ONE, "evaluator", ALL, evaluation(0.5))
    assert store.get(ONE, "evaluator", ALL) == evaluation(0.5)
