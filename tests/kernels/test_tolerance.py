"""What counts as right."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.kernels.tolerance import TOLERANCES, in_float64, worst_error

FLOATS = [torch.float16, torch.bfloat16, torch.float32]
dtypes = st.sampled_from(FLOATS)
numbers = st.floats(-1e30, 1e30) | st.sampled_from([0.0, math.inf, -math.inf, math.nan, 65510.0])


@given(st.lists(numbers, max_size=5), dtypes)
def test_the_truth_rounded_to_the_type_is_right(values: list[float], dtype: torch.dtype) -> None:
    truth = torch.tensor(values, dtype=torch.float64)
    assert worst_error(truth.to(dtype), truth) <= 1


@given(st.floats(-1e4, 1e4), st.floats(1.5, 100), st.booleans(), dtypes)
def test_what_is_off_by_more_than_is_allowed_is_wrong(
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
def test_infinities_and_not_a_numbers_have_to_be_where_they_belong(
    output: float, truth: float, dtype: torch.dtype
) -> None:
    given, exact = torch.tensor([output], dtype=dtype), torch.tensor([truth]).double()
    assert worst_error(given, exact) > 1


@pytest.mark.parametrize("output", [65504.0, math.inf])
def test_at_the_border_of_the_type_both_sides_are_right(output: float) -> None:
    given = torch.tensor([output], dtype=torch.float16)
    assert worst_error(given, torch.tensor([65515.0]).double()) <= 1
    assert worst_error(given, torch.tensor([65525.0]).double()) <= 1
    assert (worst_error(given, torch.tensor([1e6]).double()) <= 1) == math.isinf(output)


def test_integers_may_be_off_by_one_and_shapes_by_nothing() -> None:
    truth = torch.tensor([1, -128, 127], dtype=torch.int8)
    assert worst_error(truth, truth.double()) == 0
    assert worst_error(truth, torch.tensor([2.0, -127, 126])) == 1
    assert worst_error(truth, torch.tensor([3.0, -128, 127])) == 2
    assert worst_error(truth[None], truth) == math.inf
    assert worst_error(truth[:0], truth[:0]) == 0


def test_inputs_in_float64_have_the_same_values() -> None:
    inputs = {"x": torch.rand(3).half(), "index": torch.arange(3), "gate": None, "name": "relu"}
    exact = in_float64(inputs)
    assert exact["x"].dtype == torch.float64
    assert torch.equal(exact["x"].half(), inputs["x"])
    assert exact["index"] is inputs["index"]
    assert (exact["gate"], exact["name"]) == (None, "relu")
