"""Ceilings of the GPU: throughput of PyTorch's copies and of its large matrix products."""

from __future__ import annotations

from typing import Any

import torch

from experiments.kernels.place import Place
from hwnas.kernels.suite.timer import Times

__all__ = ["COPY", "PRODUCTS", "measure_ceilings"]

COPY = "copy"
PRODUCTS = {torch.float16: "float16 product", torch.int8: "int8 product"}
_COPIED_BYTES, _SIDE = 2**32, 8192
_RUNS = 10


def measure_ceilings(place: Place, _: None) -> dict[str, Any]:
    """Measure copied bytes, read and written, and multiplications with additions, per second."""
    size, side = (2**16, 64) if place.simulated else (_COPIED_BYTES, _SIDE)
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    timer = place.timer("warm")

    def rate(amount: float, run: Any) -> dict[str, Any]:
        times = Times.of(timer.prepare(run)(_RUNS))
        return {"rate": amount / (times.p50_us * 1e-6), "times": times.to_json()}

    found = {COPY: rate(2 * size, lambda: target.copy_(source))}
    one, other = (torch.randn(side, side, device=place.device).half() for _ in range(2))
    found[PRODUCTS[torch.float16]] = rate(2 * side**3, lambda: one @ other)
    whole, columns = (torch.randint(-128, 128, (side, side), device=place.device).to(torch.int8)
                      for _ in range(2))  # fmt: skip
    found[PRODUCTS[torch.int8]] = rate(2 * side**3, lambda: torch._int_mm(whole, columns.T))
    return found
