"""Resource usage of compiled kernels on a multiprocessor, known without a GPU to run them on."""

from __future__ import annotations

import inspect
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import DeviceError
from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.launch import Launch, interpreting

__all__ = ["Resources", "compile_ahead"]

_POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
_ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Resources:
    """Resource usage of one program of a kernel.

    Attributes:
        registers: Registers of each thread.
        spilled_bytes: Bytes of spilled registers per thread, stored and loaded.
        shared_bytes: Bytes of shared memory.
        warps: Number of warps, of 32 threads each.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    warps: int

    def occupancy(self, gpu: Accelerator) -> float:
        """Return the share of a multiprocessor's warps that can be resident, from 0 to 1.

        As in cuda_occupancy.h of CUDA: each quarter of a multiprocessor gives registers to its
        warps in units of 256, and programs get shared memory in units of 128 bytes, with 1 KiB more
        for the system.
        """
        per_quarter = gpu.registers // 4 // _multiple(self.registers * WARP, 256)
        by_registers = 4 * per_quarter // self.warps
        by_memory = (gpu.shared_bytes + 1024) // _multiple(self.shared_bytes + 1024, 128)
        programs = min(by_registers, by_memory, gpu.warps // self.warps, gpu.programs)
        return programs * self.warps / gpu.warps


def _multiple(value: int, unit: int) -> int:
    """Return the least multiple of a unit that is not below a value."""
    return -(-value // unit) * unit


def compile_ahead(launch: Launch, gpu: Accelerator) -> Resources:
    """Compile a kernel for a GPU that need not be in this machine, in 0.2 to 2 seconds.

    Args:
        launch: Launch of the kernel. Only types and addresses of its tensors are read, so they can
            be on any device.
        gpu: NVIDIA GPU.

    Raises:
        DeviceError: Kernels are interpreted in this process, the compiler refuses the kernel, or
            the kernel needs more shared memory than a program can have.
    """
    if interpreting():
        raise DeviceError(
            "kernels cannot be compiled in a process that interprets them; unset TRITON_INTERPRET"
        )
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = GPUTarget("cuda", gpu.capability, WARP)
    try:
        compiled = triton.compile(ASTSource(launch.kernel, *_types(launch)), target, launch.options)
    except Exception as error:  # the compiler's passes share no class of errors
        raise DeviceError(
            f"{launch.kernel.__name__} cannot be compiled for {gpu.name}: {error}"
        ) from error
    shared_bytes = compiled.metadata.shared
    if shared_bytes > gpu.shared_bytes:  # Triton itself only checks when it loads the kernel
        raise DeviceError(
            f"{launch.kernel.__name__} needs {shared_bytes} bytes of shared memory, and a program "
            f"on {gpu.name} can have {gpu.shared_bytes}"
        )
    registers, spilled = _assembled(compiled.asm["ptx"], gpu.capability)
    return Resources(registers, spilled, shared_bytes, launch.num_warps)


def _types(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
    """Return types, constants and known multiples of 16, as Triton finds them at a launch.

    They have Triton's own format, including attributes that say nothing, so that a launch finds in
    Triton's cache on disk what was compiled here.
    """
    types: dict[str, str] = {}
    parameters = inspect.signature(launch.kernel.fn).parameters
    constants = {
        name: parameters[name].default for name in parameters if name not in launch.arguments
    } | dict(launch.constants)
    attributes: dict[tuple[int], Any] = {}
    for place, name in enumerate(launch.kernel.arg_names):
        if name in constants:
            types[name], attributes[place,] = "constexpr", []
            continue
        value = launch.arguments[name]
        types[name], multiple = _type(value)
        if types[name] == "constexpr":
            constants[name] = value
        if not isinstance(value, bool | float):
            attributes[place,] = _ALIGNED if multiple else []
    return types, constants, attributes


def _type(value: Tensor | int | float | None) -> tuple[str, bool]:
    """Return the type of an argument, and whether it is known to be a multiple of 16."""
    if isinstance(value, Tensor):
        return _POINTERS[value.dtype], value.data_ptr() % 16 == 0
    if isinstance(value, bool):
        return "u1", False
    if isinstance(value, float):
        return "fp32", False
    if value is None or value == 1:
        return "constexpr", False
    return ("i32" if -(2**31) <= value < 2**31 else "i64"), value % 16 == 0


def _assembled(ptx: str, capability: int) -> tuple[int, int]:
    """Return registers and spilled bytes of a thread, as NVIDIA's assembler reports them."""
    from triton.backends.nvidia.compiler import get_ptxas

    architecture = f"sm_{capability}{'a' if capability >= 90 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={architecture}", source.name]
        done = subprocess.run(
            [*command, "-o", "kernel.cubin"], cwd=folder, capture_output=True, text=True, check=True
        )
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)
    assert registers, done.stderr
    return int(registers[1]), sum(map(int, spills))
