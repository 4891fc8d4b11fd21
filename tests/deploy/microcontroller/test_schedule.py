"""Streams of convolutions: rows are computed once, and no map is kept whole without need."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwnas.deploy.microcontroller.axes import IntegerReduction
from hwnas.deploy.microcontroller.c_source import CSource
from hwnas.deploy.microcontroller.compiled import compiled_session, missing_c_compiler
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    IntegerPooling,
    LayerWeights,
    MapWindow,
)
from hwnas.deploy.microcontroller.elementwise import IntegerAddition, PixelTable
from hwnas.deploy.microcontroller.fixed_point import FixedPoint
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep, IntegerTensor
from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.schedule import scheduled

Shape = tuple[int, int, int]


class Maker:
    """Network of random weights, made operator by operator."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.numbers = np.random.default_rng(seed)
        self.tensors = [IntegerTensor(shape, 1.0, 0)]
        self.steps: list[IntegerStep] = []

    def add(self, operator: IntegerOperator, inputs: list[int], shape: Shape) -> int:
        self.tensors.append(IntegerTensor(shape, 1.0, 0))
        number = len(self.tensors) - 1
        self.steps.append(IntegerStep(operator, tuple(inputs), number, f"step {number}"))
        return number

    def weights(self, *shape: int, outputs: int) -> LayerWeights:
        values = self.numbers.integers(-128, 128, shape, dtype=np.int8)
        bias = self.numbers.integers(-500, 500, outputs, dtype=np.int32)
        return LayerWeights(
            values, bias, FixedPoint(self.numbers.uniform(5e-3, 0.02, outputs)), (3, -5)
        )

    def pixels(self) -> int:
        size = self.tensors[0].size
        table = self.numbers.integers(-128, 128, (self.tensors[0].shape[2], 256), dtype=np.int8)
        return self.add(PixelTable(table, size), [0], self.tensors[0].shape)  # type: ignore[arg-type]

    def linear(self, source: int, outputs: int) -> int:
        height, width, channels = self.tensors[source].shape
        weights = self.weights(outputs, channels, outputs=outputs)
        return self.add(IntegerLinear(weights, height * width), [source], (height, width, outputs))

    def window(self, source: int, kind: str, outputs: int, kernel: int, stride: int) -> int:
        height, width, channels = self.tensors[source].shape
        pad = kernel // 2
        sizes = (height - 1) // stride + 1, (width - 1) // stride + 1
        pairs = ((each, each) for each in (kernel, stride, pad, 1))
        window = MapWindow((height, width), sizes, *pairs)
        operator: IntegerOperator
        if kind == "pool":
            operator = IntegerPooling(True, FixedPoint(np.array(1)), (0, 0), channels, window)
        elif kind == "depthwise":
            weights = self.weights(kernel, kernel, channels, outputs=channels)
            operator = IntegerDepthwise(weights, window)
        else:
            weights = self.weights(outputs, kernel, kernel, channels, outputs=outputs)
            operator = IntegerConvolution(weights, window)
        made = outputs if kind == "dense" else channels
        return self.add(operator, [source], (*sizes, made))

    def sum(self, first: int, second: int) -> int:
        size = self.tensors[first].size
        operator = IntegerAddition((1 << 20, 3 << 19), 21, (0, 0, 0), size, size)
        return self.add(operator, [first, second], self.tensors[first].shape)  # type: ignore[arg-type]

    def network(self, last: int) -> IntegerNetwork:
        height, width, channels = self.tensors[last].shape
        scale = FixedPoint(np.array(1 / (height * width)))
        mean = IntegerReduction(False, (1, height * width, channels), scale, (0, 0))
        end = self.add(mean, [last], (1, 1, channels))
        return IntegerNetwork(self.tensors, self.steps, end, (channels,))


def inverted(maker: Maker, source: int, wide: int, outputs: int, kernel: int, stride: int) -> int:
    """Return the output of an inverted bottleneck, with a residual sum where the shapes agree."""
    inner = maker.window(maker.linear(source, wide), "depthwise", wide, kernel, stride)
    projected = maker.linear(inner, outputs)
    same = maker.tensors[projected].shape == maker.tensors[source].shape
    return maker.sum(source, projected) if same else projected


def some_network(seed: int) -> IntegerNetwork:
    choices = random.Random(seed)
    shape = choices.randint(5, 12), choices.randint(5, 12), choices.choice([1, 3])
    maker = Maker(shape, seed)
    at = maker.pixels()
    for _ in range(choices.randint(2, 5)):
        kernel, stride = choices.choice([1, 3, 5]), choices.choice([1, 1, 2])
        outputs = choices.randint(1, 9)
        kind = choices.choice(["inverted", "inverted", "dense", "depthwise", "pool", "linear"])
        if kind == "inverted":
            same = choices.random() < 0.5
            outputs = maker.tensors[at].shape[2] if same else outputs
            at = inverted(maker, at, choices.randint(4, 20), outputs, kernel, stride)
        elif kind == "linear":
            at = maker.linear(at, outputs)
        else:
            at = maker.window(at, kind, outputs, kernel, stride)
    return maker.network(at)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_streams_in_c_give_the_bits_of_the_network(
    seed: int, by_rows: bool, tmp_path: Path
) -> None:
    if (reason := missing_c_compiler()) is not None:
        pytest.skip(reason)
    network = some_network(seed)
    source = CSource.of(network, "network", (), by_rows)
    (tmp_path / "network.c").write_text(source.code)
    (tmp_path / "network.h").write_text(source.header)
    shape = network.tensors[0].shape
    pixels = np.random.default_rng(seed).integers(0, 256, (3, *shape), np.uint8)
    found = compiled_session(tmp_path / "network.c").run(pixels)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, network.run(pixels))


def test_names_of_layers_cannot_end_a_comment() -> None:
    """Names come from the ONNX file, which may be a stranger's."""
    network = some_network(0)
    bad = [replace(step, layer="*/ system(1); /*") for step in network.steps]
    code = CSource.of(replace(network, steps=bad), "Odd name!", ('"; int x[] = {"',)).code
    assert code.count("/*") == code.count("*/")
    assert "system(1)" not in code
    assert "odd_name__run" in code
    assert r'"\042; int x[] = {\042"' in code


def test_wide_maps_of_inverted_bottlenecks_take_a_few_rows() -> None:
    maker = Maker((16, 16, 3), 0)
    at = maker.linear(maker.pixels(), 8)
    at = inverted(maker, at, 96, 8, 3, 1)
    network = maker.network(at)
    used = CSource.of(network, "network", ()).arena.bytes
    row = 16 * 96
    residual = 16 * 16 * 8
    assert used <= residual + (3 + 1) * row + 16 * 16 * 3 + 200
    assert used < 16 * 16 * 96 / 2


def test_image_that_is_given_by_rows_takes_no_memory() -> None:
    maker = Maker((40, 30, 3), 0)
    at = maker.window(maker.pixels(), "dense", 4, 3, 2)
    network = maker.network(inverted(maker, at, 24, 4, 3, 2))
    whole, rows = (CSource.of(network, "network", (), by_rows).arena for by_rows in (False, True))
    assert whole.bytes >= 40 * 30 * 3
    kept = 3 * 30 * 3 + 4 * 15 * 24 + 10 * 8 * 4
    assert rows.bytes <= kept + 200
    assert 0 not in rows.offsets


@pytest.mark.parametrize("seed", range(12))
def test_arena_is_no_larger_if_the_image_is_given_by_rows(seed: int) -> None:
    network = some_network(seed)
    whole, rows = (CSource.of(network, "network", (), by_rows).arena for by_rows in (False, True))
    assert rows.in_use_bytes <= whole.in_use_bytes + 4 * len(network.steps)  # alignment
    assert rows.bytes >= rows.in_use_bytes


def test_stream_reads_all_of_a_map_that_others_read_too() -> None:
    """A wide map with a second reader is kept whole."""
    maker = Maker((8, 8, 3), 0)
    wide = maker.linear(maker.pixels(), 12)
    inner = maker.window(wide, "depthwise", 12, 3, 1)
    network = maker.network(maker.sum(wide, inner))
    windows = [stage for each in scheduled(network) for stage in each.stages if stage.window]
    (stream,) = [each for each in scheduled(network) if each.stages[-1].window]
    assert len(windows) == len(stream.stages) == 1
