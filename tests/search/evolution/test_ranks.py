"""Ranks by moocore and by tensors, compared with those of a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.search.evolution import ranks as module
from hwnas.search.evolution.ranks import LATER, fronts, ranks_by_moocore, ranks_by_tensors

sizes = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 5))


def points(seed: int, count: int, objectives: int) -> Any:
    """Return points with few different values, so that ties and equal points are common."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, rng.integers(2, 30), (count, objectives)).astype(float)


def cut(ranks: list[int], needed: int) -> list[int]:
    last = sorted(ranks)[needed - 1]
    return [rank if rank <= last else LATER for rank in ranks]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=sizes,
    share=st.floats(0.01, 1),
    patience=st.sampled_from([0, 4]),
    sample=st.sampled_from([1, 9]),
    guess=st.none() | st.integers(0, 50),
)
def test_ranks_equal_those_of_a_plain_loop(
    plain_ranks: Callable[..., list[int]],
    size: tuple[int, int, int],
    share: float,
    patience: int,
    sample: int,
    guess: int | None,
) -> None:
    losses = points(*size)
    needed = max(1, int(share * len(losses)))
    expected = cut(plain_ranks(losses, np.zeros(len(losses))), needed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PATIENCE", patience)
        patch.setattr(module, "_BLOCK", 64)  # so that there are several blocks
        patch.setattr(module, "_SAMPLE", sample)
        assert ranks_by_moocore(losses, needed, guess).tolist() == expected
        assert ranks_by_tensors(torch.from_numpy(losses), needed).tolist() == expected


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=sizes, share=st.floats(0.01, 1), infeasible=st.floats(0, 1))
def test_fronts_put_the_feasible_first(
    plain_ranks: Callable[..., list[int]],
    as_scores: Callable[..., Any],
    size: tuple[int, int, int],
    share: float,
    infeasible: float,
) -> None:
    losses = points(*size)
    rng = np.random.default_rng(size[0])
    violations = rng.integers(1, 4, len(losses)) * (rng.random(len(losses)) < infeasible) * 1.0
    needed = max(1, int(share * len(losses)))
    found = fronts(as_scores(losses, violations), needed).tolist()
    expected = plain_ranks(losses, violations)
    assert found == cut(expected, needed)


@pytest.mark.slow
def test_ranks_by_moocore_and_tensors_agree_for_large_populations() -> None:
    losses = np.random.default_rng(0).normal(size=(6_000, 3)).astype(np.float32).astype(float)
    by_moocore = ranks_by_moocore(losses, 3_000)
    assert ranks_by_tensors(torch.from_numpy(losses), 3_000).tolist() == by_moocore.tolist()
    assert (by_moocore < LATER).sum() >= 3_000
    assert LATER in by_moocore
