"""Values that are kept in fewer bits."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hwnas.deploy.finetuning.saved_values import BITS, FOUR_BITS, GROUP, INDICES, SIGNS, Packing

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


def value_of(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_sizes(packing: Packing, kept: tuple[Tensor, ...], elements: int) -> None:
    assert tuple(each.untyped_storage().nbytes() for each in kept) == packing.sizes(elements)


@given(SHAPES, st.integers(0, 99))
def test_bits_lose_nothing(shape: tuple[int, ...], seed: int) -> None:
    mask = value_of(shape, seed) > 0
    kept = BITS.pack(mask)
    check_sizes(BITS, kept, mask.numel())
    assert torch.equal(BITS.unpack(kept, shape), mask)


@given(SHAPES, st.integers(0, 99))
def test_signs_of_rectified_values_are_kept(shape: tuple[int, ...], seed: int) -> None:
    rectified = value_of(shape, seed).relu()
    found = SIGNS.unpack(SIGNS.pack(rectified), shape)
    assert torch.equal(found > 0, rectified > 0)
    assert found.dtype == torch.float32


@given(SHAPES, st.integers(0, 99), st.sampled_from([0.0, 1e-6, 1.0, 1e6]))
def test_rounding_to_4_bits_errs_by_half_a_step_at_most(
    shape: tuple[int, ...], seed: int, scale: float
) -> None:
    value = value_of(shape, seed, scale)
    kept = FOUR_BITS.pack(value)
    check_sizes(FOUR_BITS, kept, value.numel())
    restored = FOUR_BITS.unpack(kept, shape)
    assert restored.untyped_storage().nbytes() == 4 * value.numel()
    steps = kept[1][:, 1].repeat_interleave(GROUP)[: value.numel()].reshape(shape)
    slack = 1e-6 * value.abs().max()
    assert ((restored - value).abs() <= steps / 2 * (1 + 1e-4) + slack).all()


def test_4_bits_take_an_eighth_and_8_bytes_a_group() -> None:
    assert sum(FOUR_BITS.sizes(10 * GROUP)) == 10 * (GROUP // 2 + 8)
    assert sum(BITS.sizes(17)) == math.ceil(17 / 8)


def test_indices_are_kept_in_half_of_their_bytes() -> None:
    indices = torch.tensor([[0, 7], [2**31 - 1, 3]])
    kept = INDICES.pack(indices)
    check_sizes(INDICES, kept, 4)
    assert torch.equal(INDICES.unpack(kept, (2, 2)), indices)
