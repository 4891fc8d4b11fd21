"""The text predictor reads any network, also one with operators that no known network has."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.record import read_rows
from experiments.text_predictor import text
from experiments.text_predictor.text import TextPredictor, pieces_of
from hwnas.search_spaces import Workload, mobilenet

SPACE = mobilenet((32, 32, 3), 10)


def networks() -> list[Workload]:
    return [SPACE.workload(each) for each in (SPACE.smallest(), SPACE.largest())]


def test_pieces_of_similar_names_and_sizes_overlap() -> None:
    workload = networks()[0]
    operator = next(each for each in workload.operators if each.kind == "conv")
    pieces = set(pieces_of(operator, workload))
    renamed = set(pieces_of(replace(operator, name="convolution_relu"), workload))
    other = set(pieces_of(replace(operator, name="softsign"), workload))
    assert len(pieces & renamed) > len(pieces & other) > 0
    assert pieces != renamed


def test_text_predictor_reads_unseen_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_STEPS", 20)
    known = networks()
    predictor = TextPredictor.fit(known, np.array([1.0, 9.0]), seed=0)
    again = TextPredictor.fit(known, np.array([1.0, 9.0]), seed=0)
    small, large = predictor.predict(known)
    assert 0 < small < large
    np.testing.assert_array_equal(again.predict(known), [small, large])
    odd = replace(known[0].operators[3], kind="other", name="mystery")
    strange = replace(known[0], operators=(*known[0].operators[:3], odd, *known[0].operators[4:]))
    [found] = predictor.predict([strange])
    assert np.isfinite(found)
    assert found != small


@pytest.mark.exhaustive
def test_text_predictor_script_scores_held_out_networks_once(
    experiment: Callable[..., Any], tmp_path: Path
) -> None:
    done = experiment("text_predictor.run", "--out", tmp_path, "--seeds", "1")
    assert done.status == 0, done.err
    found = {row.subject for row in read_rows(tmp_path / "results.jsonl")}
    assert found >= {"hybrid text", "hybrid default", "hybrid macs", "mobilenet-half text"}
