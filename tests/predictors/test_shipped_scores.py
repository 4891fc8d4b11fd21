from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hwnas.predictors.features import shipped_scores as module
from hwnas.predictors.features.shipped_scores import SCORES, shipped_scores, write_scores
from hwnas.predictors.features.zero_cost import proxies_of
from hwnas.search_spaces.cells import CellSpace
from hwnas.search_spaces.tabular import CategoricalSpace, NasBench201Space

CELLS = NasBench201Space()


def test_shipped_scores_cover_every_cell_and_vary() -> None:
    codes = np.indices(CELLS.options).reshape(6, -1).T
    scores = shipped_scores(CELLS, codes)
    assert scores is not None
    assert scores.shape == (15625, len(SCORES))
    assert np.isfinite(scores).all()
    connected = scores[CELLS.connected(codes)]
    assert (connected.std(0) > 0).all()
    assert connected[:, SCORES.index("synflow")].min() > 0


def test_shipped_scores_equal_those_computed_on_small_networks() -> None:
    small = CellSpace((16, 16, 3), outputs=10, channels=16, cells=1)
    codes = np.array([[3, 1, 2, 1, 3, 3], [4, 0, 1, 2, 0, 1]])
    scores = shipped_scores(CELLS, codes)
    assert scores is not None
    for code, row in zip(CELLS.canonical(codes), scores, strict=True):
        found = proxies_of(small, small.architecture_of(code), seed=0).as_dict()
        assert row == pytest.approx([found[name] for name in SCORES], rel=2e-3)


def test_shipped_scores_ignore_dead_edges() -> None:
    # Edges 1 -> 3 and 2 -> 3 carry nothing, so edges to the nodes 1 and 2 have no effect.
    codes = np.array([[3, 3, 3, 2, 0, 0], [0, 0, 0, 2, 0, 0]])
    first, second = shipped_scores(CELLS, codes)
    assert np.array_equal(first, second)


def test_shipped_scores_are_absent_for_other_spaces() -> None:
    assert shipped_scores(CategoricalSpace((0,), (3,)), np.array([[1]])) is None


def test_write_scores_writes_a_table_that_shipped_scores_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = CategoricalSpace((0, 0), (2, 3))
    write_scores(tmp_path, space, np.arange(18.0).reshape(6, 3))
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    module._table.cache_clear()
    found = shipped_scores(space, np.array([[1, 2], [0, 1]]))
    module._table.cache_clear()
    assert found is not None
    assert found.tolist() == [[15.0, 16.0, 17.0], [3.0, 4.0, 5.0]]
