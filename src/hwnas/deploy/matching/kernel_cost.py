"""Predicted cost of a network's steps in `hwnas.kernels`, without running them.

Matching a network requires its ONNX file and takes seconds; the prediction takes microseconds. A
step knows its own sizes but not its neighbours, so the usual result of the matcher is assumed for
each kind of step: activations, normalisations, gates and residuals are fused into layers, and a
mean over a map into the convolution before it. The two layers of a squeeze-and-excitation block are
one launch. The two matrix products of attention are one launch, and so are the three layers before
them.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache

import torch

from hwnas.deploy.onnx.step_calls import StepCall, call_of_step
from hwnas.deploy.runtimes.triton import torch_type
from hwnas.deploy.targets.target import Target
from hwnas.kernels.accelerator import ACCELERATORS, Accelerator
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.tuning.choice import chosen_on
from hwnas.kernels.tuning.roofline import LaunchWork, roofline_ms
from hwnas.search_spaces import OperatorSignature

__all__ = ["KernelCost", "KernelSite", "kernel_work"]

_BYTES = 4  # per value, as steps count them
_WHOLE_MAP = 16  # values per mean from which a pooling is assumed to cover a whole map
_USUAL = "nvidia-h200"
_ATTENTION = 1 - 2  # launches: attention adds one, and the three layers before it become one
_FOLDED = ("activation", "layer_norm", "norm", "view")


@dataclass(frozen=True)
class KernelSite:
    """GPU, data type and batch size with which kernels run.

    Attributes:
        gpu: GPU, which need not be in this machine.
        dtype: Data type in which networks compute.
        batch: Images per run.
    """

    gpu: Accelerator
    dtype: torch.dtype
    batch: int = 1

    @classmethod
    def of(cls, target: Target, hardware: str) -> KernelSite:
        """Return the site of a target.

        Args:
            target: Target of the runtime ``triton``.
            hardware: Name of the GPU, as its driver reports it. A GPU that is neither in this
                machine nor among `ACCELERATORS` is assumed to be like an H200.
        """
        return cls(_accelerator(hardware), torch_type(target), target.device.batch)

    def bytes_of(self, activations: int, weights: int = 0) -> float:
        """Convert sizes in float32 at one image to bytes in the site's data type and batch size."""
        return (activations * self.batch + weights) * self.dtype.itemsize / _BYTES


def _accelerator(name: str) -> Accelerator:
    if torch.cuda.is_available() and Accelerator.here().name == name:
        return Accelerator.here()
    known = (gpu for gpu in ACCELERATORS.values() if name.startswith(gpu.name))
    return next(known, ACCELERATORS[_USUAL])


@dataclass(frozen=True)
class KernelCost:
    """Predicted cost of a step on a GPU; the costs of all steps of a network add up.

    Attributes:
        launches: Number of kernel launches; halves if two steps are one launch, and negative if a
            step merges launches of other steps.
        torch_launches: Number of these launches that are PyTorch's.
        moved_bytes: Bytes read and written in memory, each tensor once.
        asked_bytes: Bytes that programs request from the caches: all that each program reads.
        products: Number of multiplications, including those of padding.
        idle_products: Number of multiplications of padding.
        programs: Number of programs (thread blocks) of all launches.
        rounds: Number of programs that the busiest multiprocessor runs one after the other (waves).
        idle_rounds: Part of these rounds in which a multiprocessor is idle, on average.
        busiest_bytes: Bytes that the busiest multiprocessor requests.
        roofline_ms: Milliseconds by a roofline model of the busiest multiprocessor.
    """

    launches: float = 0.0
    torch_launches: float = 0.0
    moved_bytes: float = 0.0
    asked_bytes: float = 0.0
    products: float = 0.0
    idle_products: float = 0.0
    programs: float = 0.0
    rounds: float = 0.0
    idle_rounds: float = 0.0
    busiest_bytes: float = 0.0
    roofline_ms: float = 0.0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all quantities, in the order of `values`."""
        return tuple(each.name for each in fields(cls))

    @property
    def values(self) -> tuple[float, ...]:
        """Values of all quantities, in the order of the fields."""
        return astuple(self)


@lru_cache(maxsize=2**16)
def kernel_work(step: OperatorSignature, site: KernelSite) -> KernelCost:
    """Return the predicted cost of a step at a site.

    The cost is zero if a compiler drops the step or if it is fused into a layer.

    Args:
        step: Step at one image.
        site: Site at which the step runs. Kernel configurations are those known to be fast on its
            GPU.
    """
    if step.dead or step.kind in _FOLDED:
        return KernelCost()
    call = call_of_step(step, site.batch)
    if call is not None:
        return _of_call(step, call, site)
    if step.kind == "matmul":  # the scores, which are not stored, are the larger side
        smaller = min(step.read_bytes, step.written_bytes)
        return _even(site, site.bytes_of(smaller), step.macs, _ATTENTION / 2)
    if step.kind == "elementwise":  # reads a gate or a residual; the map is loaded already
        return _even(site, site.bytes_of(max(0, step.read_bytes - step.written_bytes)))
    if step.kind == "pool" and step.read_bytes >= _WHOLE_MAP * step.written_bytes:
        return _even(site, site.bytes_of(step.written_bytes))
    return _in_torch(step, site)


def _of_call(step: OperatorSignature, call: StepCall, site: KernelSite) -> KernelCost:
    operator = OPERATORS[call.operator]
    tensors = {
        name: torch.empty(shape, dtype=site.dtype, device="meta")
        for name, shape in call.shapes.items()
    }
    inputs = operator.bound(**tensors, **call.options)
    sizes = operator.sizes(inputs)
    choice = chosen_on(operator, tuple(sizes.items()), site.dtype, site.gpu)
    if choice.entry is not None and not choice.kernel:  # measured, and PyTorch was faster
        return _in_torch(step, site)
    work = LaunchWork.of(operator, inputs, choice.config, site.gpu)
    squeezed = step.kind == "pointwise" and call.shapes["x"][1] == 1
    starts = 0.5 if squeezed else float(work.launches)
    return KernelCost(
        launches=starts,
        moved_bytes=site.bytes_of(step.read_bytes + step.written_bytes, step.weight_bytes),
        asked_bytes=work.asked_bytes,
        products=work.products,
        idle_products=work.products - operator.work(sizes, site.dtype).macs,
        programs=work.programs,
        rounds=work.rounds,
        idle_rounds=work.rounds - work.waves,
        busiest_bytes=work.busiest_bytes,
        roofline_ms=roofline_ms(site.dtype, starts, work.busiest_bytes, work.busiest_products),
    )


def _in_torch(step: OperatorSignature, site: KernelSite) -> KernelCost:
    moved = site.bytes_of(step.read_bytes + step.written_bytes, step.weight_bytes)
    return replace(_even(site, moved, step.macs, 1.0), torch_launches=1.0)


def _even(site: KernelSite, moved: float, macs: int = 0, launches: float = 0.0) -> KernelCost:
    """Return the cost of bytes and products that are spread equally over all multiprocessors.

    Args:
        site: Site at which the step runs.
        moved: Bytes moved in a run.
        macs: Multiply-accumulates for one image.
        launches: Number of kernel launches.
    """
    parts, products = site.gpu.multiprocessors, macs * site.batch
    return KernelCost(
        launches=launches,
        moved_bytes=moved,
        asked_bytes=moved,
        products=products,
        busiest_bytes=moved / parts,
        roofline_ms=roofline_ms(site.dtype, launches, moved / parts, products / parts),
    )
