"""Depthwise convolution: its outputs and gradients, compared with PyTorch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hwnas.search_spaces.layers import DepthwiseConv2d


def gradients(
    layer: nn.Module, weight: Tensor, x: Tensor, upstream: Tensor | None
) -> tuple[Tensor, ...]:
    """Return the output, and the gradients of the input and of the weight."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    y.backward(torch.ones_like(y) if upstream is None else upstream)
    assert x.grad is not None
    assert weight.grad is not None
    return y.detach(), x.grad, weight.grad


@pytest.mark.slow
@settings(deadline=None)
@given(
    channels=st.integers(1, 9),
    kernel_size=st.sampled_from([1, 3, 5, 7, 9, 11]),
    stride=st.integers(1, 3),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    channels_last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_depthwise_conv_output_and_gradients_equal_those_of_pytorch(
    channels: int,
    kernel_size: int,
    stride: int,
    height: int,
    width: int,
    channels_last: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    layer = DepthwiseConv2d(channels, kernel_size, stride).double()
    plain = nn.Conv2d(
        channels, channels, kernel_size, stride, kernel_size // 2, groups=channels, bias=False
    ).double()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, channels, height, width, dtype=torch.float64)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    upstream = torch.randn_like(plain(x))
    ours = gradients(layer, layer.weight, x, upstream)
    theirs = gradients(plain, plain.weight, x, upstream)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_depthwise_conv_gives_gradients_to_the_centre_of_a_kernel() -> None:
    """A supernet passes the centre of a larger kernel, which is a view with gaps."""
    shared = torch.randn(6, 1, 7, 7, requires_grad=True)
    layer = DepthwiseConv2d(6, 5)
    del layer.weight
    layer.weight = shared[:, :, 1:6, 1:6]  # type: ignore[assignment]
    x = torch.randn(2, 6, 8, 8)
    layer(x).sum().backward()
    mine, shared.grad = shared.grad, None
    functional.conv2d(x, shared[:, :, 1:6, 1:6], None, 1, 2, 1, 6).sum().backward()
    torch.testing.assert_close(mine, shared.grad)


@pytest.mark.parametrize("frozen", ["input", "weight"])
def test_depthwise_conv_gives_a_frozen_input_or_weight_no_gradient(frozen: str) -> None:
    layer, x = DepthwiseConv2d(4, 5), torch.randn(2, 4, 6, 6, requires_grad=frozen != "input")
    layer.weight.requires_grad_(frozen != "weight")
    layer(x).sum().backward()
    assert (x.grad is None) == (frozen == "input")
    assert (layer.weight.grad is None) == (frozen == "weight")


def test_depthwise_conv_stays_in_float32_under_autocast_on_a_cpu() -> None:
    torch.manual_seed(0)
    for kernel_size in (3, 5):
        layer, x = DepthwiseConv2d(8, kernel_size), torch.randn(2, 8, 9, 9).bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        torch.testing.assert_close(y, layer(x.float()))
        y.square().sum().backward()
        assert layer.weight.grad is not None
