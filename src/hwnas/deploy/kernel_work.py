"""What steps of networks take where `hwnas.kernels` run them, before anything is run.

To match a network takes its ONNX file, and so seconds; this takes microseconds. A step knows its
sizes and not its neighbours, so what the matcher does with most steps of a kind is taken for
granted: activations, normalisations, gates and residuals are folded into layers, a mean over a map
into the convolution before it, the two layers of a squeeze-excite are one launch, and so are the
two products of attention, and its three layers before them.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache

import torch

from hwnas.deploy.device import Target
from hwnas.deploy.runtimes.triton import torch_type
from hwnas.deploy.step_calls import StepCall, call_of_step
from hwnas.kernels.accelerator import ACCELERATORS, Accelerator
from hwnas.kernels.catalogue import OPERATORS
from hwnas.kernels.choice import chosen_on
from hwnas.kernels.operator import Config
from hwnas.search_spaces import Step

__all__ = ["KernelSite", "KernelWork", "kernel_work"]

_BYTES = 4  # of a value, as steps count them
_WHOLE_MAP = 16  # values for each mean, from which on it is taken to be of a whole map
_USUAL = "nvidia-h200"
_ATTENTION = 1 - 2  # launches: it is one, and the layers before it are two less
_FOLDED = ("activation", "layer_norm", "norm", "view")
# Orders of size, of no card in particular; how a card compares is left to what is fitted.
_LAUNCH_NS = 2000.0
_BYTES_PER_NS = 40.0  # of one multiprocessor
_PRODUCTS_PER_NS = {2: 500.0, 4: 100.0}  # of one multiprocessor, by bytes of a value


@dataclass(frozen=True)
class KernelSite:
    """Where kernels run, and on what.

    Attributes:
        card: Need not be here.
        dtype: What networks compute in.
        batch: Images a run.
    """

    card: Accelerator
    dtype: torch.dtype
    batch: int = 1

    @classmethod
    def of(cls, target: Target, hardware: str) -> KernelSite:
        """That of a target.

        Args:
            target: Its runtime is ours.
            hardware: What its card's driver calls it. A card that is neither here nor known without
                being here is taken to be like an H200.
        """
        return cls(_card(hardware), torch_type(target), target.device.batch)

    def bytes_of(self, activations: int, weights: int = 0) -> float:
        """Bytes here of what are so many bytes in float32 at one image."""
        return (activations * self.batch + weights) * self.dtype.itemsize / _BYTES


def _card(name: str) -> Accelerator:
    if torch.cuda.is_available() and Accelerator.here().name == name:
        return Accelerator.here()
    known = (card for card in ACCELERATORS.values() if name.startswith(card.name))
    return next(known, ACCELERATORS[_USUAL])


@dataclass(frozen=True)
class KernelWork:
    """What a step takes; all of it adds up over the steps of a network.

    Attributes:
        launches: Starts of kernels; halves where two steps are one launch, and negative where a
            step makes one of others.
        torch_launches: Those of them that are PyTorch's.
        moved_bytes: Read and written in memory, each tensor once.
        asked_bytes: That programs ask of the caches, each what it reads itself.
        products: Multiplications, of padding too.
        idle_products: Those of them that are of padding.
        programs: Of all launches.
        rounds: Programs that the busiest multiprocessor runs one after the other.
        idle_rounds: Those of them in which a multiprocessor has nothing to run, in the mean.
        busiest_bytes: That the busiest multiprocessor asks for.
        card_ms: Milliseconds by a roofline of that multiprocessor.
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
    card_ms: float = 0.0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Of all quantities, in the order of `values`."""
        return tuple(each.name for each in fields(cls))

    @property
    def values(self) -> tuple[float, ...]:
        """All quantities."""
        return astuple(self)


@lru_cache(maxsize=2**16)
def kernel_work(step: Step, site: KernelSite) -> KernelWork:
    """What a step takes at a site; nothing where a compiler drops it or a layer takes it in.

    Args:
        step: At one image.
        site: Where it runs. Configurations are those that are known to be fast on its card.
    """
    if step.dead or step.kind in _FOLDED:
        return KernelWork()
    call = call_of_step(step, site.batch)
    if call is not None:
        return _of_call(step, call, site)
    if step.kind == "matmul":  # scores, which attention does not store, are the larger side
        smaller = min(step.read_bytes, step.written_bytes)
        return _even(site, site.bytes_of(smaller), step.macs, _ATTENTION / 2)
    if step.kind == "elementwise":  # a gate or a residual is read, the map is there already
        return _even(site, site.bytes_of(max(0, step.read_bytes - step.written_bytes)))
    if step.kind == "pool" and step.read_bytes >= _WHOLE_MAP * step.written_bytes:
        return _even(site, site.bytes_of(step.written_bytes))
    return _in_torch(step, site)


def _of_call(step: Step, call: StepCall, site: KernelSite) -> KernelWork:
    operator = OPERATORS[call.operator]
    tensors = {
        name: torch.empty(shape, dtype=site.dtype, device="meta")
        for name, shape in call.shapes.items()
    }
    inputs = operator.bound(**tensors, **call.options)
    sizes = operator.sizes(inputs)
    choice = chosen_on(operator, tuple(sizes.items()), site.dtype, site.card)
    if choice.entry is not None and not choice.kernel:  # measured, and PyTorch was faster
        return _in_torch(step, site)
    launches = operator.launches(inputs, operator.outputs(inputs), choice.config)
    made = _products(call, launches[0].grid, choice.config)
    waves = [math.prod(launch.grid) / site.card.multiprocessors for launch in launches]
    rounds = [math.ceil(wave) for wave in waves]
    share = max(r / w for r, w in zip(rounds, waves, strict=True)) / site.card.multiprocessors
    asked = operator.traffic(sizes, site.dtype, choice.config)
    squeezed = step.kind == "pointwise" and call.shapes["x"][1] == 1
    starts = 0.5 if squeezed else float(len(launches))
    return KernelWork(
        launches=starts,
        moved_bytes=site.bytes_of(step.read_bytes + step.written_bytes, step.weight_bytes),
        asked_bytes=asked,
        products=made,
        idle_products=made - operator.work(sizes, site.dtype).macs,
        programs=sum(math.prod(launch.grid) for launch in launches),
        rounds=sum(rounds),
        idle_rounds=sum(rounds) - sum(waves),
        busiest_bytes=asked * share,
        card_ms=_milliseconds(site, starts, asked * share, made * share),
    )


def _products(call: StepCall, grid: tuple[int, ...], config: Config) -> int:
    """Multiplications of whole blocks; parts of sums share one block of the result."""
    if "BLOCK_M" not in config:
        return math.prod(grid) * config["BLOCK_P"] * config["BLOCK_C"] * call.summed
    steps = -(-call.summed // config["BLOCK_K"])
    block = config["BLOCK_M"] * config["BLOCK_N"] * config["BLOCK_K"]
    return math.prod(grid[:2]) * block * steps


def _in_torch(step: Step, site: KernelSite) -> KernelWork:
    moved = site.bytes_of(step.read_bytes + step.written_bytes, step.weight_bytes)
    return replace(_even(site, moved, step.macs, 1.0), torch_launches=1.0)


def _even(site: KernelSite, moved: float, macs: int = 0, launches: float = 0.0) -> KernelWork:
    """Bytes, and multiplications of each image, that all multiprocessors share evenly."""
    parts, products = site.card.multiprocessors, macs * site.batch
    return KernelWork(
        launches=launches,
        moved_bytes=moved,
        asked_bytes=moved,
        products=products,
        busiest_bytes=moved / parts,
        card_ms=_milliseconds(site, launches, moved / parts, products / parts),
    )


def _milliseconds(site: KernelSite, launches: float, moved: float, products: float) -> float:
    rate = _PRODUCTS_PER_NS[site.dtype.itemsize]
    return 1e-6 * (launches * _LAUNCH_NS + max(moved / _BYTES_PER_NS, products / rate))
