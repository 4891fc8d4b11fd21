"""Requantisation of int8 layers, compared with ONNX Runtime."""

import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor

from hwnas.errors import KernelError
from hwnas.kernels.operators.int8_convolution import int8_convolution
from hwnas.kernels.operators.int8_depthwise import int8_depthwise
from hwnas.kernels.operators.int8_pointwise import int8_pointwise
from hwnas.kernels.primitives.requantisation import folded, requantise, symmetric

QUICK = settings(max_examples=30, deadline=None)
X_SCALE, X_ZERO, Y_SCALE, Y_ZERO = 0.031, -9, 0.043, 17


def random_steps(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)


def requantised(total: list[int], multiplier: float, zero: int = 0) -> list[int]:
    sums = torch.tensor(total).reshape(-1, 1)
    steps = requantise(sums, torch.tensor([multiplier]), 1.0, zero, None, 1.0, 0, "none")
    return steps.flatten().tolist()


def by_onnx_runtime(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, **attributes: int | list[int]
) -> Tensor:
    """Return the result of QLinearConv on a feature map (N, C, H, W)."""
    kept = {
        "x_scale": torch.tensor(X_SCALE),
        "x_zero": torch.tensor(X_ZERO, dtype=torch.int8),
        "weight": weight,
        "scale": scale,
        "zero": torch.zeros(len(weight), dtype=torch.int8),
        "y_scale": torch.tensor(Y_SCALE),
        "y_zero": torch.tensor(Y_ZERO, dtype=torch.int8),
        "bias": bias,
    }
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", ["x", *kept], ["y"], **attributes)],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.INT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [None] * 4)],
        [onnx.numpy_helper.from_array(value.numpy(), name) for name, value in kept.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def test_requantise_rounds_halves_to_even_before_it_adds_the_zero_point() -> None:
    assert requantised([-5, -3, -1, 1, 3, 5], 0.5) == [-2, -2, 0, 0, 2, 2]
    assert requantised([-5, -3, -1, 1, 3, 5], 0.5, zero=3) == [1, 1, 3, 3, 5, 5]


def test_requantise_clamps_to_the_int8_range() -> None:
    assert requantised([-(2**31), -1000, 1000, 2**31 - 1], 1.0, zero=-7) == [-128, -128, 127, 127]


@QUICK
@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=6, max_size=6),
    st.sampled_from([0, 1, -1]),
)
def test_symmetric_quantisation_errs_by_at_most_half_a_scale(
    values: list[float], axis: int
) -> None:
    weight = torch.tensor(values).reshape(2, 3)
    steps, scale = symmetric(weight, axis)
    shown = scale[:, None] if axis == 0 else scale
    assert steps.dtype == torch.int8
    assert ((steps * shown - weight).abs() <= shown * 0.5001).all()


@QUICK
@given(st.integers(-128, 127), st.integers(0, 2**31))
def test_folded_bias_equals_subtracting_the_zero_point_from_each_value(
    zero: int, seed: int
) -> None:
    x, weight = random_steps(4, 5, seed=seed).long(), random_steps(3, 5, seed=seed + 1)
    bias = random_steps(3, seed=seed + 2).int() * 99
    inside, multiplier = folded(weight, torch.tensor([0.5, 1, 2]), bias, 0, 0.5, zero, 0.25)
    assert torch.equal(x @ weight.T.long() + inside, (x - zero) @ weight.T.long() + bias)
    assert multiplier.tolist() == [1, 2, 4]


def test_int8_pointwise_equals_onnx_runtime() -> None:
    x, weight = random_steps(2, 24, 3, 5), random_steps(9, 24, 1, 1, seed=1)
    scale, bias = torch.rand(9) * 1e-3 + 1e-3, random_steps(9, seed=2).int() * 99
    inside, multiplier = folded(weight, scale, bias, 0, X_SCALE, X_ZERO, Y_SCALE)
    y = int8_pointwise(
        x.permute(0, 2, 3, 1), weight[:, :, 0, 0], inside, multiplier, Y_SCALE, Y_ZERO
    )
    assert torch.equal(y.permute(0, 3, 1, 2), by_onnx_runtime(x, weight, scale, bias))


@pytest.mark.parametrize("stride", [1, 2])
def test_int8_convolution_equals_onnx_runtime_including_borders(stride: int) -> None:
    x, weight = random_steps(2, 5, 5, 4), random_steps(9, 5, 3, 3, seed=1)
    scale, bias = torch.rand(9) * 1e-3 + 1e-3, random_steps(9, seed=2).int() * 99
    inside, multiplier = folded(weight, scale, bias, 0, X_SCALE, X_ZERO, Y_SCALE)
    y = int8_convolution(
        x.permute(0, 2, 3, 1),
        weight.permute(0, 2, 3, 1),
        inside,
        multiplier,
        X_ZERO,
        Y_SCALE,
        Y_ZERO,
        stride=stride,
    )
    attributes = {"strides": [stride] * 2, "pads": [1] * 4}
    expected = by_onnx_runtime(x, weight, scale, bias, **attributes)
    assert torch.equal(y.permute(0, 3, 1, 2), expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_int8_depthwise_equals_onnx_runtime_including_borders(stride: int) -> None:
    x, weight = random_steps(1, 9, 5, 4), random_steps(9, 1, 5, 5, seed=1)
    scale, bias = torch.rand(9) * 1e-3 + 1e-3, random_steps(9, seed=2).int() * 99
    inside, multiplier = folded(weight, scale, bias, 0, X_SCALE, X_ZERO, Y_SCALE)
    y = int8_depthwise(
        x.permute(0, 2, 3, 1),
        weight[:, 0].permute(1, 2, 0),
        inside,
        multiplier,
        X_ZERO,
        Y_SCALE,
        Y_ZERO,
        stride=stride,
    )
    truth = by_onnx_runtime(x, weight, scale, bias, group=9, pads=[2] * 4, strides=[stride] * 2)
    assert torch.equal(y.permute(0, 3, 1, 2), truth)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weight": torch.ones(2, 3)}, "takes weight in int8; given float32"),
        ({"bias": torch.zeros(2)}, "takes bias in int32; given float32"),
        ({"multiplier": torch.ones(2).half()}, "takes multiplier in float32; given float16"),
        ({"y_scale": 0.0}, "takes a y_scale above 0; given 0"),
        ({"y_zero": 128}, "takes a y_zero from -128 to 127; given 128"),
        ({"activation": "swish"}, "'swish' is not one of none, relu, relu6"),
    ],
)
def test_int8_pointwise_refuses_invalid_dtypes_scales_and_activations(
    wrong: dict[str, object], message: str
) -> None:
    inputs = {
        "x": random_steps(1, 3),
        "weight": random_steps(2, 3),
        "bias": torch.zeros(2, dtype=torch.int32),
        "multiplier": torch.ones(2),
        "y_scale": 1.0,
        "y_zero": 0,
    }
    with pytest.raises(KernelError, match=message):
        int8_pointwise(**inputs | wrong)
