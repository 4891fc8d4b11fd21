"""2:4 sparse linear layers, and how their weights are packed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.operators.two_four import pack_two_four, two_four, unpack_two_four


def sparse_weight(inner: int, outer: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a random weight with at most two nonzero values in each group of four rows."""
    torch.manual_seed(seed)
    kept = torch.rand(inner // 4, 4, outer).argsort(1) < torch.randint(0, 3, (inner // 4, 1, outer))
    return (torch.randn(inner, outer) * kept.reshape(inner, outer)).to(dtype)


@settings(max_examples=30)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 99))
def test_pack_two_four_is_undone_by_unpack(groups: int, outer: int, seed: int) -> None:
    weight = sparse_weight(4 * groups, outer, seed, torch.float16)
    values, places = pack_two_four(weight)
    assert values.shape == (2 * groups, outer)
    assert places.shape == (-(-groups // 2), outer)
    assert torch.equal(unpack_two_four(values, places), weight)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_two_four_equals_the_dense_layer(groups: int, outer: int, seed: int) -> None:
    weight = sparse_weight(4 * groups, outer, seed)
    x, bias = torch.randn(2, 3, 4 * groups), torch.randn(outer)
    y = two_four(x, *pack_two_four(weight), bias, "relu")
    torch.testing.assert_close(y, functional.relu(x @ weight + bias), atol=1e-4, rtol=1e-4)


def test_pack_two_four_stores_positions_in_four_bits_per_group() -> None:
    weight = torch.tensor([0.0, 5.0, 0.0, 7.0, 1.0, 0.0, 2.0, 0.0])[:, None]
    values, places = pack_two_four(weight)
    assert values.flatten().tolist() == [5, 7, 1, 2]
    assert places.item() == 0b1000_1101  # rows 2 and 0 of the second group, 3 and 1 of the first


def test_pack_two_four_refuses_a_group_with_three_values() -> None:
    weight = torch.zeros(8, 3)
    weight[4:7, 2] = 1
    with pytest.raises(KernelError, match="rows 4 to 7 of column 2 have 3 values that are not 0"):
        pack_two_four(weight)


def test_pack_two_four_refuses_rows_that_are_not_a_multiple_of_four() -> None:
    with pytest.raises(KernelError, match="rows of a 2:4 weight are a multiple of 4; given 6 x 1"):
        pack_two_four(torch.zeros(6, 1))
