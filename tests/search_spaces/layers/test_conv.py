"""Layers and blocks of mobile networks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.search_spaces.layers import (
    ConvNormAct,
    InvertedBottleneck,
    SqueezeExcite,
    make_divisible,
)

channels = st.floats(0.5, 4096)


@given(wanted=channels, divisor=st.sampled_from([1, 4, 8, 16]))
def test_make_divisible_rounds_to_a_multiple_and_loses_at_most_a_tenth(
    wanted: float, divisor: int
) -> None:
    rounded = make_divisible(wanted, divisor)
    assert rounded % divisor == 0
    assert rounded >= max(divisor, 0.9 * wanted)
    assert rounded < wanted + 1.5 * divisor


@given(a=channels, b=channels)
def test_make_divisible_keeps_the_order(a: float, b: float) -> None:
    """Without this a wider network could have a narrower layer, and weights would not nest."""
    assert make_divisible(min(a, b)) <= make_divisible(max(a, b))


@pytest.mark.parametrize(("wanted", "rounded"), [(1, 8), (12, 16), (16, 16), (18, 24), (200, 200)])
def test_make_divisible_equals_results_computed_by_hand(wanted: float, rounded: int) -> None:
    assert make_divisible(wanted) == rounded


@pytest.mark.parametrize("kernel_size", [1, 3, 5, 7])
@pytest.mark.parametrize(("stride", "side"), [(1, 9), (2, 5)])
def test_conv_norm_act_divides_height_and_width_by_the_stride(
    kernel_size: int, stride: int, side: int
) -> None:
    layer = ConvNormAct(3, 8, kernel_size, stride, activation="relu")
    assert layer(torch.randn(2, 3, 9, 9)).shape == (2, 8, side, side)
    assert layer(torch.randn(2, 3, 9, 9)).min() >= 0


def test_squeeze_excite_scales_channels_by_factors_from_0_to_1() -> None:
    x = torch.rand(2, 16, 5, 5) + 0.5
    factors = (SqueezeExcite(16, 8)(x) / x).flatten(2)
    assert factors.min() >= 0
    assert factors.max() <= 1
    torch.testing.assert_close(factors, factors[..., :1].expand_as(factors))


@pytest.mark.parametrize(
    ("out_channels", "stride", "residual"), [(16, 1, True), (16, 2, False), (24, 1, False)]
)
def test_inverted_bottleneck_adds_a_residual_if_shapes_allow(
    out_channels: int, stride: int, residual: bool
) -> None:
    block = InvertedBottleneck(16, 48, out_channels, 3, stride, True, "hard_swish").eval()
    for norm in (m for m in block.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.zeros_(norm.weight)  # all but the residual becomes 0
    x = torch.randn(2, 16, 8, 8)
    y = block(x)
    assert y.shape == (2, out_channels, 8 // stride, 8 // stride)
    torch.testing.assert_close(y, x if residual else torch.zeros_like(y))


def test_inverted_bottleneck_omits_expansion_to_equal_channels() -> None:
    plain = InvertedBottleneck(16, 16, 16, 3, 1, False, "relu")
    assert [name for name, _ in plain.layers.named_children()] == ["depthwise", "project"]
