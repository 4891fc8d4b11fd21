"""The piecewise GELU against the exact one, over all float32 inputs."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.deploy import export_onnx
from hwnas.errors import ConfigError
from hwnas.search_spaces.layers import FeedForward, PiecewiseGelu, check_gelu
from hwnas.search_spaces.layers.piecewise_gelu import PIECEWISE_GELU_ERROR

LARGEST = float(np.finfo(np.float32).max)


def exact(x: Tensor) -> Tensor:
    """Return GELU in double precision, with the error function."""
    wide = x.double()
    return wide * 0.5 * torch.special.erfc(-wide / 2**0.5)


def error(x: Tensor) -> float:
    return (PiecewiseGelu()(x).double() - exact(x)).abs().max().item()


def test_piecewise_gelu_keeps_its_error_on_a_dense_grid() -> None:
    near = torch.linspace(-5, 5, 1_000_001)
    assert error(near) <= PIECEWISE_GELU_ERROR
    assert error(near) > 0.9 * PIECEWISE_GELU_ERROR, "the stated bound is not much too large"


def test_piecewise_gelu_keeps_its_error_on_all_magnitudes() -> None:
    """A part of all positive float32 numbers, evenly spaced in their bits, and their negatives."""
    bits = np.arange(0, 0x7F800000, 24_929, dtype=np.int32)
    magnitudes = torch.from_numpy(bits.view(np.float32).copy())
    assert error(magnitudes) <= PIECEWISE_GELU_ERROR
    assert error(-magnitudes) <= PIECEWISE_GELU_ERROR


@given(st.floats(-LARGEST, LARGEST, width=32))
def test_piecewise_gelu_keeps_its_error_for_any_float(x: float) -> None:
    assert error(torch.tensor([x])) <= PIECEWISE_GELU_ERROR


@given(st.floats(4, LARGEST, width=32))
def test_piecewise_gelu_is_the_relu_far_from_zero(x: float) -> None:
    found = PiecewiseGelu()(torch.tensor([x, -x]))
    assert found.tolist() == [torch.tensor(x).item(), 0.0]


def test_piecewise_gelu_passes_on_what_is_not_finite() -> None:
    """A diverging training then ends with a NaN loss, as with the exact function."""
    up, down, unknown = PiecewiseGelu()(torch.tensor([torch.inf, -torch.inf, torch.nan])).tolist()
    assert (up, down) == (torch.inf, 0.0)
    assert unknown != unknown  # only NaN


def test_piecewise_gelu_has_about_the_gradient_of_the_exact_one() -> None:
    x = torch.linspace(-4.5, 4.5, 4001, requires_grad=True)
    PiecewiseGelu()(x).sum().backward()
    ours = copy.deepcopy(x.grad)
    x.grad = None
    nn.functional.gelu(x).sum().backward()
    assert (ours - x.grad).abs().max() < 0.03  # half a piece times the largest second derivative


def test_feed_forward_with_the_piecewise_gelu_has_the_same_weights() -> None:
    plain, pieces = FeedForward(8, 16), FeedForward(8, 16, activation="piecewise-gelu")
    pieces.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, 8)
    assert (plain(x) - pieces(x)).abs().max() < 16 * PIECEWISE_GELU_ERROR


@pytest.mark.slow
def test_piecewise_gelu_is_exported_exactly(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), PiecewiseGelu(), nn.Linear(8, 2))
    found = export_onnx(network, (3, 2, 2), tmp_path / "network.onnx")
    assert found.max_relative_error < 1e-5


def test_activation_refuses_an_unknown_kind_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"space\.activation is 'relu'; expected 'gelu' or"):
        check_gelu("space.activation", "relu")  # type: ignore[arg-type]
