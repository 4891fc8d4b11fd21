"""Depthwise and pointwise convolutions in one kernel, compared with the two in sequence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.operators.depthwise import depthwise
from hwnas.kernels.operators.depthwise_pointwise import depthwise_pointwise
from hwnas.kernels.operators.pointwise import pointwise


def test_depthwise_pointwise_equals_a_result_computed_by_hand() -> None:
    x, window = torch.ones(1, 2, 2, 1), torch.ones(3, 3, 1)
    weight, bias = torch.tensor([[2.0, -1.0]]), torch.tensor([1.0, 0.0])
    residual = torch.full((1, 1, 1, 2), 0.5)
    y = depthwise_pointwise(
        x, window, torch.tensor([3.0]), weight, bias, residual, 2, "relu6", "relu"
    )
    assert y.flatten().tolist() == [13.5, 0.5]  # 4 pixels and 3 are 7, of which relu6 leaves 6


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 40)),
    st.integers(1, 40),
    st.sampled_from([1, 3, 7]),
    st.sampled_from([1, 2]),
)
def test_depthwise_pointwise_equals_the_two_operators_in_sequence(
    shape: tuple[int, int, int, int], outputs: int, kernel: int, stride: int
) -> None:
    torch.manual_seed(0)
    x, inputs = torch.randn(shape), shape[3]
    window = torch.randn(kernel, kernel, inputs), torch.randn(inputs)
    project = torch.randn(inputs, outputs), torch.randn(outputs)
    hidden, _ = depthwise(x, *window, stride, "silu")
    expected = pointwise(hidden, *project)
    y = depthwise_pointwise(x, *window, *project, None, stride, "silu")
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)


def test_depthwise_pointwise_keeps_infinity_in_its_own_pixel() -> None:
    x = torch.zeros(1, 1, 3, 2)
    x[0, 0, 2, 1] = torch.inf
    window, project = torch.ones(1, 1, 2), torch.tensor([[1.0], [1.0]])
    y = depthwise_pointwise(x, window, torch.zeros(2), project, torch.zeros(1))
    assert y.flatten().tolist() == [0, 0, torch.inf]


def test_depthwise_pointwise_refuses_a_residual_of_the_input_size() -> None:
    x, window = torch.ones(1, 4, 4, 1), torch.ones(3, 3, 1)
    with pytest.raises(KernelError, match=r"residual \(N, H / stride.*given"):
        depthwise_pointwise(x, window, torch.ones(1), torch.ones(1, 1), torch.ones(1), x, 2)


@given(
    st.tuples(st.integers(1, 64), st.integers(1, 300), st.integers(1, 300)),
    st.tuples(st.integers(1, 2000), st.integers(1, 2000)),
    st.sampled_from(range(1, 12, 2)),
    st.sampled_from([1, 2]),
)
def test_depthwise_pointwise_default_config_keeps_all_constraints(
    shape: tuple[int, int, int], channels: tuple[int, int], kernel: int, stride: int
) -> None:
    sizes = dict(zip(("images", "height", "width"), shape, strict=True))
    sizes |= dict(zip(("inputs", "outputs"), channels, strict=True))
    sizes |= {"kernel": kernel, "stride": stride, "residual": 1}
    for dtype in (torch.float16, torch.float32):
        problem = depthwise_pointwise.problem(sizes, dtype, ACCELERATORS["nvidia-a100"])
        assert problem.broken(depthwise_pointwise.default_config(sizes, dtype)) == []
