"""Ways to keep a value from the forward to the backward pass in less memory than it takes.

A mask, and the sign of a rectified value, are kept in a bit each. Places of a pooling are kept in
32 bits. Of a value of which only the shape is read, nothing is kept. All this loses nothing.

Other values can be rounded to 4 bits in groups, each with its own least value and step, as in
"ActNN: Reducing Training Memory Footprint via 2-Bit Activation Compressed Training" (Chen et al.,
ICML 2021), but to the nearest step instead of at random, so that a fine-tuning can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BITS", "FOUR_BITS", "GROUP", "INDICES", "SHAPE", "SIGNS", "Packing"]

GROUP = 128
"""Number of values that are rounded with the same least value and step."""
_LEVELS = 15  # steps of 4 bits
_PARTS = 8  # bits of a byte


@dataclass(frozen=True)
class Packing:
    """Way to keep a value.

    Attributes:
        name: Short name.
        pack: Function from the value to what is kept of it.
        unpack: Function from that and the shape of the value to what backward operators read.
        sizes: Function from the number of elements of the value to the bytes of each kept tensor.
        restored_bytes: Function from the number of elements to the bytes of what `unpack` returns.
    """

    name: str
    pack: Callable[[Tensor], tuple[Tensor, ...]]
    unpack: Callable[[tuple[Tensor, ...], Sequence[int]], Tensor]
    sizes: Callable[[int], tuple[int, ...]]
    restored_bytes: Callable[[int], int]


def _pack_bits(value: Tensor) -> tuple[Tensor, ...]:
    bits = value.reshape(-1) > 0 if value.dtype != torch.bool else value.reshape(-1)
    rows = _in_rows(bits, _PARTS)
    found = torch.zeros(len(rows), dtype=torch.uint8)
    for place in range(_PARTS):
        found |= rows[:, place].to(torch.uint8) << place
    return (found,)


def _unpack_bits(kept: tuple[Tensor, ...], shape: Sequence[int]) -> Tensor:
    places = torch.arange(_PARTS, dtype=torch.uint8)
    bits = (kept[0][:, None] >> places) & 1
    return bits.reshape(-1)[: math.prod(shape)].reshape(*shape).to(torch.bool)


def _unpack_signs(kept: tuple[Tensor, ...], shape: Sequence[int]) -> Tensor:
    return _unpack_bits(kept, shape).float()


def _bits_size(elements: int) -> tuple[int, ...]:
    return (math.ceil(elements / _PARTS),)


def _round_to_4_bits(value: Tensor) -> tuple[Tensor, ...]:
    rows = _in_rows(value.reshape(-1), GROUP)
    least = rows.amin(1, keepdim=True)
    step = (rows.amax(1, keepdim=True) - least) / _LEVELS
    codes = ((rows - least) / step.clamp_min(torch.finfo(step.dtype).tiny)).round()
    whole = codes.clamp(0, _LEVELS).to(torch.uint8)
    return whole[:, ::2] | whole[:, 1::2] << 4, torch.cat([least, step], 1)


def _from_4_bits(kept: tuple[Tensor, ...], shape: Sequence[int]) -> Tensor:
    codes, grid = kept
    whole = torch.stack([codes & _LEVELS, codes >> 4], 2).flatten(1)
    rows = torch.addcmul(grid[:, :1], whole.float(), grid[:, 1:])
    return rows.reshape(-1)[: math.prod(shape)].reshape(*shape).clone()


def _rounded_sizes(elements: int) -> tuple[int, ...]:
    groups = math.ceil(elements / GROUP)
    return groups * GROUP // 2, groups * 2 * 4


def _to_32_bits(value: Tensor) -> tuple[Tensor, ...]:
    return (value.to(torch.int32),)


def _to_64_bits(kept: tuple[Tensor, ...], shape: Sequence[int]) -> Tensor:
    return kept[0].to(torch.int64)


def _stand_in(kept: tuple[Tensor, ...], shape: Sequence[int]) -> Tensor:
    return torch.zeros(1).expand(*shape)


def _floats(elements: int) -> int:
    return 4 * elements


def _in_rows(flat: Tensor, length: int) -> Tensor:
    """Return values in rows of a length, the last of which is filled with its last value."""
    missing = -len(flat) % length
    filled = torch.cat([flat, flat[-1:].expand(missing)]) if missing else flat
    return filled.reshape(-1, length)


BITS = Packing("1 bit", _pack_bits, _unpack_bits, _bits_size, lambda elements: elements)
"""Booleans, a bit each."""
SIGNS = Packing("1 bit", _pack_bits, _unpack_signs, _bits_size, _floats)
"""Whether each number is above 0, a bit each; 1.0 or 0.0 afterwards."""
FOUR_BITS = Packing("4 bits", _round_to_4_bits, _from_4_bits, _rounded_sizes, _floats)
"""Numbers rounded to 4 bits in groups, with 8 bytes for each group."""
SHAPE = Packing("shape", lambda value: (), _stand_in, lambda elements: (), lambda elements: 4)
"""Values of which only the shape is read; nothing is kept."""
INDICES = Packing("32 bits", _to_32_bits, _to_64_bits, lambda n: (4 * n,), lambda n: 8 * n)
"""Places of the largest values of a pooling, which PyTorch computes in 64 bits."""
