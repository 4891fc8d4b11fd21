"""The softmax in one pass, compared with float64 over the range of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from torch import Tensor

from hwnas.errors import KernelError
from hwnas.kernels.operators.softmax import softmax, softmax_error

IN_STEPS = {"BLOCK_M": 2, "BLOCK_K": 16, "num_warps": 1, "num_stages": 1}
"""Configuration that reads rows in blocks of 16 values."""
WHOLE = {"BLOCK_M": 2, "BLOCK_K": 64, "num_warps": 1, "num_stages": 1}
LARGEST = float(np.finfo(np.float32).max)


def computed(x: Tensor, config: dict[str, int]) -> Tensor:
    """Return the softmax without a mask, by the kernel."""
    found: Tensor = softmax.run({"x": x, "mask": torch.zeros(x.shape[1]), "scale": 1.0}, config)
    return found


def keeps_its_error(x: Tensor, config: dict[str, int]) -> bool:
    found = computed(x, config)
    error = (found.double() - x.double().softmax(-1)).abs().max().item()
    return error <= softmax_error(-(-x.shape[1] // config["BLOCK_K"]))


def test_softmax_equals_a_result_computed_by_hand() -> None:
    x, mask = torch.tensor([[0.0, 2.0, 2.0, 7.0]]), torch.tensor([0.0, 0.0, 0.0, -torch.inf])
    found = softmax(x, mask, scale=float(np.log(2)) / 2)
    torch.testing.assert_close(found, torch.tensor([[0.2, 0.4, 0.4, 0.0]]))


@pytest.mark.parametrize("config", [IN_STEPS, WHOLE], ids=["steps", "whole"])
@settings(max_examples=15)
@given(
    x=arrays(np.float32, (2, 40), elements=st.floats(-LARGEST, LARGEST, width=32)),
    scale=st.sampled_from([1.0, 1e-38, 1e-37]),
)
def test_softmax_keeps_its_error_for_any_finite_row(
    config: dict[str, int], x: NDArray[np.float32], scale: float
) -> None:
    """Scaled rows have values of some units, unscaled ones of any size."""
    assert keeps_its_error(torch.from_numpy(x * np.float32(scale)), config)


@pytest.mark.parametrize("rising", [True, False])
def test_softmax_keeps_its_error_if_the_largest_value_moves_at_each_step(rising: bool) -> None:
    """A rising row rescales its sum in every step."""
    steps = torch.linspace(-30, 30, 400)
    x = torch.stack([steps, steps * 3]) if rising else torch.stack([-steps, -steps * 3])
    assert keeps_its_error(x, IN_STEPS)


@pytest.mark.slow
def test_softmax_keeps_its_error_for_long_rows() -> None:
    config = {"BLOCK_M": 2, "BLOCK_K": 1024, "num_warps": 1, "num_stages": 1}
    normal = 4 * torch.randn(1, 16_384, generator=torch.Generator().manual_seed(0))
    many = torch.full((1, 16_384), -9.0)  # their sum is as large as the first exponential
    many[0, 0] = 0.0
    assert keeps_its_error(torch.cat([normal, many]), config)


def test_softmax_gives_no_weight_to_masked_values() -> None:
    """They fill the first blocks, so these have no largest value."""
    x, mask = torch.randn(2, 40), torch.zeros(40)
    mask[:36] = -torch.inf
    found = softmax.run({"x": x, "mask": mask, "scale": 1.0}, IN_STEPS)
    assert not found[:, :36].any()
    torch.testing.assert_close(found[:, 36:], x[:, 36:].softmax(1), atol=softmax_error(3), rtol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("config", [IN_STEPS, WHOLE], ids=["steps", "whole"])
def test_softmax_of_what_is_not_finite_is_nan(config: dict[str, int], bad: float) -> None:
    x = torch.zeros(2, 40)
    x[0, 17] = bad
    found = computed(x, config)
    assert found[0].isnan().any()
    torch.testing.assert_close(found[1], torch.full((40,), 1 / 40))
    masked = computed(torch.full((1, 40), -torch.inf), config)
    assert masked.isnan().all()


def test_softmax_refuses_a_mask_of_another_length() -> None:
    with pytest.raises(KernelError, match=r"softmax takes x \(N, \.\.\., K\) and mask \(K,\)"):
        softmax(torch.ones(2, 3), torch.zeros(2))
