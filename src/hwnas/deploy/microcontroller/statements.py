"""Statements in C that run the streams of an integer network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.arena import Arena
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep
from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.schedule import Stream

__all__ = ["IMAGE_ROW", "StreamStatements", "comment"]

IMAGE_ROW = "image_row"
"""Name of the parameter with a row of the image."""


class StreamStatements:
    """Writer of statements, with the constant arrays that they use.

    Attributes:
        arrays: Names of constant arrays by type and content.

    Args:
        network: Network.
        arena: Place of each tensor.
    """

    def __init__(self, network: IntegerNetwork, arena: Arena) -> None:
        self.arrays: dict[tuple[str, bytes], str] = {}
        self._network, self._arena = network, arena

    def of(self, stream: Stream) -> Iterator[str]:
        """Yield the lines that run a stream: each row computes the rows that it needs."""
        yield _layers(stream)
        if stream.rows == 1 and len(stream.steps) == 1 and stream.stages[0].window is None:
            (step,) = stream.steps
            places = [self.place(i) for i in (*step.inputs, step.output)]
            yield from self._call(step.operator, places)
            return
        counters = [f"next{number} = 0" for number in range(len(stream.stages) - 1)]
        yield "{"
        yield from _declared_rows(stream)
        yield from [f"int {', '.join(counters)};"] * bool(counters)
        yield f"for (int y = 0; y < {stream.rows}; y++) {{"
        yield from self._row(stream, len(stream.stages) - 1, "y")
        yield "}"
        yield "}"

    def of_image_row(self, stream: Stream) -> Iterator[str]:
        """Yield the lines that take a row of the image, and compute the rows that it completes.

        Each row is computed as soon as the rows that it needs are, so no stage keeps more rows than
        the kernel of the next one meets.

        Args:
            stream: First stream of the network, whose first stage reads the image row by row.
        """
        yield _layers(stream)
        yield "{"
        yield from _declared_rows(stream)
        yield "int y = done[0]++;"
        yield from self._steps(stream, 0, "y")
        yield from self._completed(stream, 1)
        yield "}"

    def place(self, tensor: int, row: str = "") -> str:
        """Return a pointer to a tensor, or to a row of it, as an expression in C."""
        data = self._network.tensors[tensor].data
        if data is not None:
            return self._argument(data) + row
        if tensor not in self._arena.offsets:
            return f"(const int8_t *){IMAGE_ROW}"
        return f"AT({self._arena.offsets[tensor]}{row})"

    def _row(self, stream: Stream, number: int, row: str) -> Iterator[str]:
        """Yield the lines that compute one row of a stage, and before it those that it needs."""
        kernel = stream.stages[number].kernel
        if number and kernel is not None:
            following = f"next{number - 1}"
            first = f"{row} * {kernel.stride[0]} - {kernel.padding[0]}"
            enough = f"{following} < {first} + {kernel.span}"
            yield f"for (; {following} < {kernel.size[0]} && {enough}; {following}++) {{"
            yield from self._row(stream, number - 1, following)
            yield "}"
        yield from self._steps(stream, number, row)

    def _completed(self, stream: Stream, number: int) -> Iterator[str]:
        """Yield the lines that compute the rows of a stage whose inputs are there, and so on."""
        if number == len(stream.stages):
            return
        kernel, rows = stream.stages[number].kernel, stream.stages[number].rows
        assert kernel is not None
        done, before = f"done[{number}]", f"done[{number - 1}]"
        needed = f"{done} * {kernel.stride[0]} - {kernel.padding[0]} + {kernel.span}"
        there = f"{before} == {kernel.size[0]} || {needed} <= {before}"
        yield f"while ({done} < {rows} && ({there})) {{"
        yield f"int y{number} = {done}++;"
        yield from self._steps(stream, number, f"y{number}")
        yield from self._completed(stream, number + 1)
        yield "}"

    def _steps(self, stream: Stream, number: int, row: str) -> Iterator[str]:
        """Yield the lines that compute one row of a stage from rows that are there."""
        stage = stream.stages[number]
        if stage.window is not None:
            yield self._rows_at(stream, number, row)
            to = self._row_place(stream, number, stage.window, row)
            yield from self._call(stage.window.operator, ["rows", to])
        made = {step.output for step in stage.steps}
        for step in stage.others:
            part = stage.part(step)
            places = []
            for tensor, (divisor, width) in zip(step.inputs, part.reads, strict=True):
                at = row if divisor == 1 else f"{row} / {divisor}"
                whole = tensor not in made and width
                places.append(self.place(tensor, f" + {at} * {width}" if whole else ""))
            to = self._row_place(stream, number, step, row)
            yield from self._call(part.operator, [*places, to])

    def _rows_at(self, stream: Stream, number: int, row: str) -> str:
        """Return the line that finds the rows which the window of a stage meets."""
        stage = stream.stages[number]
        assert stage.window is not None
        assert stage.kernel is not None
        kernel, source = stage.kernel, stage.window.inputs[0]
        height = kernel.size[0]
        kept = stream.kept_rows(number - 1) if number else height
        first = f"{row} * {kernel.stride[0]} - {kernel.padding[0]}"
        row_bytes = self._network.tensors[source].size // height
        sizes = f"{kernel.dilation[0]}, {kernel.kernel_size[0]}, {height}, {row_bytes}, {kept}"
        return f"rows_at(rows, {self.place(source)}, {first}, {sizes});"

    def _row_place(self, stream: Stream, number: int, step: IntegerStep, row: str) -> str:
        """Return where a step of a stage writes a row."""
        stage, tensor = stream.stages[number], step.output
        if tensor != stage.output:
            return self.place(tensor)
        if tensor != stream.output:
            row = f"{row} % {stream.kept_rows(number)}"
        return self.place(tensor, f" + {row} * {self._network.tensors[tensor].size // stage.rows}")

    def _call(self, operator: IntegerOperator, places: list[str]) -> Iterator[str]:
        """Yield the lines that run an operator."""
        for at, constants in operator.calls(places):
            yield f"{operator.kernel}({', '.join([*at, *map(self._argument, constants)])});"

    def _argument(self, value: NDArray[Any] | int | None) -> str:
        """Return a constant as an expression in C; an array gets a name."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(value) if abs(value) < 2**31 else f"INT64_C({value})"
        key = str(value.dtype), np.ascontiguousarray(value).tobytes()
        return self.arrays.setdefault(key, f"c{len(self.arrays)}")


def comment(text: str) -> str:
    """Return text that cannot end a comment."""
    return re.sub(r"[^\w./, -]", "_", text)


def _layers(stream: Stream) -> str:
    """Return a comment with the layers of a stream."""
    return f"/* {comment(', '.join(dict.fromkeys(step.layer for step in stream.steps)))} */"


def _declared_rows(stream: Stream) -> list[str]:
    """Return the declaration of the rows that a kernel meets, if there is one."""
    heights = [stage.kernel.kernel_size[0] for stage in stream.stages if stage.kernel]
    return [f"const int8_t *rows[{max(heights)}];"] if heights else []
