"""Pointwise convolutions, compared with results by hand and with PyTorch's layers."""

import pytest
import torch
from torch import nn

from hwnas.errors import KernelError
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.primitives.activations import ACTIVATIONS


def test_pointwise_equals_results_computed_by_hand() -> None:
    x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [10.0]])
    bias, gate = torch.tensor([-1.0]), torch.tensor([[1.0, 0.5]])
    assert pointwise(x, weight, bias).item() == 22
    assert pointwise(x, weight, bias, gate, torch.tensor([[0.25]]), "relu6").item() == 6.25


@pytest.mark.parametrize("parts", [1, 2])
def test_pointwise_can_add_a_residual_before_the_activation(parts: int) -> None:
    torch.manual_seed(0)
    x, weight, bias, residual = (torch.randn(*shape) for shape in ((5, 64), (64, 3), (3,), (5, 3)))
    inputs = pointwise.bound(x, weight, bias, None, residual, "relu", residual_first=True)
    blocks = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "SPLIT_K": parts}
    y = pointwise.run(inputs, {**blocks, "num_warps": 1, "num_stages": 1})
    torch.testing.assert_close(y, (x @ weight + bias + residual).relu(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_pointwise_activations_equal_those_of_pytorch(name: str) -> None:
    x = torch.tensor([[-40.0, -4.0, -3.0, -0.5, 0.0, 1.5, 3.0, 7.0, 40.0, torch.nan]])
    ones, zeros = torch.ones(1, 1), torch.zeros(1)
    y = pointwise(x.T.contiguous(), ones, zeros, activation=name)
    torch.testing.assert_close(y.T, ACTIVATIONS[name](x), equal_nan=True)


def test_pointwise_equals_a_convolution_of_pytorch() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(5, 7, 1), nn.Hardswish())
    x = torch.randn(2, 5, 3, 4)
    weight, bias = layer[0].weight[:, :, 0, 0].T.detach(), layer[0].bias.detach()
    y = pointwise(x.permute(0, 2, 3, 1), weight, bias, activation="hard_swish")
    torch.testing.assert_close(y.permute(0, 3, 1, 2), layer(x).detach())


def test_pointwise_refuses_an_unknown_activation() -> None:
    with pytest.raises(KernelError, match="'swish' is not one of none, relu, relu6"):
        pointwise(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), activation="swish")
