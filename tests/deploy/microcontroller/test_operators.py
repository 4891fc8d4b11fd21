"""Integer operators: real functions within a step, and the same bits in C."""

from __future__ import annotations

import ctypes
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.axes import (
    IntegerConcatenation,
    IntegerMatrixProduct,
    IntegerPermutation,
    IntegerReduction,
    IntegerSoftmax,
)
from hwnas.deploy.microcontroller.c_source import CSource
from hwnas.deploy.microcontroller.compiled import missing_c_compiler
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    IntegerPooling,
    LayerWeights,
    MapWindow,
)
from hwnas.deploy.microcontroller.elementwise import IntegerAddition, IntegerProduct, IntegerTable
from hwnas.deploy.microcontroller.fixed_point import FixedPoint, clipped, fixed_point
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep, IntegerTensor
from hwnas.deploy.microcontroller.normalisation import IntegerGroupNorm, IntegerLayerNorm
from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.transposed import IntegerTransposedConvolution
from hwnas.deploy.microcontroller.values import strides_of

NUMBERS = np.random.default_rng(0)


def int8(*shape: int) -> NDArray[np.int8]:
    return NUMBERS.integers(-128, 128, shape, dtype=np.int8)


def weights(*shape: int, outputs: int) -> LayerWeights:
    scale = FixedPoint(NUMBERS.uniform(1e-4, 0.03, outputs))
    bias = NUMBERS.integers(-3000, 3000, outputs, dtype=np.int32)
    return LayerWeights(int8(*shape), bias, scale, (-7, 4))


def window(
    size: tuple[int, int], kernel: int, stride: int, pad: int, dilation: int = 1
) -> MapWindow:
    height, width = ((side + 2 * pad - (kernel - 1) * dilation - 1) // stride + 1 for side in size)
    pairs = ((each, each) for each in (kernel, stride, pad, dilation))
    return MapWindow(size, (height, width), *pairs)


@given(st.floats(1e-12, 1e6), st.integers(-(2**31), 2**31 - 1))
def test_fixed_point_product_is_the_nearest_integer(value: float, sums: int) -> None:
    found = FixedPoint(np.array(value)).times(np.array([sums]))[0]
    assert abs(found - sums * value) <= 0.5 + abs(sums * value) * 2**-30


@given(st.floats(1e-9, 1e4))
def test_fixed_point_number_keeps_its_bits(value: float) -> None:
    multiplier, shift = fixed_point(value, 21)
    assert 0 <= shift <= 30
    assert multiplier <= 2**21 or shift == 0
    assert abs(multiplier / 2**shift - value) <= value * 2**-19 + 2**-31


@given(st.data())
def test_strides_give_back_the_places(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(sizes))))
    places = np.arange(np.prod(sizes)).reshape(sizes).transpose(order).ravel()
    axes = strides_of(places)
    assert axes is not None
    again = np.zeros(1, np.int64)
    for size, step in axes:
        again = np.add.outer(again, step * np.arange(size)).ravel()
    np.testing.assert_array_equal(again, places)


def test_places_without_strides_are_found() -> None:
    assert strides_of(np.array([0, 1, 3, 2])) is None


@settings(max_examples=50)
@given(st.floats(0.002, 0.5), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_softmax_is_within_one_step(step: float, columns: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-128, 128, (3, columns), dtype=np.int8)
    found = IntegerSoftmax.of(step, 1 / 255, -128, 3, columns).run(values[None])[0]
    powers = np.exp(step * (values.astype(float) - values.max(1, keepdims=True)))
    exact = powers / powers.sum(1, keepdims=True) * 255 - 128
    assert np.abs(found - np.clip(exact, -128, 127)).max() <= 1


@settings(max_examples=50)
@given(st.integers(2, 1024), st.integers(0, 127), st.integers(0, 2**32 - 1))
def test_layer_norm_is_within_one_step(width: int, spread: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    values = numbers.integers(-spread - 1, spread + 1, (2, width), dtype=np.int8)
    gamma, beta = numbers.uniform(-50, 50, width), numbers.uniform(-100, 100, width)
    epsilon = max(1, round(0.01 * width**2))
    found = IntegerLayerNorm.of(gamma, beta, epsilon, 3, 2).run(values[None])[0]
    centred = values - values.mean(1, keepdims=True)
    variance = values.var(1, keepdims=True) + epsilon / width**2
    exact = centred / np.sqrt(variance) * gamma + beta + 3
    assert np.abs(found - np.clip(exact, -128, 127)).max() <= 1


@settings(max_examples=50)
@given(st.integers(1, 3), st.integers(2, 2**16), st.integers(0, 127), st.integers(0, 2**32 - 1))
def test_group_norm_is_within_one_step(groups: int, width: int, spread: int, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    values = numbers.integers(-spread - 1, spread + 1, (groups, width), dtype=np.int8)
    gamma, beta = numbers.uniform(-50, 50, (groups, 1)), numbers.uniform(-100, 100, (groups, 1))
    epsilon = max(1, round(0.01 * width**2))
    found = IntegerGroupNorm.of(gamma.ravel(), beta.ravel(), epsilon, 3, width).run(values[None])[0]
    centred = values - values.mean(1, keepdims=True)
    variance = values.var(1, keepdims=True) + epsilon / width**2
    exact = centred / np.sqrt(variance) * gamma + beta + 3
    assert np.abs(found - np.clip(exact, -128, 127)).max() <= 1


@given(st.data())
def test_transposed_convolution_is_that_of_pytorch(data: st.DataObject) -> None:
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    size, stride = data.draw(pairs), data.draw(pairs)
    kernel = tuple(data.draw(st.integers(1, 4)) for _ in range(2))
    pad = tuple(data.draw(st.integers(0, (each - 1) // 2)) for each in kernel)
    more = tuple(data.draw(st.integers(0, each - 1)) for each in stride)
    layer = weights(2, *kernel, 3, outputs=2)
    values = int8(1, *size, 3)
    real = torch.from_numpy(values.astype(np.float64) - layer.zeros[0]).permute(0, 3, 1, 2)
    matrix = torch.from_numpy(layer.values.astype(np.float64)).permute(3, 0, 1, 2)
    sums = torch.conv_transpose2d(real, matrix, None, stride, pad, more).permute(0, 2, 3, 1)
    made = sums.shape[1], sums.shape[2]
    operator = IntegerTransposedConvolution(layer, size, made, stride, pad)  # type: ignore[arg-type]
    np.testing.assert_array_equal(operator.run(values), layer.finished(sums.numpy()))


MAP = (1, 9, 7, 6)
OPERATORS: dict[str, tuple[IntegerOperator, list[tuple[int, ...]], tuple[int, ...]]] = {
    "table": (IntegerTable(int8(256), 378), [MAP], MAP),
    "linear": (IntegerLinear(weights(5, 6, outputs=5), 63), [MAP], (1, 63, 5)),
    "linear, table": (
        IntegerLinear(replace(weights(5, 6, outputs=5), table=int8(256)), 63),
        [MAP],
        (1, 63, 5),
    ),
    "convolution": (
        IntegerConvolution(weights(8, 3, 3, 6, outputs=8), window((9, 7), 3, 2, 1)),
        [MAP],
        (1, 5, 4, 8),
    ),
    "convolution, groups, dilation": (
        IntegerConvolution(weights(4, 3, 3, 3, outputs=4), window((9, 7), 3, 1, 2, 2), 2),
        [MAP],
        (1, 9, 7, 4),
    ),
    "depthwise": (
        IntegerDepthwise(weights(5, 5, 6, outputs=6), window((9, 7), 5, 2, 2)),
        [MAP],
        (1, 5, 4, 6),
    ),
    "product of matrices": (
        IntegerMatrixProduct((2, 5, 7, 3), FixedPoint(np.array(0.003)), (3, -8, 11)),
        [(1, 2, 5, 7), (1, 2, 7, 3)],
        (1, 2, 5, 3),
    ),
    "addition": (IntegerAddition((900_000, 1_700_000), 21, (3, -4, 5), 378, 378), [MAP, MAP], MAP),
    "addition, repeated": (
        IntegerAddition((900_000, 1_700_000), 21, (3, -4, 5), 378, 6),
        [MAP, (1, 6)],
        MAP,
    ),
    "product": (IntegerProduct(FixedPoint(np.array(0.01)), (3, -4, 5), 378, 6), [MAP, (1, 6)], MAP),
    "mean": (
        IntegerReduction(False, (1, 63, 6), FixedPoint(np.array(0.02)), (-9, 2)),
        [MAP],
        (1, 1, 6),
    ),
    "concatenation": (
        IntegerConcatenation(9, (42, 5), (int8(256), None)),
        [MAP, (1, 9, 5)],
        (1, 9, 47),
    ),
    "maximum": (
        IntegerReduction(True, (9, 7, 6), FixedPoint(np.array(1)), (-9, -9)),
        [MAP],
        (1, 9, 6),
    ),
    "mean pooling": (
        IntegerPooling(False, FixedPoint(np.array(0.2)), (-9, 2), 6, window((9, 7), 3, 2, 1)),
        [MAP],
        (1, 5, 4, 6),
    ),
    "largest of windows": (
        IntegerPooling(True, FixedPoint(np.array(1)), (-9, -9), 6, window((9, 7), 3, 2, 1)),
        [MAP],
        (1, 5, 4, 6),
    ),
    "softmax": (IntegerSoftmax.of(0.04, 1 / 255, -128, 63, 6), [MAP], MAP),
    "layer norm": (
        IntegerLayerNorm.of(NUMBERS.normal(0, 30, 42), NUMBERS.normal(0, 20, 42), 20, 5, 9),
        [(1, 9, 42)],
        (1, 9, 42),
    ),
    "group norm": (
        IntegerGroupNorm.of(NUMBERS.normal(0, 30, 3), NUMBERS.normal(0, 20, 3), 50, 5, 126),
        [(1, 3, 126)],
        (1, 3, 126),
    ),
    "group norm of a large map": (
        IntegerGroupNorm.of(np.array([40.0]), np.array([3.0]), 2**20, 5, 60_000),
        [(1, 100, 100, 6)],
        (1, 100, 100, 6),
    ),
    "transposed convolution": (
        IntegerTransposedConvolution(
            weights(4, 4, 3, 6, outputs=4), (9, 7), (18, 7), (2, 1), (1, 1)
        ),
        [MAP],
        (1, 18, 7, 4),
    ),
    "permutation": (IntegerPermutation(((6, 1), (9, 42), (7, 6), (1, 0))), [MAP], (1, 6, 9, 7)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_in_c_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    if (reason := missing_c_compiler()) is not None:
        pytest.skip(reason)
    operator, inputs, output = OPERATORS[name]
    given = [int8(*shape) for shape in inputs]
    tensors = [IntegerTensor(each.shape[1:], 1.0, 0, each[0]) for each in given]
    # The first input stands in the place of the pixels; the others are constants.
    tensors[0] = IntegerTensor((1, 1, 1, *inputs[0][1:])[-3:], 1.0, 0)
    tensors.append(IntegerTensor(output[1:], 1.0, 0))
    last = len(given)
    step = IntegerStep(operator, tuple(range(last)), last, name)
    source = CSource.of(IntegerNetwork(tensors, [step], last, output[1:]), "one", ())
    (tmp_path / "one.h").write_text(source.header)
    (tmp_path / "one.c").write_text(source.code)
    library = tmp_path / "one.so"
    checks = "-Wall -Wextra -Wconversion -Werror -fsanitize=undefined -fno-sanitize-recover"
    command = ["cc", *f"-std=c99 -O1 {checks} -shared -fPIC".split(), str(tmp_path / "one.c")]
    subprocess.run([*command, "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.one_pixels.restype = loaded.one_run.restype = ctypes.c_void_p
    ctypes.memmove(loaded.one_pixels(), given[0].ctypes.data, given[0].nbytes)
    found = (ctypes.c_int8 * math.prod(output)).from_address(loaded.one_run())
    expected = operator.run(*given).reshape(output)
    np.testing.assert_array_equal(np.array(found).reshape(output), expected)


def test_values_out_of_range_become_the_nearest() -> None:
    found = clipped(np.array([-300, -128, 5, 127, 128]))
    np.testing.assert_array_equal(found, [-128, -128, 5, 127, 127])
