"""C code of integer networks, compiled and run on this machine."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.error_line import first_line
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.errors import ArtifactError

__all__ = ["compiled_session", "missing_c_compiler"]

_OPTIONS = ("-std=c99", "-O2", "-shared", "-fPIC")
_NUMBER = re.compile(r"#define \w+_(HEIGHT|WIDTH|CHANNELS|OUTPUTS|ZERO|SCALE) (\S+?)f?$", re.M)


def missing_c_compiler() -> str | None:
    """Return why no C can be compiled here and what to install, or None if it can."""
    if _compiler() is None:
        return "there is no C compiler (cc); run: apt-get install gcc"
    return None


def compiled_session(code: Path) -> ArraySession:
    """Compile code that `CSource` gave, and load it into this process.

    Args:
        code: C file, with its header beside it.

    Returns:
        Session that takes pixels, uint8 (N, H, W, C), and returns real numbers.

    Raises:
        ArtifactError: The files are damaged.
    """
    with loading(code):
        [name] = re.findall(r'^#include "(\w+)\.h"$', code.read_text(), re.M)
        found = _NUMBER.findall(code.with_name(f"{name}.h").read_text())
        numbers = {key: float(value) for key, value in found}
        shape = tuple(int(numbers[key]) for key in ("HEIGHT", "WIDTH", "CHANNELS"))
        run = _function(_library(code), name)
    values = ctypes.c_int8 * int(numbers["OUTPUTS"])

    def outputs_of(image: NDArray[np.uint8]) -> NDArray[np.float32]:
        steps = np.array(values.from_address(run(image)), np.float32) - np.float32(numbers["ZERO"])
        return steps * np.float32(numbers["SCALE"])

    def compute(images: NDArray[Any]) -> NDArray[Any]:
        pixels = np.ascontiguousarray(images, np.uint8)
        return np.stack([outputs_of(image) for image in pixels])

    return ArraySession(code, compute, shape, 1, {})


def _function(library: ctypes.CDLL, name: str) -> Callable[[NDArray[np.uint8]], int]:
    """Return the function that runs a network on an image, and gives the address of the outputs."""
    if hasattr(library, f"{name}_row"):
        take, restart = library[f"{name}_row"], library[f"{name}_restart"]
        take.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

        def run_by_rows(image: NDArray[np.uint8]) -> int:
            restart()
            found: list[int] = [take(row.ctypes.data) for row in image]
            return found[-1]

        return run_by_rows
    place, run = library[f"{name}_pixels"], library[f"{name}_run"]
    place.restype = run.restype = ctypes.c_void_p

    def run_whole(image: NDArray[np.uint8]) -> int:
        ctypes.memmove(place(), image.ctypes.data, image.nbytes)
        outputs: int = run()
        return outputs

    return run_whole


def _library(code: Path) -> ctypes.CDLL:
    if (compiler := _compiler()) is None:
        raise ArtifactError(f"{code} cannot be compiled: {missing_c_compiler()}")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "network.so")
        command = [compiler, *_OPTIONS, str(code), "-o", str(library)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise ArtifactError(f"{code} cannot be compiled: {first_line(OSError(made.stderr))}")
        return ctypes.CDLL(str(library))


def _compiler() -> str | None:
    named = [os.environ["CC"]] if "CC" in os.environ else ["cc", "gcc", "clang"]
    return next((found for found in map(shutil.which, named) if found), None)
