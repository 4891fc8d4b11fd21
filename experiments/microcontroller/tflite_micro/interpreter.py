"""TensorFlow Lite Micro's interpreter with its reference kernels, and the memory that it takes."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import ConfigError

__all__ = ["Interpretation", "check_installed", "interpreted"]

_ARENA_BYTES = 2**24
_ALLOCATION = re.compile(r"Arena allocation (total|head|tail) (\d+) bytes")


@dataclass(frozen=True)
class Interpretation:
    """Outputs of a LiteRT file, and what the interpreter takes of its arena.

    Attributes:
        outputs: int8 (N, outputs).
        activation_bytes: Memory for activations and for what kernels store beside them.
        arena_bytes: All memory, with the interpreter's own structures, which hold pointers of this
            machine.
    """

    outputs: NDArray[np.int8]
    activation_bytes: int
    arena_bytes: int


def check_installed() -> None:
    """Raise a ConfigError if the package tflite-micro is not installed."""
    try:
        import tflite_micro  # noqa: F401 - it loads compiled code
    except ImportError as error:
        raise ConfigError(
            f"tflite-micro cannot be imported ({error}); run: pip install tflite-micro"
        ) from error


def interpreted(file: bytes, images: NDArray[np.int8]) -> Interpretation:
    """Run a LiteRT file on images, int8 (N, H, W, C)."""
    from tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(file, arena_size=_ARENA_BYTES)
    outputs = []
    for image in images:
        interpreter.set_input(image[None], 0)
        interpreter.invoke()
        outputs.append(np.asarray(interpreter.get_output(0)).ravel().copy())
    with _standard_error() as printed:
        interpreter.print_allocations()
        printed.seek(0)
        found = dict(_ALLOCATION.findall(printed.read().decode()))
    return Interpretation(np.stack(outputs), int(found["head"]), int(found["total"]))


@contextmanager
def _standard_error() -> Iterator[IO[bytes]]:
    """Give a file to which this process prints its errors meanwhile, also from C++."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(kept, 2)
            os.close(kept)
