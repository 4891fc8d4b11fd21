"""Block-sparse linear layers, compared with dense layers that have zeros in place of blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.operators.block_sparse import block_sparse, pack_blocks

SIDES = st.sampled_from((16, 32))


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(1, 70), st.integers(1, 70), SIDES, SIDES, st.integers(0, 99))
def test_block_sparse_equals_the_dense_layer_with_zeros(
    inner: int, outer: int, height: int, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    weight, bias, x = torch.randn(inner, outer), torch.randn(outer), torch.randn(2, 3, inner)
    mask = torch.rand(-(-inner // height), -(-outer // width)) < 0.5
    packed = pack_blocks(weight, mask, height, width)
    y = block_sparse(x, packed.blocks, packed.places, packed.ends, bias, inner, "relu")
    dense = mask.repeat_interleave(height, 0).repeat_interleave(width, 1)[:inner, :outer] * weight
    torch.testing.assert_close(y, functional.relu(x @ dense + bias), atol=1e-4, rtol=1e-4)


def test_pack_blocks_keeps_only_present_blocks_by_column() -> None:
    weight = torch.arange(48.0 * 32).reshape(48, 32)
    mask = torch.tensor([[False, True], [False, False], [True, True]])
    packed = pack_blocks(weight, mask, 16, 16)
    assert packed.places.tolist() == [2, 0, 2]
    assert packed.ends.tolist() == [0, 1, 3]
    assert torch.equal(packed.blocks[1], weight[:16, 16:])


def test_block_sparse_does_not_read_inputs_without_a_block() -> None:
    x = torch.ones(1, 32)
    x[0, 16:] = torch.nan
    packed = pack_blocks(torch.ones(32, 16), torch.tensor([[True], [False]]), 16, 16)
    y = block_sparse(x, packed.blocks, packed.places, packed.ends, torch.zeros(16), 32)
    assert torch.equal(y, torch.full((1, 16), 16.0))


def test_block_sparse_without_blocks_returns_the_bias() -> None:
    packed = pack_blocks(torch.ones(16, 16), torch.tensor([[False]]), 16, 16)
    bias = torch.arange(16.0)
    y = block_sparse(torch.ones(3, 16), packed.blocks, packed.places, packed.ends, bias, 16)
    assert torch.equal(y, bias.expand(3, 16))


def test_pack_blocks_refuses_a_mask_of_the_wrong_shape() -> None:
    with pytest.raises(KernelError, match="40 x 20 in blocks 16 x 16 has a bool mask 3 x 2; given"):
        pack_blocks(torch.ones(40, 20), torch.ones(2, 2, dtype=torch.bool), 16, 16)


def test_pack_blocks_refuses_block_sides_that_tensor_cores_lack() -> None:
    with pytest.raises(KernelError, match="blocks are 8 x 16; their sides can be 16, 32, 64, 128"):
        pack_blocks(torch.ones(8, 16), torch.ones(1, 1, dtype=torch.bool), 8, 16)
