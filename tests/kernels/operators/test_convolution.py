"""Dense convolutions, direct and with im2win, compared with PyTorch's layer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import KernelError
from hwnas.kernels.operator import Operator
from hwnas.kernels.operators.convolution import convolution
from hwnas.kernels.operators.im2win import im2win

BOTH = pytest.mark.parametrize("operator", [convolution, im2win], ids=lambda each: each.name)


def by_pytorch(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    side, _, inner, outer = weight.shape
    layer = nn.Conv2d(inner, outer, side, stride, side // 2)
    layer.weight.data, layer.bias.data = weight.permute(3, 2, 0, 1), bias
    return layer(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).detach()


@BOTH
def test_convolution_equals_the_layer_of_pytorch(operator: Operator) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6())
    x = torch.randn(2, 3, 6, 5)
    weight, bias = layer[0].weight.permute(2, 3, 1, 0).detach(), layer[0].bias.detach()
    y = operator(x.permute(0, 2, 3, 1), weight, bias, stride=2, activation="relu6")
    torch.testing.assert_close(y.permute(0, 3, 1, 2), layer(x).detach())


@BOTH
def test_convolution_can_add_a_residual_before_the_activation(operator: Operator) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, 4, 3, 5), torch.randn(3, 3, 5, 6) / 4, torch.randn(6)
    residual = torch.randn(1, 4, 3, 6)
    y = operator(x, weight, bias, residual, activation="relu", residual_first=True)
    truth = (by_pytorch(x, weight, bias, 1) + residual).relu()
    torch.testing.assert_close(y, truth, atol=3e-5, rtol=1e-4)


@pytest.mark.slow
@BOTH
@settings(max_examples=12, deadline=None)
@given(st.data())
def test_convolution_handles_feature_maps_of_any_shape(
    operator: Operator, data: st.DataObject
) -> None:
    side, stride = data.draw(st.sampled_from([1, 3, 5, 7])), data.draw(st.sampled_from([1, 2]))
    # 16 and 32 channels fill blocks along the sum; the others share them between pixels.
    inner = data.draw(st.sampled_from([1, 3, 4, 16, 32]))
    height, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    x, bias = torch.randn(2, height, width, inner), torch.randn(5)
    weight = torch.randn(side, side, inner, 5) / side
    y = operator(x, weight, bias, stride=stride)
    torch.testing.assert_close(y, by_pytorch(x, weight, bias, stride), atol=3e-5, rtol=1e-4)


@BOTH
def test_convolution_spreads_nan_only_to_windows_that_contain_it(
    operator: Operator,
) -> None:
    x, weight = torch.ones(1, 5, 5, 3), torch.ones(3, 3, 3, 2)
    x[0, 0, 0, 1] = torch.nan
    y = operator(x, weight, torch.zeros(2))
    assert y[0, :2, :2].isnan().all()
    assert y.isnan().sum() == 2 * 2 * 2


@BOTH
def test_convolution_refuses_even_windows_and_a_stride_of_three(operator: Operator) -> None:
    x, bias = torch.ones(1, 4, 4, 1), torch.ones(1)
    with pytest.raises(KernelError, match=rf"{operator.name} takes .*odd k.*\(2, 2, 1, 1\)"):
        operator(x, torch.ones(2, 2, 1, 1), bias)
    with pytest.raises(KernelError, match=r"stride 1 or 2; given .* and stride=3"):
        operator(x, torch.ones(3, 3, 1, 1), bias, stride=3)
