"""Layer normalisation with a linear layer, compared with results by hand and with PyTorch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hwnas.errors import KernelError
from hwnas.kernels.operators.norm_linear import fold_norm, norm_linear


def test_norm_linear_equals_a_result_computed_by_hand() -> None:
    x = torch.tensor([[5.0, 1.0]])  # normalised 1 and -1
    weight, bias = torch.tensor([[3.0], [10.0]]), torch.tensor([2.0])
    assert norm_linear(x, weight, bias, epsilon=0.0).item() == pytest.approx(-5)
    residual = torch.tensor([[0.25]])
    assert norm_linear(x, weight, bias, residual, "relu", 0.0).item() == 0.25


@pytest.mark.parametrize("channels", [5, 70])
def test_norm_linear_equals_layer_norm_and_linear_of_pytorch(channels: int) -> None:
    torch.manual_seed(0)
    norm, linear = nn.LayerNorm(channels, eps=1e-3), nn.Linear(channels, 7)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = torch.randn(2, 9, channels)
    with torch.no_grad():
        truth = nn.functional.gelu(linear(norm(x)))
        weight, bias = fold_norm(norm.weight, norm.bias, linear.weight.T, linear.bias)
        y = norm_linear(x, weight, bias, activation="gelu", epsilon=norm.eps)
    torch.testing.assert_close(y, truth, atol=2e-5, rtol=2e-5)


def test_fold_norm_makes_a_bias_from_the_shift() -> None:
    weight, bias = fold_norm(torch.tensor([2.0]), torch.tensor([3.0]), torch.tensor([[5.0]]))
    assert (weight.item(), bias.item()) == (10, 15)


@settings(max_examples=5, deadline=None)
@given(
    shift=st.integers(-(2**17), 2**17),
    exponent=st.integers(-10, 10),
    channels=st.sampled_from([3, 16, 90]),
)
def test_norm_linear_does_not_depend_on_mean_and_scale_of_a_row(
    shift: int, exponent: int, channels: int
) -> None:
    generator = torch.Generator().manual_seed(channels)
    x = torch.randint(-8, 8, (3, channels), generator=generator).float()  # sums are exact
    x[:, :2] = torch.tensor([-8.0, 7.0])
    weight, bias = torch.randn(channels, 5, generator=generator), torch.zeros(5)
    truth = norm_linear(x, weight, bias, epsilon=0.0)
    other = norm_linear((x + shift) * 2.0**exponent, weight, bias, epsilon=0.0)
    # A mean near 2^17 is rounded to a multiple of 2^-6, for values that are some 5 away from it.
    torch.testing.assert_close(other, truth, atol=0.1, rtol=0)


def test_norm_linear_refuses_an_unknown_activation() -> None:
    with pytest.raises(KernelError, match="'swish' is not one of none, relu, relu6"):
        norm_linear(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1), activation="swish")
