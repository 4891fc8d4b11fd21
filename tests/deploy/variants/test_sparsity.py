"""2:4 sparsity: selection of weights, and lossless packing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.deploy.variants.sparsity import TwoOfFour, is_two_of_four, mask_of, pack, unpack
from hwnas.errors import ArtifactError


@given(
    outputs=st.integers(1, 5),
    fours=st.integers(1, 4),
    kernel=st.sampled_from([(), (1, 1), (3, 3)]),
    seed=st.integers(0, 99),
)
def test_mask_keeps_the_two_largest_of_each_four_weights(
    outputs: int, fours: int, kernel: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, 4 * fours, *kernel, generator=generator)
    mask = mask_of(weight)
    assert mask.shape == weight.shape
    groups = weight.movedim(1, -1).reshape(-1, 4).abs()
    kept = mask.movedim(1, -1).reshape(-1, 4).bool()
    assert (kept.sum(1) == 2).all()
    for group, stays in zip(groups, kept, strict=True):
        assert group[stays].min() >= group[~stays].max()
    assert is_two_of_four(weight * mask)


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
    weight *= mask_of(weight) * (torch.rand(weight.shape, generator=generator) >= zeros)
    packed = pack(weight)
    torch.testing.assert_close(unpack(packed), weight, rtol=0, atol=0)
    assert packed.values.numel() * 2 == weight.numel()
    assert packed.places.numel() * 8 == weight.numel()


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(2, 8), "not 2:4 sparse; set weights to zero"),
        (torch.zeros(2, 4), "expected a multiple of 8 input channels"),
        (torch.zeros(8), "expected a multiple of 8 input channels"),
    ],
)
def test_pack_refuses_other_weights(weight: Tensor, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        pack(weight)


def test_two_of_four_keeps_zeros_during_training() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    conversion = TwoOfFour()
    conversion.begin(network)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        network(torch.randn(4, 3, 5, 5)).square().mean().backward()
        optimiser.step()
    images = torch.randn(2, 3, 5, 5)
    trained = network(images)
    conversion.end(network)
    torch.testing.assert_close(network(images), trained)
    assert [is_two_of_four(network[i].weight) for i in (0, 1, 3)] == [False, True, True]
    assert {name for name, _ in network.named_parameters()} == {
        f"{i}.{name}" for i in (0, 1, 3) for name in ("weight", "bias")
    }
