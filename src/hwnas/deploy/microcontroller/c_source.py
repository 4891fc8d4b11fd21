"""C code of an integer network: one file, one header, no heap, one static memory."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

import numpy as np

from hwnas.deploy.microcontroller.arena import Arena, planned
from hwnas.deploy.microcontroller.convolution import (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    IntegerPooling,
)
from hwnas.deploy.microcontroller.network import IntegerNetwork
from hwnas.deploy.microcontroller.normalisation import IntegerGroupNorm, IntegerLayerNorm
from hwnas.deploy.microcontroller.schedule import Stream, scheduled
from hwnas.deploy.microcontroller.statements import IMAGE_ROW, StreamStatements, comment
from hwnas.deploy.microcontroller.transposed import IntegerTransposedConvolution

__all__ = ["CSource"]

_KERNELS = files(__package__) / "kernels"
_TYPES = {"int8": "int8_t", "int32": "int32_t", "uint32": "uint32_t"}
_WIDTH = 100
_WINDOWS = IntegerConvolution, IntegerDepthwise, IntegerPooling
_WEIGHTS = (
    IntegerConvolution,
    IntegerDepthwise,
    IntegerLinear,
    IntegerTransposedConvolution,
)
_SHARED = {
    "finish": {each.kernel for each in _WEIGHTS},
    "root": {each.kernel for each in (IntegerGroupNorm, IntegerLayerNorm)},
    "rows": {each.kernel for each in _WINDOWS},
}
"""Kernels that need further functions, by the file with these functions."""
_IMAGE_INTERFACE = """\
/* Where to write an image before each run: height x width x channels, 0 to 255.
   A run writes over it. */
uint8_t *{0}_pixels(void);

/* Runs the network. An output q stands for SCALE * (q - ZERO). */
const int8_t *{0}_run(void);"""
_ROW_INTERFACE = """\
/* Takes the next row of an image, from the top: width x channels, 0 to 255. Returns the outputs
   after the last row, and NULL before. An output q stands for SCALE * (q - ZERO). */
const int8_t *{0}_row(const uint8_t *row);

/* Forgets the rows of an image that was not finished. */
void {0}_restart(void);"""


@dataclass(frozen=True, eq=False)
class CSource:
    """Network as C99.

    Attributes:
        network: Network.
        name: Prefix of all public names, and name of the header; an identifier in lower case.
        labels: Names of the classes, if the outputs are their scores.
        by_rows: Whether the rows of an image are given one by one; the image then takes no place in
            the arena.
    """

    network: IntegerNetwork
    name: str
    labels: tuple[str, ...] = ()
    by_rows: bool = False

    @classmethod
    def of(
        cls, network: IntegerNetwork, stem: str, labels: tuple[str, ...], by_rows: bool = False
    ) -> CSource:
        """Create the code with the stem of a file's name as the prefix of names."""
        name = re.sub(r"\W", "_", stem, flags=re.ASCII).lower()
        prefix = f"network_{name}" if not name or name[0].isdigit() else name
        return cls(network, prefix, labels, by_rows)

    @cached_property
    def arena(self) -> Arena:
        """Plan of the memory for activations."""
        return planned(self.network, self._streams, self.by_rows)

    @cached_property
    def _streams(self) -> list[Stream]:
        return scheduled(self.network, self.by_rows)

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes of all constants."""
        self._calls  # noqa: B018 - collects the arrays
        return sum(len(content) for _, content in self._statements.arrays)

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
            *(_ROW_INTERFACE if self.by_rows else _IMAGE_INTERFACE).format(self.name).split("\n"),
        ]
        if self.labels:
            lines += ["", f"extern const char *const {self.name}_labels[]; /* of the outputs */"]
        return "\n".join([*lines, "", "#endif", ""])

    @property
    def code(self) -> str:
        """File with the code."""
        return "\n".join(
            [
                self._notice,
                f'#include "{self.name}.h"',
                *(_kernel(name) for name in self._kernels),
                *self._constants(),
                f"static uint32_t memory[{self.arena.bytes // 4}];",
                "#define AT(offset) ((int8_t *)memory + (offset))",
                "",
                *(self._start_by_rows() if self.by_rows else self._start()),
                "{",
                self._calls,
                f"    return {self._statements.place(self.network.output)};",
                "}",
                *self._label_lines(),
                "",
            ]
        )

    def _start(self) -> list[str]:
        """Return the lines before the body of the function that runs the network."""
        return [
            f"uint8_t *{self.name}_pixels(void)",
            "{",
            f"    return (uint8_t *){self._statements.place(0)};",
            "}",
            "",
            f"const int8_t *{self.name}_run(void)",
        ]

    def _start_by_rows(self) -> list[str]:
        """Return the lines before the body of the function that takes a row of the image."""
        stages = len(self._streams[0].stages)
        return [
            f"static int done[{stages}]; /* rows of the image, and of each stage after it */",
            "",
            f"void {self.name}_restart(void)",
            "{",
            f"    for (int i = 0; i < {stages}; i++)",
            "        done[i] = 0;",
            "}",
            "",
            f"const int8_t *{self.name}_row(const uint8_t *{IMAGE_ROW})",
        ]

    @property
    def _notice(self) -> str:
        arena = self.arena
        text = (
            "Written by hwnas. Integers alone: compilers and processors give the same bits. "
            f"Activations take {arena.bytes} bytes of memory, "
            f"the most in {comment(arena.largest_step)}; "
            f"constants take {self.constant_bytes} bytes of flash."
        )
        return "/* " + textwrap.fill(text, _WIDTH - 3, subsequent_indent="   ") + " */"

    @property
    def _kernels(self) -> list[str]:
        """Names of the files with the kernels that the network needs, in order."""
        used = {step.operator.kernel for step in self.network.steps}
        shared = [name for name, kernels in _SHARED.items() if kernels & used]
        return ["common", *shared, *sorted(used)]

    @cached_property
    def _statements(self) -> StreamStatements:
        return StreamStatements(self.network, self.arena)

    @cached_property
    def _calls(self) -> str:
        """Body of the function that runs the network."""
        first, *others = self._streams
        lines: Iterable[str] = (line for each in others for line in self._statements.of(each))
        if self.by_rows:
            last = self.network.tensors[0].shape[0]
            given = self._statements.of_image_row(first)
            end = f"if (done[0] < {last}) {{", "return NULL;", "}", f"{self.name}_restart();"
            lines = itertools.chain(given, end, lines)
        else:
            lines = itertools.chain(self._statements.of(first), lines)
        return "\n".join(_indented(lines))

    def _constants(self) -> Iterator[str]:
        self._calls  # noqa: B018 - collects the arrays
        for (dtype, content), name in self._statements.arrays.items():
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
