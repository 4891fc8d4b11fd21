"""2:4 sparsity: lossless packing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hwnas.deploy.sparsity import Structure
from hwnas.deploy.variants.sparsity import is_two_of_four, pack, unpack
from hwnas.errors import ArtifactError
from hwnas.search_spaces.layers.sparsity_structure import matrix_of, weight_of


@given(
    outputs=st.integers(1, 5),
    eights=st.integers(1, 3),
    kernel=st.sampled_from([(), (3, 3)]),
    zeros=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_pack_is_lossless(
    outputs: int, eights: int, kernel: tuple[int, ...], zeros: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, 8 * eights, *kernel, generator=generator)
    mask = weight_of(Structure.parse("2of4").mask(matrix_of(weight).abs(), 0.5), weight.shape)
    assert not is_two_of_four(weight)
    weight *= mask * (torch.rand(weight.shape, generator=generator) >= zeros)
    assert is_two_of_four(weight)
    packed = pack(weight)
    torch.testing.assert_close(unpack(packed), weight, rtol=0, atol=0)
    assert packed.values.numel() * 2 == weight.numel()
    assert packed.places.numel() * 8 == weight.numel()


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(2, 8), "not 2:4 sparse; prune them to structure 2of4"),
        (torch.zeros(2, 4), "expected a multiple of 8 input channels"),
        (torch.zeros(8), "expected a multiple of 8 input channels"),
    ],
)
def test_pack_refuses_other_weights(weight: Tensor, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        pack(weight)
