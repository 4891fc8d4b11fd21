"""Rotations of channels that are merged into weights, so that no channel stands out.

A rotation of a tensor's channels spreads an outlier over all of them, which makes the range of the
tensor smaller and its eight bits finer: QuaRot (Ashkboos et al., NeurIPS 2024) and SpinQuant (Liu
et al., ICLR 2025). The weights that write the tensor are rotated, those that read it are rotated
back, and the network computes the same.

Rotations are random. A power of two channels are mixed by a Hadamard matrix with random signs,
other numbers by a random orthogonal matrix. Where a LayerNorm reads the rotated tensor, the matrix
keeps the vector of ones, so that the mean and the norm stay as they are and the operator need not
become an RMSNorm, as in QuaRot; its scale is moved into the layers after it first.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from hwnas.deploy.quantization.channel_walk import mappable_channels
from hwnas.deploy.quantization.float_graph import FloatGraph
from hwnas.deploy.quantization.mapped_channels import Ids, MappedChannels
from hwnas.deploy.quantization.scale_transfer import scale_channels

__all__ = ["random_rotation", "rotate", "rotate_channels"]

Matrix = NDArray[np.float64]


def rotate(graph: FloatGraph, seed: int = 0) -> int:
    """Rotate the channels of a network wherever its outputs stay as they are.

    Args:
        graph: Network; its constants change.
        seed: Seed of the rotations.

    Returns:
        Number of places where channels were rotated.
    """
    _unit_norms(graph)
    rng = np.random.default_rng(seed)
    places = [mapped for mapped in mappable_channels(graph, "rotation") if _fits(graph, mapped)]
    for mapped in places:
        rotate_channels(graph, mapped, _matrix(mapped, rng))
    return len(places)


def random_rotation(size: int, rng: np.random.Generator, keeps_ones: bool = False) -> Matrix:
    """Return a random orthogonal matrix (size, size).

    Args:
        size: Number of channels, at least 1.
        rng: Source of random numbers.
        keeps_ones: True if the vector of ones is to be mapped to itself.
    """
    if keeps_ones:
        if size == 1:
            return np.ones((1, 1))
        # A basis whose first vector is that of ones; the others are rotated among themselves.
        basis, _ = np.linalg.qr(np.column_stack([np.ones(size), np.eye(size)[:, 1:]]))
        inner = scipy.linalg.block_diag(1.0, random_rotation(size - 1, rng))
        return np.asarray(basis @ inner @ basis.T)
    if size & (size - 1) == 0:
        signs = rng.choice([-1.0, 1.0], size)
        return np.asarray(scipy.linalg.hadamard(size) * signs / np.sqrt(size))
    upright, triangle = np.linalg.qr(rng.standard_normal((size, size)))
    return np.asarray(upright * np.sign(np.diag(triangle)))


def rotate_channels(graph: FloatGraph, mapped: MappedChannels, matrix: Matrix) -> None:
    """Multiply mapped channels by an orthogonal matrix (C, C); the outputs do not change."""
    for port in mapped.writers:
        axis = port.layer.rows
        _multiply(graph, port.layer.weights, axis, port.ids, matrix)
        if port.layer.bias:
            _multiply(graph, port.layer.bias, 0, port.ids, matrix)
    for added in mapped.added:
        axis, ids = _axis_of(added.ids)
        _multiply(graph, added.name, axis, ids, matrix)
    for port in mapped.readers:
        _multiply(graph, port.layer.weights, 1 - port.layer.rows, port.ids, matrix)


def _multiply(graph: FloatGraph, name: str, axis: int, ids: Ids, matrix: Matrix) -> None:
    """Multiply a constant by a matrix along one axis, on which its channels have numbers (C,)."""
    own = matrix[np.ix_(ids, ids)]
    values = graph.constants[name].astype(np.float64)
    rotated = np.moveaxis(np.tensordot(own, values, (1, axis)), 0, axis)
    graph.constants[name] = np.ascontiguousarray(rotated, np.float32)


def _matrix(mapped: MappedChannels, rng: np.random.Generator) -> Matrix:
    """Return a rotation (C, C) that mixes the channels of each block with each other."""
    matrix = np.zeros((mapped.size, mapped.size))
    for block in mapped.blocks or [np.arange(mapped.size, dtype=np.int32)]:
        matrix[np.ix_(block, block)] = random_rotation(len(block), rng, bool(mapped.norms))
    return matrix


def _fits(graph: FloatGraph, mapped: MappedChannels) -> bool:
    """Return whether each layer and constant has all channels once, and norms a scale of 1."""
    every = np.arange(mapped.size)
    axes = [_axis_of(added.ids) for added in mapped.added]
    found = [port.ids for port in (*mapped.writers, *mapped.readers)] + [ids for _, ids in axes]
    whole = all(np.array_equal(np.sort(ids), every) for ids in found)
    return whole and all(np.allclose(graph.constants[name], 1, 0, 1e-6) for name in mapped.norms)


def _axis_of(ids: Ids) -> tuple[int, Ids]:
    """Return the axis along which channel numbers vary, and the numbers along it."""
    axis = max(range(ids.ndim), key=lambda each: ids.shape[each] * _varies(ids, each), default=0)
    others = tuple(0 for _ in range(ids.ndim - 1))
    return axis, np.moveaxis(ids, axis, -1)[others]


def _varies(ids: Ids, axis: int) -> bool:
    return bool((ids != np.take(ids, [0], axis)).any())


def _unit_norms(graph: FloatGraph) -> None:
    """Move the scales of LayerNorms, if they are above 0, into the layers after them."""
    for mapped in mappable_channels(graph, "scale"):
        scales = _norm_scales(graph, mapped)
        if scales is not None and (scales > 0).all():
            scale_channels(graph, mapped, 1 / scales)


def _norm_scales(graph: FloatGraph, mapped: MappedChannels) -> Matrix | None:
    """Return the scales (C,) of the LayerNorm that alone writes these channels, or None."""
    makers = [graph.makers[name] for name in mapped.tensors]
    norms = [node for node in makers if node.op_type == "LayerNormalization"]
    if len(norms) != 1 or mapped.writers:
        return None
    ids = mapped.tensors[norms[0].output[0]]
    scales = np.zeros(mapped.size)
    scales[ids.reshape(-1, ids.shape[-1])[0]] = graph.constants[norms[0].input[1]]
    return scales
