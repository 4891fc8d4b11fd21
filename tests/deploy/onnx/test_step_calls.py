"""Kernel calls with the sizes of layers, recovered from the signatures of their operators."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hwnas.deploy.onnx.step_calls import call_of_step
from hwnas.search_spaces import OperatorSignature
from hwnas.search_spaces.cost_model.workload import trace

CHANNELS = st.integers(2, 40)  # with one channel, every convolution is depthwise
SIDES = st.integers(1, 9)


def step_of(layer: nn.Module, *shape: int) -> OperatorSignature:
    workload = trace(layer, shape)
    [step] = [OperatorSignature.of(op, workload) for op in workload.operators if op.kind != "view"]
    return step


@settings(max_examples=50)
@given(inputs=CHANNELS, outputs=CHANNELS, side=SIDES, biased=st.booleans(), batch=st.integers(1, 3))
def test_call_of_step_recovers_a_pointwise_layer(
    inputs: int, outputs: int, side: int, biased: bool, batch: int
) -> None:
    layer = nn.Conv2d(inputs, outputs, 1, bias=biased)
    call = call_of_step(step_of(layer, inputs, side, side), batch)
    assert call is not None
    assert call.operator == "pointwise"
    assert call.shapes["x"] == (batch, side * side, inputs)
    assert call.shapes["weight"] == (inputs, outputs)


@settings(max_examples=50)
@given(tokens=SIDES, inputs=CHANNELS, outputs=CHANNELS)
def test_call_of_step_recovers_a_linear_layer(tokens: int, inputs: int, outputs: int) -> None:
    call = call_of_step(step_of(nn.Linear(inputs, outputs), tokens, inputs), 2)
    assert call is not None
    assert call.shapes["x"] == (2, tokens, inputs)
    assert call.shapes["bias"] == (outputs,)


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 16), (24, 24), (17, 5)])
@pytest.mark.parametrize("side", [9, 14])
def test_call_of_step_recovers_a_dense_convolution(
    kernel: int, stride: int, inputs: int, outputs: int, side: int
) -> None:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    call = call_of_step(step_of(layer, inputs, side, side), 1)
    assert call is not None
    if kernel == stride == 1:
        assert call.operator == "pointwise"
        return
    assert call.operator == "convolution"
    assert call.shapes["x"] == (1, side, side, inputs)
    assert call.shapes["weight"] == (kernel, kernel, inputs, outputs)
    assert call.options == {"stride": stride}


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("channels", [10, 23, 96])
def test_call_of_step_recovers_a_depthwise_convolution(
    kernel: int, stride: int, biased: bool, channels: int
) -> None:
    layer = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, 1, channels, biased)
    call = call_of_step(step_of(layer, channels, 11, 11), 4)
    assert call is not None
    assert call.operator == "depthwise"
    assert call.shapes["x"] == (4, 11, 11, channels)
    assert call.shapes["weight"] == (kernel, kernel, channels)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(16, 32, 3, 1, 1, groups=4), (16, 8, 8)),
        (nn.Conv2d(16, 16, 2, 2), (16, 8, 8)),
        (nn.Conv2d(3, 16, 3, 4, 1), (3, 16, 16)),
        (nn.AvgPool2d(2), (16, 8, 8)),
    ],
)
def test_call_of_step_gives_none_for_unsupported_layers(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    assert call_of_step(step_of(layer, *shape), 1) is None
