"""The hiera space: published costs, mask units and pooled queries."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hwnas.search_spaces import HieraConfig, HieraSpace, hiera
from hwnas.search_spaces.hiera.network import UnitAttention, embedding

CONFIG = HieraConfig(
    depth=((1,), (1,)),
    width=(8,),
    heads=(2,),
    local_stages=(1,),
    mask_unit=4,
    patch_size=2,
    resolution=(16,),
)
"""8 x 8 tokens in four mask units of 4 x 4."""


def attention(*, local: bool, pooled: bool) -> UnitAttention:
    torch.manual_seed(0)
    return UnitAttention(8, 8 << pooled, 2, 4, CONFIG.mask_unit, local, pooled).eval()


def tokens(seed: int = 0) -> Tensor:
    return torch.randn(2, 64, 8, generator=torch.Generator().manual_seed(seed))


def test_preset_hiera_tiny_has_the_costs_of_the_published_network() -> None:
    """The authors and timm give 27.9 M parameters and 4.9 G multiply-accumulates."""
    space = hiera((224, 224, 3), 1000, preset="hiera-tiny")
    workload = space.workload(space.largest())
    assert space.size() == 1
    assert (round(workload.params / 1e6, 1), round(workload.macs / 1e9, 1)) == (27.9, 4.9)


@pytest.mark.parametrize("preset", ["tiny", "small", "large", "hiera-tiny"])
def test_hiera_tensors_have_four_dimensions_at_most(preset: str) -> None:
    space = hiera((224, 224, 3), 10, preset=preset)
    workload = space.workload(space.smallest(), batch=2)
    assert max(len(tensor.shape) for tensor in workload.tensors) == 4


@pytest.mark.parametrize("pooled", [False, True])
def test_attention_in_mask_units_sees_its_own_unit_only(pooled: bool) -> None:
    layer, changed = attention(local=True, pooled=pooled), tokens()
    changed[:, :16] = tokens(1)[:, :16]  # the first of the four units
    kept = 4 if pooled else 16
    before, after = layer(tokens()), layer(changed)
    assert (before[:, :kept] != after[:, :kept]).any()
    torch.testing.assert_close(before[:, kept:], after[:, kept:])


def test_attention_among_all_tokens_sees_every_unit() -> None:
    layer, changed = attention(local=False, pooled=False), tokens()
    changed[:, :16] = tokens(1)[:, :16]
    assert (layer(tokens()) != layer(changed)).any(2).all()


def test_units_that_hold_all_tokens_equal_attention_among_all() -> None:
    x = tokens()[:, :16]
    local, everywhere = (attention(local=each, pooled=True) for each in (True, False))
    torch.testing.assert_close(local(x), everywhere(x))


def test_tokens_are_ordered_by_mask_unit_and_pooled_as_an_image() -> None:
    """With the identity for queries, pooling equals max pooling of the image of tokens."""
    torch.manual_seed(0)
    made = embedding(CONFIG, 8).eval()
    images = torch.randn(3, 3, 16, 16)
    x = made.patches(images)
    x = x + made.position(x)  # (3, 8, 8, 8), an image of tokens

    def by_unit(image: Tensor, side: int) -> Tensor:
        units = [
            unit.flatten(2)
            for row in image.split(side, 2)
            for unit in row.split(side, 3)  # (3, 8, side, side)
        ]
        return torch.cat(units, 2).transpose(1, 2)

    torch.testing.assert_close(made(images), by_unit(x, 4))
    pooled = attention(local=True, pooled=True)._pooled(made(images))
    torch.testing.assert_close(pooled, by_unit(functional.max_pool2d(x, 2), 2))


def test_fewer_local_stages_cost_more_with_the_same_weights() -> None:
    space = hiera((32, 32, 3), 10)
    values = space.largest().as_dict()
    many, few = (space.workload(space.architecture({**values, "local_stages": n})) for n in (2, 1))
    assert many.macs < few.macs
    assert many.params == few.params


def test_hiera_rounds_the_shorter_side_to_whole_mask_units() -> None:
    space = hiera((96, 70, 3), 10)
    assert isinstance(space, HieraSpace)
    assert space.input_shape(space.largest()) == (3, 96, 72)
