"""Scales moved from one layer to the next, so that eight bits suit the channels between them.

A channel whose values are small gets few of the 255 steps of its tensor. Dividing each channel by
a scale of its own, and multiplying the weights that read it by the same scale, makes channels more
alike and leaves the outputs as they are: cross-layer equalisation (Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction", ICCV 2019), also between a LayerNorm
and the layers after it (Xiao et al., "SmoothQuant", ICML 2023).

The scale of a channel is SmoothQuant's equation 4, max|x| ** a / max|w| ** (1 - a). Nagel et al.
balance the weights of both layers instead, but a scale for each output channel, as weights have
here, already absorbs whatever a row of the first layer is multiplied by. For the same reason the
weights of each row are compared with the row's largest, and depthwise convolutions, whose rows read
one channel each, accept any scale. Between queries and keys, whose product gives the scores of an
attention, a scale is the square root of the ratio of their largest values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.quantization.channel_walk import mappable_channels
from hwnas.deploy.quantization.float_graph import FloatGraph
from hwnas.deploy.quantization.mapped_channels import MappedChannels, Port

__all__ = ["equalise", "scale_channels"]

Scales = NDArray[np.float64]

_STRENGTH = 0.5  # the a of SmoothQuant's equation 4
_LEAST_SHARE = 1 / 64  # of the largest value; channels below it might be larger on other images
_TINY = 1e-12


def equalise(
    graph: FloatGraph, batches: Sequence[NDArray[np.float32]], strength: float = _STRENGTH
) -> int:
    """Move scales between the layers of a network, wherever its outputs stay as they are.

    Args:
        graph: Network; its constants change.
        batches: Inputs (N, ...) from which the largest values of channels are taken.
        strength: Share of the differences between channels of a tensor that moves into the weights,
            from 0 to 1.

    Returns:
        Number of places where scales were moved.
    """
    places = mappable_channels(graph, "scale")
    names = list(dict.fromkeys(name for mapped in places for name in mapped.tensors))
    largest = _largest(graph, batches, names)
    for mapped in places:
        scale_channels(graph, mapped, 1 / _scales(graph, mapped, largest, strength))
    return len(places)


def scale_channels(graph: FloatGraph, mapped: MappedChannels, scales: Scales) -> None:
    """Multiply mapped channels by scales (C,), all above 0; the outputs do not change."""

    def of(ids: NDArray[np.int32], sign: int) -> NDArray[np.float32]:
        return np.asarray(scales[ids] ** sign, np.float32)

    for port in mapped.writers:
        weights = graph.constants[port.layer.weights]
        factor = of(port.ids, port.sign)
        rows = [-1 if axis == port.layer.rows else 1 for axis in range(weights.ndim)]
        graph.constants[port.layer.weights] = weights * factor.reshape(rows)
        if port.layer.bias:
            graph.constants[port.layer.bias] = graph.constants[port.layer.bias] * factor
    for added in mapped.added:
        graph.constants[added.name] = graph.constants[added.name] * of(added.ids, added.sign)
    for port in mapped.readers:
        by_group = _by_group(graph, port) / of(port.ids, port.sign).reshape(
            port.layer.groups, 1, -1, 1
        )
        weights = graph.constants[port.layer.weights]
        graph.constants[port.layer.weights] = _from_groups(by_group, port, weights.shape)


def _by_group(graph: FloatGraph, port: Port) -> NDArray[np.float32]:
    """Return the weights of a reader as (groups, rows of a group, inputs of a group, taps)."""
    weights = np.moveaxis(graph.constants[port.layer.weights], port.layer.rows, 0)
    groups = port.layer.groups
    inputs = len(port.ids) // groups
    return np.ascontiguousarray(weights).reshape(groups, len(weights) // groups, inputs, -1)


def _from_groups(
    weights: NDArray[np.float32], port: Port, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    first = [shape[port.layer.rows], *np.delete(shape, port.layer.rows)]
    return np.ascontiguousarray(np.moveaxis(weights.reshape(first), 0, port.layer.rows))


def _scales(
    graph: FloatGraph,
    mapped: MappedChannels,
    largest: dict[str, NDArray[np.float32]],
    strength: float,
) -> Scales:
    """Return what each channel is divided by, (C,), with a geometric mean of 1."""
    plain, inverse = (_of_channels(graph, mapped, largest, sign) for sign in (1, -1))
    if plain is not None and inverse is not None:
        scales = np.sqrt(plain / inverse)
    else:
        scales = _smoothed(graph, mapped, plain if inverse is None else 1 / inverse, strength)
    return np.asarray(scales / np.exp(np.log(scales).mean()))


def _smoothed(
    graph: FloatGraph, mapped: MappedChannels, values: Scales | None, strength: float
) -> Scales:
    """Return the scales of SmoothQuant's equation 4 for the largest values of channels, (C,)."""
    assert values is not None
    weights = np.zeros(mapped.size)
    for port in mapped.readers:
        inputs = len(port.ids) // port.layer.groups
        if inputs == 1:  # any scale of its one input is absorbed by that of its row
            continue
        own = np.abs(_by_group(graph, port)).max(3)
        share = (own / np.maximum(own.max(2, keepdims=True), _TINY)).max(1).reshape(-1)
        np.maximum.at(weights, port.ids, share)
    if not weights.any():
        return values
    return values**strength / np.maximum(weights, _TINY) ** (1 - strength)


def _of_channels(
    graph: FloatGraph, mapped: MappedChannels, largest: dict[str, NDArray[np.float32]], sign: int
) -> Scales | None:
    """Return the largest value of each channel in the tensors of a sign; None if there are none."""
    found = np.zeros(mapped.size)
    names = [name for name, own in mapped.signs.items() if own == sign]
    for name in names:
        users = graph.users.get(name, [])
        if all(user.op_type == "Relu" for user in users) and users:
            continue  # ReLU and the layer before it are one operator in int8
        ids = mapped.tensors[name]
        np.maximum.at(found, ids[:1].ravel(), largest[name].ravel())
    if not names:
        return None
    return np.maximum(found, max(found.max() * _LEAST_SHARE, _TINY))


def _largest(
    graph: FloatGraph, batches: Sequence[NDArray[np.float32]], names: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Return the largest magnitude at each place of tensors (N, ...) over all images, (1, ...)."""
    found: dict[str, NDArray[np.float32]] = {}
    for batch in batches:
        for name, value in graph.values(batch, names).items():
            most = np.abs(value).max(0, keepdims=True)
            found[name] = np.maximum(most, found.get(name, most))
    return found
