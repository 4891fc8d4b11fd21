"""C code of integer networks on an emulated microcontroller: QEMU's boards mps2 with a Cortex-M."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.error_line import first_line
from hwnas.deploy.microcontroller.c_source import CSource
from hwnas.errors import ConfigError, DeviceError

__all__ = ["BOARDS", "Emulation", "emulated", "missing_emulator"]

BOARDS: Mapping[str, str] = {
    "cortex-m3": "mps2-an385",
    "cortex-m4": "mps2-an386",
    "cortex-m7": "mps2-an500",
}
"""Board of QEMU for each processor core."""
_COMPILER, _EMULATOR = "arm-none-eabi-gcc", "qemu-system-arm"
_OPTIONS = (
    "-mthumb", "-std=gnu99", "-O2", "-ffreestanding", "-nostdlib",
    "-fno-tree-loop-distribute-patterns", "-lgcc",
)  # fmt: skip
_INSTRUCTIONS_PER_TICK = 40  # one instruction is one nanosecond, and the timer has 25 MHz
_BYTES_OF_IMAGES = 2**21  # half of the memory for code
_SECONDS = 600


@dataclass(frozen=True)
class Emulation:
    """Outputs and instruction counts of runs on an emulated processor.

    Attributes:
        outputs: int8 (N, ...).
        instructions: Number of instructions of each run, (N,), in steps of 40.
    """

    outputs: NDArray[np.int8]
    instructions: NDArray[np.int64]


def missing_emulator() -> str | None:
    """Return what is missing for emulated runs and how to install it, or None if nothing is."""
    if shutil.which(_COMPILER) is None:
        return f"{_COMPILER} is not installed; run: apt-get install gcc-arm-none-eabi"
    if shutil.which(_EMULATOR) is None:
        return f"{_EMULATOR} is not installed; run: apt-get install qemu-system-arm"
    return None


def emulated(source: CSource, pixels: NDArray[np.uint8], core: str = "cortex-m4") -> Emulation:
    """Compile code for a processor core, and run it on images in QEMU.

    An emulator knows no pipeline, caches or slow flash, so instructions are a simulated cost and no
    time.

    Args:
        source: Code of a network.
        pixels: Images, uint8 (N, H, W, C), of the size of the network's input.
        core: Processor core, a key of `BOARDS`.

    Raises:
        ConfigError: The core is unknown.
        DeviceError: The compiler or the emulator is missing or fails, or the network does not fit.
    """
    if core not in BOARDS:
        raise ConfigError(f"core is {core!r}; expected one of {', '.join(BOARDS)}")
    if (reason := missing_emulator()) is not None:
        raise DeviceError(f"nothing can be emulated here: {reason}")
    most = max(1, _BYTES_OF_IMAGES // pixels[0].size)
    parts = (pixels[start : start + most] for start in range(0, len(pixels), most))
    lines = [line.split() for part in parts for line in _run(source, part, core)]
    outputs = np.frombuffer(bytes.fromhex("".join(text for _, text in lines)), np.int8)
    ticks = np.array([int(text, 16) for text, _ in lines], np.int64)
    shape = source.network.output_shape
    return Emulation(outputs.reshape(len(pixels), *shape), ticks * _INSTRUCTIONS_PER_TICK)


def _run(source: CSource, pixels: NDArray[np.uint8], core: str) -> Sequence[str]:
    """Return the lines that the program prints, one an image."""
    board = files(__package__) / "board"
    with tempfile.TemporaryDirectory() as name, as_file(board) as place:
        folder = Path(name)
        (folder / f"{source.name}.h").write_text(source.header)
        (folder / "network.c").write_text(source.code)
        (folder / "images.h").write_text("\n".join(_images(source, pixels)))
        program = folder / "program.elf"
        sources = [folder / "network.c", place / "main.c", place / "startup.c"]
        where: list[str | Path] = ["-I", folder, "-T", place / "mps2.ld", "-o", program]
        _checked([_COMPILER, f"-mcpu={core}", *sources, *where, *_OPTIONS])
        emulator = [_EMULATOR, "-machine", BOARDS[core], "-nographic", "-monitor", "none"]
        counted = ["-icount", "shift=0", "-semihosting-config", "enable=on,target=native"]
        printed = _checked([*emulator, *counted, "-serial", "none", "-kernel", program])
    lines = printed.split("\n")[:-1]
    if len(lines) != len(pixels):
        raise DeviceError(f"the emulated program ended after {len(lines)} of {len(pixels)} images")
    return lines


def _images(source: CSource, pixels: NDArray[np.uint8]) -> Iterator[str]:
    """Yield the lines of a header with images."""
    size = pixels[0].size
    yield f'#include "{source.name}.h"'
    if source.by_rows:
        yield f"#define ROW {source.name}_row"
        yield f"#define ROW_BYTES {pixels[0, 0].size}"
    else:
        yield f"#define PIXELS {source.name}_pixels"
        yield f"#define RUN {source.name}_run"
    yield f"#define OUTPUTS {source.network.tensors[source.network.output].size}"
    yield f"#define IMAGES {len(pixels)}"
    yield f"#define IMAGE_BYTES {size}"
    yield f"static const uint8_t images[{len(pixels)}][{size}] = {{"
    for image in pixels:
        yield "{" + ",".join(map(str, image.ravel().tolist())) + "},"
    yield "};"


def _checked(command: Sequence[str | Path]) -> str:
    """Run a command, and return what it prints to standard error and output.

    Raises:
        DeviceError: It fails or does not end.
    """
    try:
        made = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"{command[0]} did not end within {_SECONDS} s") from error
    if made.returncode:
        raise DeviceError(f"{command[0]} failed: {first_line(OSError(made.stdout))}")
    return made.stdout
