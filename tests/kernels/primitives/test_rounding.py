"""Rounding to bfloat16 in interpreted kernels, which must equal that of PyTorch and GPUs."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from hwnas.kernels.launch import Launch

LENGTH = 8


@triton.jit
def narrow_kernel(x: Any, y: Any, LENGTH: tl.constexpr) -> None:
    places = tl.arange(0, LENGTH)
    tl.store(y + places, tl.load(x + places).to(tl.bfloat16))


@pytest.mark.slow
@given(st.lists(st.floats(width=32), min_size=LENGTH, max_size=LENGTH))
def test_interpreter_rounds_float32_to_the_nearest_bfloat16(values: list[float]) -> None:
    x = torch.tensor(values)
    y = torch.empty(LENGTH, dtype=torch.bfloat16)
    Launch(narrow_kernel, (1,), {"x": x, "y": y}, {"LENGTH": LENGTH}).run()
    torch.testing.assert_close(y, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
