"""Random tensors that examples of operators are made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

__all__ = ["RandomValues"]


@dataclass(frozen=True)
class RandomValues:
    """Where they come from, and what they shall be.

    They are drawn in float32 on the CPU, so that a seed gives the same on every device.

    Attributes:
        dtype: Of all tensors.
        generator: Of the CPU.
        device: Where the tensors go.
    """

    dtype: torch.dtype
    generator: Generator
    device: torch.device

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Of a normal distribution around zero, with this standard deviation."""
        return (torch.randn(shape, generator=self.generator) * scale).to(self.device, self.dtype)

    def uniform(self, *shape: int) -> Tensor:
        """Between 0 and 1."""
        return torch.rand(shape, generator=self.generator).to(self.device, self.dtype)

    def steps(self, *shape: int) -> Tensor:
        """All that int8 has, each as often."""
        drawn = torch.randint(-128, 128, shape, generator=self.generator, dtype=torch.int8)
        return drawn.to(self.device)
