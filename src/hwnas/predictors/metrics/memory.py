"""Peak memory of networks in ONNX Runtime, from their graphs and a few measurements.

The memory of activations is not a sum over operators. Activations lie in an arena that grows by
regions of doubling size, never shrinks, and lays out the activations a second time once their sizes
are known. This module simulates the arena operator by operator. Little remains to be learnt: the
memory that a weight takes while it is loaded and packed, and the memory of each operator of the
graph.

Shapes: N networks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import ndtri, stdtrit

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.estimate import Estimate, check_pairs
from hwnas.predictors.features.blocks import BlockScaling
from hwnas.predictors.models.gaussian_process import Mixture, Numbers, Parts, Prior
from hwnas.search_spaces import NetworkOperator, Workload

__all__ = ["MINIMUM_MEASUREMENTS", "MemoryPredictor", "arena_bytes", "memory_features"]

MINIMUM_MEASUREMENTS = 3
METRIC = "peak_memory_bytes"

_PAGE = 4096
_ALIGNMENT = 256  # bytes; of the arena's chunks
_FIRST_REGION = 2**20
_MOST_UNUSED = 128 * 2**20  # bytes; a chunk with more to spare is split in any case
_CHANNELS = 16  # float32 convolutions pad channels to a multiple of this (AVX-512)
_LOADED = 1e5  # bytes that loading takes for any network
_LOADED_PER_WEIGHT = 2.3  # bytes per byte of float32 weights, even if they are quantised
_LOADED_PER_OPERATOR = {"fp32": 1e4, "int8": 2.7e4}  # bytes for each operator in the file
_INT8_SHARE = 0.25  # of the bytes of a float32 tensor
_POINTER = 8  # bytes
_FEATURES = 3
_PRIOR = Prior.vague(2)


@dataclass
class _Chunk:
    """Piece of a region: its offset and size in bytes."""

    start: int
    size: int
    free: bool = True


@dataclass
class _Region:
    """Memory that the arena got in one piece, and the ranges of bytes that were ever in use."""

    chunks: list[_Chunk]
    used: list[tuple[int, int]] = field(default_factory=list)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the pages that were ever in use."""
        pages = end = 0
        for start, stop in sorted(self.used):
            first, last = start // _PAGE, -(-stop // _PAGE)
            pages += max(last - max(first, end), 0)
            end = max(end, last)
        return pages * _PAGE


class _Arena:
    """Model of ONNX Runtime's ``BFCArena``: best fit, split and merged chunks, doubling regions."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []
        self._next_region = _FIRST_REGION

    @property
    def resident_bytes(self) -> int:
        """Bytes that were ever in use; the arena gives nothing back."""
        return sum(region.resident_bytes for region in self._regions)

    def allocate(self, size: int) -> tuple[_Region, _Chunk]:
        """Allocate the smallest free chunk that is large enough, or one of a new region."""
        wanted = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        fitting = [
            (region, chunk)
            for region in self._regions
            for chunk in region.chunks
            if chunk.free and chunk.size >= wanted
        ]
        region, chunk = min(fitting, key=lambda f: f[1].size) if fitting else self._grow(wanted)
        if chunk.size >= 2 * wanted or chunk.size - wanted >= _MOST_UNUSED:
            rest = _Chunk(chunk.start + wanted, chunk.size - wanted)
            region.chunks.insert(region.chunks.index(chunk) + 1, rest)
            chunk.size = wanted
        chunk.free = False
        region.used.append((chunk.start, chunk.start + size))
        return region, chunk

    def _grow(self, wanted: int) -> tuple[_Region, _Chunk]:
        large_enough = wanted <= self._next_region
        while wanted > self._next_region:
            self._next_region *= 2
        region = _Region([_Chunk(0, self._next_region)])
        self._regions.append(region)
        if large_enough:
            self._next_region *= 2
        return region, region.chunks[0]

    def release(self, held: tuple[_Region, _Chunk]) -> None:
        """Free a chunk, and merge it with free chunks beside it."""
        region, chunk = held
        chunk.free = True
        place = region.chunks.index(chunk)
        for left in (place, place - 1):
            pair = region.chunks[left : left + 2] if left >= 0 else []
            if len(pair) == 2 and pair[0].free and pair[1].free:
                pair[0].size += pair[1].size
                del region.chunks[left + 1]


@dataclass(frozen=True)
class _Event:
    """Allocation or release of a buffer, with its size in bytes."""

    action: Literal["make", "drop"]
    buffer: int
    size: int


def arena_bytes(workload: Workload, number_format: str = "fp32") -> int:
    """Return the bytes that activations take in ONNX Runtime's arena once a network has run twice.

    Args:
        workload: Network, at the batch that it runs with.
        number_format: ``"fp32"`` or ``"int8"``.
    """
    events = _events(workload, number_format)
    arena = _Arena()
    held: dict[int, tuple[_Region, _Chunk]] = {}
    for event in events:
        if event.action == "make":
            held[event.buffer] = arena.allocate(event.size)
        else:
            arena.release(held.pop(event.buffer))
    arena.allocate(_planned_bytes(events))  # from the second run on, all activations in one piece
    return arena.resident_bytes


def _planned_bytes(events: Sequence[_Event]) -> int:
    """Return the bytes of one block that holds all buffers, each in the smallest gap that fits."""
    spans: dict[int, tuple[int, int]] = {}
    most = 0
    for event in events:
        if event.action == "drop":
            del spans[event.buffer]
            continue
        gaps, end = [], 0
        for start, stop in sorted(spans.values()):
            if start - end >= event.size:
                gaps.append((start - end, end))
            end = max(end, stop)
        place = min(gaps)[1] if gaps else end
        spans[event.buffer] = place, place + event.size
        most = max(most, place + event.size)
    return most


def _events(workload: Workload, number_format: str) -> list[_Event]:
    """Return the allocations and releases of a run; at its end everything is released."""
    size = _float_bytes if number_format == "fp32" else _integer_bytes
    operators = [operator for operator in workload.operators if not operator.dead]
    buffer = _buffers(workload, operators)
    last = {
        buffer[i]: step
        for step, operator in enumerate(operators)
        for i in (*operator.inputs, *operator.outputs[:1])
        if i in buffer
    } | {buffer[i]: len(operators) for i in workload.outputs if i in buffer}
    events: list[_Event] = []
    held: dict[int, int] = {i: 0 for i in _given(workload)}
    for step, operator in enumerate(operators):
        made = buffer.get(operator.outputs[0])
        if made is not None and made not in held:
            held[made] = size(workload, made)
            events.append(_Event("make", made, held[made]))
        if number_format == "int8":
            events += _integer_workspace(workload, operator)
        for done in [i for i in held if last.get(i, -1) <= step]:
            events += _drop(done, held.pop(done))
    return events + [event for i, left in held.items() for event in _drop(i, left)]


def _given(workload: Workload) -> list[int]:
    """Return the network's inputs, whose memory is the caller's."""
    return [tensor.id for tensor in workload.tensors if tensor.role == "input"]


def _drop(buffer: int, size: int) -> list[_Event]:
    return [_Event("drop", buffer, size)] if size else []


def _buffers(workload: Workload, operators: Sequence[NetworkOperator]) -> dict[int, int]:
    """Map each tensor to the tensor whose memory it uses; weights are left out.

    The runtime folds normalisations into convolutions, and computes activations, sums and channel
    gates in place.
    """
    buffer = {t.id: t.id for t in workload.tensors if t.role != "weight"}
    for operator in operators:
        read = [i for i in operator.inputs if i in buffer]
        if read and operator.kind in ("norm", "layer_norm", "activation", "view", "elementwise"):
            largest = max(read, key=lambda i: workload.tensors[i].bytes)
            if operator.name not in ("cat", "clone", "copy"):
                buffer[operator.outputs[0]] = buffer[largest]
    return buffer


def _float_bytes(workload: Workload, tensor: int) -> int:
    """Return the bytes of a tensor; channels of feature maps are padded as convolutions need it."""
    spec = workload.tensors[tensor]
    if len(spec.shape) != 4 or spec.shape[2] * spec.shape[3] == 1:
        return spec.bytes
    channels = spec.shape[1]
    return spec.bytes // channels * (-(-channels // _CHANNELS) * _CHANNELS)


def _integer_bytes(workload: Workload, tensor: int) -> int:
    return max(math.ceil(_INT8_SHARE * workload.tensors[tensor].bytes), 1)


def _integer_workspace(workload: Workload, operator: NetworkOperator) -> list[_Event]:
    """Return the allocation and release of the memory that a quantised operator needs to compute.

    Hard swish and means work on float32 copies, convolutions on a pointer to each row of input that
    an output pixel reads.
    """
    shape = workload.tensors[operator.outputs[0]].shape
    if operator.kind == "pool" or operator.name == "hardswish":
        size = workload.tensors[operator.inputs[0]].bytes
    elif operator.kind in ("conv", "depthwise"):
        size = _POINTER * operator.kernel_size**2 * math.prod(shape[2:])
    else:
        return []
    workspace = -1  # no tensor has this id
    return [_Event("make", workspace, size), _Event("drop", workspace, size)]


def memory_features(workloads: Sequence[Workload], number_format: str = "fp32") -> Numbers:
    """Return logarithms of the bytes of the modelled peak, of the arena and of the weights.

    Args:
        workloads: Networks, at the batch that they run with.
        number_format: ``"fp32"`` or ``"int8"``.

    Returns:
        Features of shape (N, 3).
    """
    rows = []
    for workload in workloads:
        arena = arena_bytes(workload, number_format)
        images = sum(workload.tensors[i].bytes for i in _given(workload))
        written = [each for each in workload.operators if not (each.dead or each.folded)]
        weights = _weight_bytes(workload, written)
        per_operator = _LOADED_PER_OPERATOR[number_format] * len(written)
        loaded = _LOADED + _LOADED_PER_WEIGHT * weights + per_operator
        rows.append([loaded + images + arena, arena, weights])
    return np.log(np.array(rows, dtype=np.float64).reshape(-1, _FEATURES))


def _weight_bytes(workload: Workload, operators: Sequence[NetworkOperator]) -> int:
    read = {i for operator in operators for i in operator.inputs}
    return sum(workload.tensors[i].bytes for i in read if workload.tensors[i].role == "weight")


def _widening(measurements: int) -> float:
    """Return the 95% quantile of Student's t distribution, divided by that of the normal one.

    The measurements also determine a mean and three slopes, so these degrees of freedom are lost.
    """
    freedom = max(measurements - _FEATURES - 1, 1)
    return float(stdtrit(freedom, 0.95) / ndtri(0.95))


@dataclass(frozen=True, eq=False)
class MemoryPredictor:
    """Gaussian process on the logarithm of measured over modelled peak memory.

    Attributes:
        target: Target of ONNX Runtime, with the format and batch of the networks.
        features: Features of the networks that were measured, from `memory_features`.
        peaks_bytes: Measured peaks of these networks, n positive numbers.
    """

    target: Target
    features: Numbers = field(default_factory=lambda: np.zeros((0, _FEATURES)))
    peaks_bytes: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.target.device.runtime != "onnxruntime":
            raise ConfigError(
                f"target {self.target.name} does not use onnxruntime, the only runtime with a "
                "memory model; choose a target of onnxruntime"
            )
        for peak in self.peaks_bytes:
            if not (math.isfinite(peak) and peak > 0):
                raise ConfigError(f"a peak is {peak} bytes; expected a positive number")

    def adapt(self, workloads: Sequence[Workload], peaks_bytes: Sequence[float]) -> MemoryPredictor:
        """Return a new predictor that has also learnt these measurements.

        Args:
            workloads: Networks, traced at the target's batch.
            peaks_bytes: Peak memory of each network on the target.
        """
        if len(workloads) != len(peaks_bytes):
            raise ConfigError(
                f"got {len(workloads)} workloads and {len(peaks_bytes)} peaks; expected one for "
                "each"
            )
        return replace(
            self,
            features=np.vstack([self.features, self._features(workloads)]),
            peaks_bytes=(*self.peaks_bytes, *map(float, peaks_bytes)),
        )

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        """Predict peak memory.

        Args:
            workloads: Networks, traced at the target's batch.
            targets: Target of this predictor, once for each workload.

        Raises:
            ConfigError: A target is another one, or fewer than three networks were measured.
        """
        check_pairs(workloads, targets, self.target.name)
        if not workloads:
            return []
        return self._estimates(self._features(workloads))

    def _estimates(self, asked: Numbers) -> list[Estimate]:
        means, stds = self._process.predict(self._parts(asked))
        stds *= _widening(len(self.peaks_bytes))
        return [
            Estimate.log_normal(METRIC, float(modelled + mean), float(std), self.target.name)
            for modelled, mean, std in zip(asked[:, 0], means, stds, strict=True)
        ]

    def held_out(self) -> list[Estimate]:
        """Predict each measured network by a predictor that has not seen it."""
        found = []
        for left_out in range(len(self.peaks_bytes)):
            kept = np.delete(np.arange(len(self.peaks_bytes)), left_out)
            peaks = tuple(self.peaks_bytes[i] for i in kept)
            others = replace(self, features=self.features[kept], peaks_bytes=peaks)
            found += others._estimates(self.features[[left_out]])
        return found

    def _features(self, workloads: Sequence[Workload]) -> Numbers:
        return memory_features(workloads, self.target.format)

    @cached_property
    def _process(self) -> Mixture:
        if len(self.peaks_bytes) < MINIMUM_MEASUREMENTS:
            raise ConfigError(
                f"{len(self.peaks_bytes)} networks were measured on {self.target.name}; a memory "
                f"predictor needs at least {MINIMUM_MEASUREMENTS}"
            )
        parts = self._parts(self.features)
        missed = np.log(self.peaks_bytes) - self.features[:, 0]
        return Mixture.fitted(parts, missed, _PRIOR)

    def _parts(self, features: Numbers) -> Parts:
        """Return the inputs of a kernel with a linear and a radial part, each over all features."""
        scaled = BlockScaling.over(self.features)(features)
        return Parts({"memory": scaled}, {"memory_near": scaled})
