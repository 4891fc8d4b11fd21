from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from hwnas.search.tasks.rank_metrics import RANK_METRICS, rank_metrics

SCIKIT_LEARN = {
    "auroc": metrics.roc_auc_score,
    "average_precision": metrics.average_precision_score,
}


@given(
    scored=st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40).filter(
        lambda rows: len({positive for _, positive in rows}) == 2
    )
)
@pytest.mark.parametrize("name", RANK_METRICS)
def test_metrics_equal_those_of_scikit_learn(name: str, scored: list[tuple[int, bool]]) -> None:
    """Few different scores, so that many are equal."""
    scores = np.array([score for score, _ in scored], dtype=float)
    positive = np.array([positive for _, positive in scored])
    value, influence = RANK_METRICS[name](scores, positive)
    assert value == pytest.approx(SCIKIT_LEARN[name](positive, scores))
    assert influence.mean() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", RANK_METRICS)
def test_standard_errors_are_those_of_new_samples(name: str, ties: bool) -> None:
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(300):
        true = (rng.random((300, 2)) < [0.2, 0.5]).astype(float)
        scores = rng.normal(size=(300, 2)) + 1.2 * true
        scores = np.round(2 * scores) if ties else scores
        found = rank_metrics((name,), torch.tensor(scores), torch.tensor(true))[name]
        values.append(found.value)
        errors.append(found.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_classes_that_all_or_no_images_have_are_left_out() -> None:
    true = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 0]])
    scores = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.3, 0.5], [0.8, 0.9, 0.5]])
    assert rank_metrics(("auroc",), scores, true)["auroc"].value == 1.0
    none = rank_metrics(("auroc",), scores[:, 1:], true[:, 1:])["auroc"]
    assert np.isnan(none.value)
