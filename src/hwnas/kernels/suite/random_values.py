"""Random tensors for the examples of operators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

__all__ = ["RandomValues"]


@dataclass(frozen=True)
class RandomValues:
    """Source of random tensors.

    Values are drawn on the CPU, in float32 or int8, so that a seed gives the same on every device.

    Attributes:
        dtype: Type of the floating tensors.
        generator: Random generator of the CPU.
        device: Device of the tensors.
    """

    dtype: torch.dtype
    generator: Generator
    device: torch.device

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Return values of a normal distribution with mean 0 and standard deviation ``scale``."""
        return (torch.randn(shape, generator=self.generator) * scale).to(self.device, self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Return uniform values from 0 to 1."""
        return torch.rand(shape, generator=self.generator).to(self.device, self.dtype)

    def steps(self, *shape: int) -> Tensor:
        """Return uniform values of all of int8."""
        drawn = torch.randint(-128, 128, shape, generator=self.generator, dtype=torch.int8)
        return drawn.to(self.device)
