"""Tolerances: which results count as correct."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.kernels.suite.tolerance import TOLERANCES, in_float64, worst_error

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
dtypes = st.sampled_from(FLOATS)
numbers = st.floats(-1e30, 1e30) | st.sampled_from([0.0, math.inf, -math.inf, math.nan, 65510.0])


@given(st.lists(numbers, max_size=5), dtypes)
def test_worst_error_accepts_exact_results_rounded_to_their_dtype(
    values: list[float], dtype: torch.dtype
) -> None:
    truth = torch.tensor(values, dtype=torch.float64)
    assert worst_error(truth.to(dtype), truth) <= 1


@given(st.floats(-1e4, 1e4), st.floats(1.5, 100), st.booleans(), dtypes)
def test_worst_error_rejects_values_beyond_the_tolerance(
    value: float, times: float, up: bool, dtype: torch.dtype
) -> None:
    tolerance = TOLERANCES[dtype]
    truth = torch.tensor([value, 0.0], dtype=dtype).double()
    allowed = tolerance.absolute + tolerance.relative * abs(truth[0].item())
    output = truth + torch.tensor([(1 if up else -1) * times * allowed, 0.0])
    assert worst_error(output.to(dtype), truth) > 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("output", "truth"),
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, 1.0),
        (1.0, math.inf),
        (-math.inf, math.inf),
        (math.inf, math.nan),
        (0.0, 1e39),
        (-math.inf, 1e39),
    ],
)
def test_worst_error_rejects_misplaced_infinity_and_nan(
    output: float, truth: float, dtype: torch.dtype
) -> None:
    given, exact = torch.tensor([output], dtype=dtype), torch.tensor([truth]).double()
    assert worst_error(given, exact) > 1


@pytest.mark.parametrize("output", [65504.0, math.inf])
def test_worst_error_accepts_maximum_and_infinity_near_overflow(output: float) -> None:
    given = torch.tensor([output], dtype=torch.float16)
    assert worst_error(given, torch.tensor([65515.0]).double()) <= 1
    assert worst_error(given, torch.tensor([65525.0]).double()) <= 1
    assert (worst_error(given, torch.tensor([1e6]).double()) <= 1) == math.isinf(output)


def test_worst_error_allows_integers_off_by_one_and_no_other_shape() -> None:
    truth = torch.tensor([1, -128, 127], dtype=torch.int8)
    assert worst_error(truth, truth.double()) == 0
    assert worst_error(truth, torch.tensor([2.0, -127, 126])) == 1
    assert worst_error(truth, torch.tensor([3.0, -128, 127])) == 2
    assert worst_error(truth[None], truth) == math.inf
    assert worst_error(truth[:0], truth[:0]) == 0


def test_in_float64_keeps_values_and_other_inputs() -> None:
    inputs = {"x": torch.rand(3).half(), "index": torch.arange(3), "gate": None, "name": "relu"}
    exact = in_float64(inputs)
    assert exact["x"].dtype == torch.float64
    assert torch.equal(exact["x"].half(), inputs["x"])
    assert exact["index"] is inputs["index"]
    assert (exact["gate"], exact["name"]) == (None, "relu")
