"""GPUs, described by the properties that limit kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from hwnas.errors import ConfigError, DeviceError
from hwnas.plugin import closest

__all__ = ["ACCELERATORS", "Accelerator"]

WARP = 32
# Most resident programs of a multiprocessor by ten times the compute capability, if not 32.
_PROGRAMS = {75: 16, 86: 16, 87: 16, 89: 24, 110: 24, 120: 24, 121: 24}


@dataclass(frozen=True)
class Accelerator:
    """GPU model with the limits of its multiprocessors.

    Attributes:
        name: Name that the driver reports.
        capability: Ten times the compute capability, so 90 for Hopper.
        multiprocessors: Number of multiprocessors.
        shared_bytes: Most bytes of shared memory of one program.
        registers: Number of 32-bit registers of a multiprocessor.
        registers_per_thread: Most registers of one thread.
        warps: Most resident warps of a multiprocessor.
        programs: Most resident programs of a multiprocessor.
        l2_bytes: Size of the second-level cache.
    """

    name: str
    capability: int
    multiprocessors: int
    shared_bytes: int
    registers: int = 65536
    registers_per_thread: int = 255
    warps: int = 64
    programs: int = 32
    l2_bytes: int = 50 * 2**20

    @property
    def key(self) -> str:
        """Name of the GPU as the stem of a file name."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-.")

    @classmethod
    def here(cls, index: int | None = None) -> Accelerator:
        """Return a GPU of this machine.

        Args:
            index: Index among the GPUs that PyTorch sees; the current one if None.

        Raises:
            DeviceError: PyTorch finds no GPU that it can use.
        """
        if not torch.cuda.is_available():
            raise DeviceError(
                "PyTorch found no usable GPU; name one of "
                f"{', '.join(ACCELERATORS)} to compile for a GPU that is not in this machine"
            )
        # PyTorch declares fewer attributes of this object than it has, hence Any.
        gpu: Any = torch.cuda.get_device_properties(
            torch.cuda.current_device() if index is None else index
        )
        capability = 10 * gpu.major + gpu.minor
        return cls(
            name=gpu.name,
            capability=capability,
            multiprocessors=gpu.multi_processor_count,
            shared_bytes=gpu.shared_memory_per_block_optin,
            registers=gpu.regs_per_multiprocessor,
            warps=gpu.max_threads_per_multi_processor // WARP,
            programs=_PROGRAMS.get(capability, 32),
            l2_bytes=gpu.L2_cache_size,
        )

    @classmethod
    def named(cls, name: str) -> Accelerator:
        """Return a known GPU, which need not be in this machine.

        Raises:
            ConfigError: The GPU is unknown; the message lists the known ones.
        """
        if name not in ACCELERATORS:
            raise ConfigError(f"unknown accelerator {name!r}; {closest(name, ACCELERATORS)}")
        return ACCELERATORS[name]


# From NVIDIA's CUDA C++ Programming Guide, "Compute Capabilities", and the GPUs' data sheets.
ACCELERATORS: dict[str, Accelerator] = {
    gpu.key: gpu
    for gpu in (
        Accelerator("NVIDIA A100", 80, 108, 163 * 1024, l2_bytes=40 * 2**20),
        Accelerator("NVIDIA H200", 90, 132, 227 * 1024, l2_bytes=60 * 2**20),
        Accelerator("NVIDIA B200", 100, 148, 227 * 1024, l2_bytes=126 * 2**20),
    )
}
