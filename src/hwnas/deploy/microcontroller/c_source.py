"""C code of an integer network: one file, one header, no heap, one static memory."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.microcontroller.arena import Arena, planned
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    IntegerPooling,
)
from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep
from hwnas.deploy.microcontroller.operator import IntegerOperator
from hwnas.deploy.microcontroller.schedule import Stream, scheduled

__all__ = ["CSource"]

_KERNELS = files(__package__) / "kernels"
_TYPES = {"int8": "int8_t", "int32": "int32_t", "uint32": "uint32_t"}
_WIDTH = 100
_WITH_WINDOWS = {each.kernel for each in (IntegerConvolution, IntegerDepthwise, IntegerPooling)}
_WITH_WEIGHTS = {each.kernel for each in (IntegerLinear, IntegerConvolution, IntegerDepthwise)}


@dataclass(frozen=True, eq=False)
class CSource:
    """Network as C99.

    Attributes:
        network: Network.
        name: Prefix of all public names, and name of the header; an identifier in lower case.
        labels: Names of the classes, if the outputs are their scores.
    """

    network: IntegerNetwork
    name: str
    labels: tuple[str, ...] = ()
    _arrays: dict[tuple[str, bytes], str] = field(default_factory=dict)

    @classmethod
    def of(cls, network: IntegerNetwork, stem: str, labels: tuple[str, ...]) -> CSource:
        """Create the code with the stem of a file's name as the prefix of names."""
        name = re.sub(r"\W", "_", stem, flags=re.ASCII).lower()
        return cls(network, f"network_{name}" if not name or name[0].isdigit() else name, labels)

    @cached_property
    def arena(self) -> Arena:
        """Plan of the memory for activations."""
        return planned(self.network, self._streams)

    @cached_property
    def _streams(self) -> list[Stream]:
        return scheduled(self.network)

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes of all constants."""
        self._calls  # noqa: B018 - collects the arrays
        return sum(len(content) for _, content in self._arrays)

    @property
    def header(self) -> str:
        """Header file."""
        output = self.network.tensors[self.network.output]
        height, width, channels = self.network.tensors[0].shape
        upper = self.name.upper()
        numbers = {
            "HEIGHT": height,
            "WIDTH": width,
            "CHANNELS": channels,
            "OUTPUTS": output.size,
            "ZERO": output.zero,
            "ARENA_BYTES": self.arena.bytes,
            "CONSTANT_BYTES": self.constant_bytes,
        }
        lines = [
            f"#ifndef {upper}_H",
            f"#define {upper}_H",
            "",
            "#include <stdint.h>",
            "",
            *(f"#define {upper}_{key} {value}" for key, value in numbers.items()),
            f"#define {upper}_SCALE {output.scale:.9g}f",
            "",
            "/* Where to write an image before each run: height x width x channels, 0 to 255.",
            "   A run writes over it. */",
            f"uint8_t *{self.name}_pixels(void);",
            "",
            "/* Runs the network. An output q stands for SCALE * (q - ZERO). */",
            f"const int8_t *{self.name}_run(void);",
        ]
        if self.labels:
            lines += ["", f"extern const char *const {self.name}_labels[]; /* of the outputs */"]
        return "\n".join([*lines, "", "#endif", ""])

    @property
    def code(self) -> str:
        """File with the code."""
        pixels, output = (self._place(i) for i in (0, self.network.output))
        calls = "\n".join(self._calls)
        return "\n".join(
            [
                self._notice,
                f'#include "{self.name}.h"',
                *(_kernel(name) for name in self._kernels),
                *self._constants(),
                f"static uint32_t memory[{self.arena.bytes // 4}];",
                "#define AT(offset) ((int8_t *)memory + (offset))",
                "",
                f"uint8_t *{self.name}_pixels(void)",
                "{",
                f"    return (uint8_t *){pixels};",
                "}",
                "",
                f"const int8_t *{self.name}_run(void)",
                "{",
                calls,
                f"    return {output};",
                "}",
                *self._label_lines(),
                "",
            ]
        )

    @property
    def _notice(self) -> str:
        arena = self.arena
        text = (
            "Written by hwnas. Integers alone: compilers and processors give the same bits. "
            f"Activations take {arena.bytes} bytes of memory, "
            f"the most in {_comment(arena.largest_step)}; "
            f"constants take {self.constant_bytes} bytes of flash."
        )
        return "/* " + textwrap.fill(text, _WIDTH - 3, subsequent_indent="   ") + " */"

    @property
    def _kernels(self) -> list[str]:
        """Names of the files with the kernels that the network needs, in order."""
        used = sorted({step.operator.kernel for step in self.network.steps})
        finish = ["finish"] if _WITH_WEIGHTS & set(used) else []
        rows = ["rows"] if _WITH_WINDOWS & set(used) else []
        return ["common", *finish, *rows, *used]

    @cached_property
    def _calls(self) -> list[str]:
        return list(_indented(line for each in self._streams for line in self._stream(each)))

    def _stream(self, stream: Stream) -> Iterator[str]:
        """Yield the lines that run a stream."""
        yield f"/* {_comment(', '.join(dict.fromkeys(step.layer for step in stream.steps)))} */"
        if stream.rows == 1 and len(stream.steps) == 1 and stream.stages[0].window is None:
            (step,) = stream.steps
            yield from self._call(
                step.operator, [self._place(i) for i in (*step.inputs, step.output)]
            )
            return
        heights = [stage.kernel.kernel_size[0] for stage in stream.stages if stage.kernel]
        counters = [f"next{number} = 0" for number in range(len(stream.stages) - 1)]
        yield "{"
        yield from [f"const int8_t *rows[{max(heights, default=0)}];"] * bool(heights)
        yield from [f"int {', '.join(counters)};"] * bool(counters)
        yield f"for (int y = 0; y < {stream.rows}; y++) {{"
        yield from self._row(stream, len(stream.stages) - 1, "y")
        yield "}"
        yield "}"

    def _row(self, stream: Stream, number: int, row: str) -> Iterator[str]:
        """Yield the lines that compute one row of a stage."""
        stage = stream.stages[number]
        if stage.window is not None and stage.kernel is not None:
            yield from self._rows_before(stream, number, row)
            to = self._row_place(stream, number, stage.window, row)
            yield from self._call(stage.window.operator, ["rows", to])
        made = {step.output for step in stage.steps}
        for step in stage.others:
            part = stage.part(step)
            places = []
            for tensor, (divisor, width) in zip(step.inputs, part.reads, strict=True):
                at = row if divisor == 1 else f"{row} / {divisor}"
                whole = tensor not in made and width
                places.append(self._place(tensor, f" + {at} * {width}" if whole else ""))
            to = self._row_place(stream, number, step, row)
            yield from self._call(part.operator, [*places, to])

    def _rows_before(self, stream: Stream, number: int, row: str) -> Iterator[str]:
        """Yield the lines that provide the rows which the window of a stage meets."""
        stage = stream.stages[number]
        assert stage.window is not None
        assert stage.kernel is not None
        kernel, source = stage.kernel, stage.window.inputs[0]
        height = kept = kernel.size[0]
        first = f"{row} * {kernel.stride[0]} - {kernel.padding[0]}"
        if number:
            kept, following = stream.kept_rows(number - 1), f"next{number - 1}"
            condition = f"{following} < {height} && {following} < {first} + {kept}"
            yield f"for (; {condition}; {following}++) {{"
            yield from self._row(stream, number - 1, following)
            yield "}"
        row_bytes = self.network.tensors[source].size // height
        sizes = f"{kernel.dilation[0]}, {kernel.kernel_size[0]}, {height}, {row_bytes}, {kept}"
        yield f"rows_at(rows, {self._place(source)}, {first}, {sizes});"

    def _row_place(self, stream: Stream, number: int, step: IntegerStep, row: str) -> str:
        """Return where a step of a stage writes a row."""
        stage, tensor = stream.stages[number], step.output
        if tensor != stage.output:
            return self._place(tensor)
        if tensor != stream.output:
            row = f"{row} % {stream.kept_rows(number)}"
        return self._place(tensor, f" + {row} * {self.network.tensors[tensor].size // stage.rows}")

    def _call(self, operator: IntegerOperator, places: list[str]) -> Iterator[str]:
        """Yield the lines that run an operator."""
        for at, constants in operator.calls(places):
            yield f"{operator.kernel}({', '.join([*at, *map(self._argument, constants)])});"

    def _place(self, tensor: int, row: str = "") -> str:
        """Return a pointer to a tensor, or to a row of it, as an expression in C."""
        data = self.network.tensors[tensor].data
        if data is not None:
            return self._argument(data) + row
        return f"AT({self.arena.offsets[tensor]}{row})"

    def _argument(self, value: NDArray[Any] | int | None) -> str:
        """Return a constant as an expression in C; an array gets a name."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(value) if abs(value) < 2**31 else f"INT64_C({value})"
        key = str(value.dtype), np.ascontiguousarray(value).tobytes()
        return self._arrays.setdefault(key, f"c{len(self._arrays)}")

    def _constants(self) -> Iterator[str]:
        self._calls  # noqa: B018 - collects the arrays
        for (dtype, content), name in self._arrays.items():
            values = np.frombuffer(content, dtype).tolist()
            yield f"static const {_TYPES[dtype]} {name}[{len(values)}] = {{"
            yield from _lines(values)
            yield "};"

    def _label_lines(self) -> list[str]:
        if not self.labels:
            return []
        names = ",\n".join(f"    {_text(label)}" for label in self.labels)
        return ["", f"const char *const {self.name}_labels[] = {{", names, "};"]


def _kernel(name: str) -> str:
    return (_KERNELS / f"{name}.c").read_text()


def _lines(values: list[int]) -> Iterator[str]:
    each = 20
    for start in range(0, len(values), each):
        yield ",".join(map(str, values[start : start + each])) + ","


def _comment(text: str) -> str:
    """Return text that cannot end a comment."""
    return re.sub(r"[^\w./, -]", "_", text)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a function, indented by their braces and broken where they are long."""
    depth = 1
    for line in lines:
        depth -= line.startswith("}")
        indent = " " * (4 * depth)
        inner = indent + ("   " if line.startswith("/*") else "    ")
        yield textwrap.fill(line, _WIDTH, initial_indent=indent, subsequent_indent=inner)
        depth += line.endswith("{")


def _text(label: str) -> str:
    """Return a string literal in C."""
    escaped = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in label.encode()
    )
    return f'"{"".join(escaped)}"'
