"""Roofline model of an operator's launches, from their grids, without compiling or running them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.operator import Config, Inputs, Operator

__all__ = ["LaunchWork", "roofline_ms"]

# Orders of magnitude, not those of a particular GPU; a fitted model accounts for the GPU.
_LAUNCH_NS = 2000.0
_BYTES_PER_NS = 40.0  # per multiprocessor
_PRODUCTS_PER_NS = {1: 1000.0, 2: 500.0, 4: 100.0}  # per multiprocessor, by bytes per value


def roofline_ms(dtype: torch.dtype, launches: float, moved: float, products: float) -> float:
    """Return the milliseconds of one multiprocessor by a roofline model.

    Args:
        dtype: Type of the values.
        launches: Number of kernel launches.
        moved: Bytes that the multiprocessor requests.
        products: Multiplications of the multiprocessor.
    """
    rate = _PRODUCTS_PER_NS[dtype.itemsize]
    return 1e-6 * (launches * _LAUNCH_NS + max(moved / _BYTES_PER_NS, products / rate))


@dataclass(frozen=True)
class LaunchWork:
    """Work of an operator's launches on a GPU.

    Attributes:
        dtype: Type of the first input.
        launches: Number of launches.
        programs: Number of programs of all launches.
        waves: Programs per multiprocessor, added up over the launches.
        rounds: Number of programs that the busiest multiprocessor runs one after the other.
        asked_bytes: Bytes that all programs request from the caches.
        products: Multiplications of all programs, with those of padding.
        share: Share of bytes and multiplications on the busiest multiprocessor, from 0 to 1.
    """

    dtype: torch.dtype
    launches: int
    programs: int
    waves: float
    rounds: int
    asked_bytes: int
    products: int
    share: float

    @classmethod
    def of(cls, operator: Operator, inputs: Inputs, config: Config, gpu: Accelerator) -> LaunchWork:
        """Return the work of an operator in a configuration.

        Args:
            operator: Operator.
            inputs: Its inputs, from `Operator.bound`; tensors may be on the device ``meta``.
            config: Configuration of the operator's kernels.
            gpu: GPU, which need not be in this machine.
        """
        first: torch.Tensor = next(iter(inputs.values()))
        sizes, dtype = operator.sizes(inputs), first.dtype
        launches = operator.launches(inputs, operator.outputs(inputs), config)
        programs = [math.prod(launch.grid) for launch in launches]
        waves = [count / gpu.multiprocessors for count in programs]
        rounds = [math.ceil(wave) for wave in waves]
        return cls(
            dtype,
            len(launches),
            sum(programs),
            sum(waves),
            sum(rounds),
            operator.traffic(sizes, dtype, config),
            operator.products(sizes, dtype, config),
            max(r / w for r, w in zip(rounds, waves, strict=True)) / gpu.multiprocessors,
        )

    @property
    def busiest_bytes(self) -> float:
        """Bytes that the busiest multiprocessor requests."""
        return self.asked_bytes * self.share

    @property
    def busiest_products(self) -> float:
        """Multiplications of the busiest multiprocessor."""
        return self.products * self.share

    @property
    def milliseconds(self) -> float:
        """Time by a roofline model of the busiest multiprocessor, in milliseconds."""
        return roofline_ms(self.dtype, self.launches, self.busiest_bytes, self.busiest_products)
