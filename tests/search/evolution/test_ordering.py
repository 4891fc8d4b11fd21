from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search.evolution.ordering import argsort, first_of_equals, grouped

values = st.lists(st.integers(0, 9), max_size=60)


@given(values)
def test_argsort_keeps_the_order_of_equal_values(numbers: list[int]) -> None:
    for dtype in (torch.float64, torch.int64):
        order = argsort(torch.tensor(numbers, dtype=dtype)).tolist()
        assert order == sorted(range(len(numbers)), key=lambda i: numbers[i])


def test_argsort_keeps_the_order_of_equal_values_in_large_arrays() -> None:
    numbers = np.random.default_rng(0).random(50_000).astype(np.float32).astype(float)
    numbers[::7] = 0.5
    assert (argsort(torch.from_numpy(numbers)).numpy() == np.argsort(numbers, kind="stable")).all()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=60))
def test_grouped_keeps_the_order_within_a_group(pairs: list[tuple[int, int]]) -> None:
    groups = torch.tensor([pair[0] for pair in pairs], dtype=torch.int64)
    keys = torch.tensor([pair[1] for pair in pairs], dtype=torch.int64)
    found = grouped(groups, argsort(keys)).tolist()
    assert found == sorted(range(len(pairs)), key=lambda i: pairs[i])


def test_grouped_sorts_many_groups() -> None:
    groups = torch.arange(70_000).flip(0)
    assert grouped(groups, torch.arange(70_000)).tolist() == list(range(69_999, -1, -1))


@given(values)
def test_first_of_equals_marks_first_occurrences(numbers: list[int]) -> None:
    found = first_of_equals(torch.tensor(numbers, dtype=torch.int64)).tolist()
    assert found == [number not in numbers[:i] for i, number in enumerate(numbers)]
