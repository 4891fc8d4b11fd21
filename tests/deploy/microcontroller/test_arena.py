"""Plan of the memory: every tensor is whole for as long as something reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.arena import Arena, planned
from hwnas.deploy.microcontroller.axes import IntegerMatrixProduct
from hwnas.deploy.microcontroller.convolution import IntegerLinear, LayerWeights
from hwnas.deploy.microcontroller.elementwise import IntegerAddition, IntegerTable
from hwnas.deploy.microcontroller.fixed_point import FixedPoint
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep, IntegerTensor
from hwnas.deploy.microcontroller.normalisation import IntegerLayerNorm
from hwnas.deploy.microcontroller.operator import Constants, IntegerOperator
from hwnas.deploy.microcontroller.schedule import Stream, scheduled

NUMBERS = np.random.default_rng(0)


@dataclass(frozen=True, eq=False)
class Mix(IntegerOperator):
    """Operator whose every output depends on every input, so that it has no rows."""

    kernel = "mix"
    in_place = False
    size: int

    def run(self, *inputs: NDArray[np.integer]) -> NDArray[np.int8]:
        total = sum(int(each.astype(np.int64).ravel() @ np.arange(each.size)) for each in inputs)
        return ((total + np.arange(self.size) * 7) % 251 - 125).astype(np.int8)[None]

    def constants(self) -> Constants:
        return ()


def linear(rows: int, inputs: int, outputs: int) -> IntegerLinear:
    values = NUMBERS.integers(-128, 128, (outputs, inputs), dtype=np.int8)
    scale = FixedPoint(np.full(outputs, 0.02))
    return IntegerLinear(LayerWeights(values, np.zeros(outputs, np.int32), scale, (0, 0)), rows)


@st.composite
def networks(draw: st.DrawFn) -> IntegerNetwork:
    """Random networks of tensors of 4 rows, with attention among the rows of two tensors."""
    rows = 4
    tensors = [IntegerTensor((1, rows, draw(st.integers(1, 5))), 1.0, 0)]
    steps = []
    for i in range(1, draw(st.integers(2, 14))):
        near = st.integers(max(0, len(tensors) - 3), len(tensors) - 1)
        a, b = draw(near), draw(near)
        widths = [tensors[each].shape[2] for each in (a, b)]
        kind = draw(st.sampled_from(["linear", "table", "norm", "add", "attend", "mix"]))
        inputs, width = [a], widths[0]
        operator: IntegerOperator
        if kind == "add" and widths[0] == widths[1] and a != b:
            inputs, size = [a, b], rows * width
            operator = IntegerAddition((1 << 20, 3 << 19), 21, (0, 0, 0), size, size)
        elif kind == "attend" and widths[0] == rows:
            inputs, width = [a, b], widths[1]
            scale = FixedPoint(np.array(0.01))
            operator = IntegerMatrixProduct((1, rows, rows, width), scale, (0, 0, 0))
        elif kind == "table":
            table = NUMBERS.integers(-128, 128, 256, dtype=np.int8)
            operator = IntegerTable(table, rows * width)
        elif kind == "norm":
            operator = IntegerLayerNorm.of(np.full(width, 40.0), np.zeros(width), 3, 0, rows)
        elif kind == "mix":
            width = draw(st.integers(1, 5))
            inputs = sorted({a, b})
            operator = Mix(rows * width)
        else:
            width = draw(st.integers(1, 5))
            operator = linear(rows, widths[0], width)
        tensors.append(IntegerTensor((1, rows, width), 1.0, 0))
        steps.append(IntegerStep(operator, tuple(inputs), i, f"step {i}"))
    return IntegerNetwork(tensors, steps, len(tensors) - 1, tensors[-1].shape)


def run_in_memory(
    network: IntegerNetwork, streams: list[Stream], arena: Arena, pixels: NDArray[np.uint8]
) -> NDArray[np.int8]:
    """Run streams as the C code does, with all tensors in one array of bytes."""
    memory = np.random.default_rng(1).integers(-128, 128, arena.bytes, dtype=np.int8)

    def at(tensor: int, start: int, size: int) -> slice:
        begin = arena.offsets[tensor] + start
        return slice(begin, begin + size)

    memory[at(0, 0, pixels.size)] = pixels.ravel().view(np.int8)
    for stream in streams:
        made = {step.output for step in stream.steps}
        if stream.rows == 1:
            (step,) = stream.steps
            read = [memory[at(i, 0, network.tensors[i].size)].copy()[None] for i in step.inputs]
            found = step.operator.run(*read).ravel()
            memory[at(step.output, 0, found.size)] = found
            continue
        for row in range(stream.rows):
            for step in stream.stages[0].others:
                part = stream.stages[0].part(step)
                read = []
                for tensor, (divisor, width) in zip(step.inputs, part.reads, strict=True):
                    start = 0 if tensor in made else row // divisor * width
                    size = width or network.tensors[tensor].size
                    read.append(memory[at(tensor, start, size)].copy()[None])
                found = part.operator.run(*read).ravel()
                start = row * found.size if step.output == stream.output else 0
                memory[at(step.output, start, found.size)] = found
    return memory[at(network.output, 0, network.tensors[network.output].size)]


@given(networks())
def test_tensors_are_whole_while_they_are_needed(network: IntegerNetwork) -> None:
    streams = scheduled(network)
    pixels = np.arange(network.tensors[0].size, dtype=np.uint8)
    found = run_in_memory(network, streams, planned(network, streams), pixels)
    expected = network.run(pixels.view(np.int8).reshape(1, *network.tensors[0].shape))
    np.testing.assert_array_equal(found, expected.ravel())


@given(networks())
def test_all_steps_run_once_in_order(network: IntegerNetwork) -> None:
    assert [step for each in scheduled(network) for step in each.steps] == list(network.steps)


@given(networks())
def test_streams_need_no_more_memory_than_single_steps(network: IntegerNetwork) -> None:
    alone = [Stream.of(step) for step in network.steps]
    arena = planned(network, scheduled(network))
    assert arena.in_use_bytes <= planned(network, alone).in_use_bytes + 4 * len(network.steps)


@given(networks())
def test_plan_is_no_smaller_than_what_is_in_use(network: IntegerNetwork) -> None:
    arena = planned(network, scheduled(network))
    assert arena.in_use_bytes <= arena.bytes <= sum(each.size + 3 for each in network.tensors)
    assert all(offset % 4 == 0 for offset in arena.offsets.values())
