"""Features of networks on a target of hwnas's own kernels, known without running anything.

Shapes: N networks, S distinct operators, F features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from hwnas.deploy.targets.machine import processor_of
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.devices.shipped import shipped_profiles
from hwnas.predictors.features.blocks import BlockScaling
from hwnas.predictors.models.gaussian_process import Numbers, Parts
from hwnas.search_spaces import OperatorCountTable, OperatorSignature

if TYPE_CHECKING:
    from hwnas.deploy.matching.kernel_cost import KernelSite

__all__ = ["KERNELS", "KernelFeatures", "kernel_features"]

KERNELS = "kernels"
"""Name of the block of features."""
_NEAR = "kernels_near"
_UNITS = (("_bytes", 1e4), ("products", 1e5), ("_ms", 1e-3))


@dataclass(frozen=True)
class KernelFeatures:
    """Features of networks from the predicted resource usage of hwnas's kernels on a target.

    Attributes:
        site: GPU, data type and batch with which the kernels run.
        hardware: Name of the GPU, as its driver reports it; empty if there is none.
    """

    site: KernelSite
    hardware: str

    @property
    def note(self) -> str:
        """Remark on the GPU that the features assume; empty if there is nothing to remark."""
        if self.hardware.startswith(self.site.gpu.name):
            return ""
        found = f"the GPU is {self.hardware}" if self.hardware else "no GPU was found"
        return f"{found}; the resource usage of kernels is predicted for {self.site.gpu.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all features."""
        from hwnas.deploy.matching.kernel_cost import KernelCost

        return KernelCost.names()

    def quantities(self, steps: OperatorCountTable) -> Numbers:
        """Return launches, bytes, products, programs and rounds, of shape (N, F)."""
        found = steps.total(_works(steps.steps, self.site))
        ends, starts, moved = _maps(steps.steps)
        spared = np.minimum(steps.total(ends), steps.total(starts))
        found[:, self.names.index("launches")] -= spared.sum(1)
        found[:, self.names.index("moved_bytes")] -= 2 * self.site.bytes_of(1) * (spared @ moved)
        return np.maximum(found, 0.0)

    def block(self, steps: OperatorCountTable) -> Numbers:
        """Return the logarithms of 1 + `quantities`, in small units, (N, F)."""
        units = [next((u for end, u in _UNITS if n.endswith(end)), 1.0) for n in self.names]
        features: Numbers = np.log1p(self.quantities(steps) / np.array(units))
        return features

    def parts(self, block: Numbers) -> Parts:
        """Return a block as inputs of the Gaussian process's kernel."""
        scaled = self._scale(block)
        return Parts({KERNELS: scaled}, {_NEAR: 2.0 * scaled})

    @cached_property
    def _scale(self) -> BlockScaling:
        """Scaling over the same networks as that of all other features."""
        return BlockScaling.over(self.block(next(iter(shipped_profiles().values())).steps))


def kernel_features(device: str, hardware: str = "") -> KernelFeatures | None:
    """Return the additional features of networks on a device.

    The result is None if the runtime of the device is not hwnas's own, or Triton is not installed.

    Args:
        device: Name of a target, or of a custom device.
        hardware: Name of the device's GPU; if empty, that of the target's machine now.
    """
    try:
        target = Target.parse(device)
    except ConfigError:  # a custom device, or one that was removed
        return None
    if target.device.runtime != "triton" or find_spec("triton") is None:
        return None
    return _features(target, hardware)


@lru_cache(maxsize=16)
def _features(target: Target, hardware: str) -> KernelFeatures:
    from hwnas.deploy.matching.kernel_cost import KernelSite

    gpu = hardware or processor_of(target.device.hardware)
    return KernelFeatures(KernelSite.of(target, gpu), gpu)


@lru_cache(maxsize=4)  # networks of one space, however many, consist of the same operators
def _works(steps: tuple[OperatorSignature, ...], site: KernelSite) -> Numbers:
    """Return the predicted kernel cost of each operator, of shape (S, F)."""
    from hwnas.deploy.matching.kernel_cost import KernelCost, kernel_work

    table = [kernel_work(step, site).values for step in steps]
    return np.array(table, dtype=np.float64).reshape(-1, len(KernelCost.names()))


@lru_cache(maxsize=4)
def _maps(steps: tuple[OperatorSignature, ...]) -> tuple[Numbers, Numbers, Numbers]:
    """Find feature maps between an expansion and a depthwise convolution, of B distinct sizes.

    The two operators are one launch that does not store the map between them. Operator counts do
    not say which two belong together, only that both have a map of the same size.

    Returns:
        Whether each operator writes a map of each size as an expansion, and whether it reads one as
        a depthwise convolution, each of shape (S, B); the sizes in bytes, of shape (B,).
    """
    sizes = sorted({s.read_bytes for s in steps if s.kind == "depthwise" and not s.dead})
    place = {size: index for index, size in enumerate(sizes)}
    ends, starts = np.zeros((2, len(steps), len(sizes)))
    for row, step in enumerate(steps):
        if step.dead:
            continue
        if step.kind == "depthwise":
            starts[row, place[step.read_bytes]] = 1
        elif step.kind == "pointwise" and step.stride == 1 and step.written_bytes in place:
            ends[row, place[step.written_bytes]] = 1
    return ends, starts, np.array(sizes, dtype=np.float64)
