"""Long sums of small products, cut into parts, so that more multiprocessors have something to do.

At batch 1 a product can have fewer blocks than a card has multiprocessors, and each goes over all
of K. In SPLIT_K parts there are so many times more programs; they write their sums in float32, and
a second small kernel adds these, always in the same order, and does what follows the product. That
costs its start and 8 * SPLIT_K bytes for each value of the result.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.constraints import Constraint, Problem
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config
from hwnas.kernels.tiles import BUSY, load_tile, powers, product_blocks, store_activated

__all__ = ["default_parts", "in_parts", "part_of_sum", "parts_bytes", "with_parts"]

_WORTH = 8  # steps of a part, with fewer of which a second kernel does not pay


@triton.jit
def part_of_sum(K, SPLIT_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Where a program begins and ends to sum; parts are the third axis of the grid."""
    length = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K) * BLOCK_K
    first = tl.program_id(2) * length
    return first, tl.minimum(first + length, K)


@triton.jit
def add_parts_kernel(
    parts,  # (SPLIT_K, M, N), float32
    bias,  # (N,)
    residual,  # (M, N) or None
    y,  # (M, N)
    M,
    N,
    ALIGN_N: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RESIDUAL_FIRST: tl.constexpr,
    SPLIT_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program finishes BLOCK_M rows of BLOCK_N channels."""
    N = N // ALIGN_N * ALIGN_N
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for part in tl.static_range(SPLIT_K):
        total += load_tile(parts + part * M * N, rows, M, N, columns, N, False)
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION, RESIDUAL_FIRST)


def in_parts(whole: Launch, y: Tensor, count: int) -> list[Launch]:
    """A product as it is, or in so many parts that a second kernel adds.

    Args:
        whole: It begins and ends where `part_of_sum` says, and finishes with `store_activated`,
            part after part; its arguments are bias, residual, y, M, N and others.
        y: The result, (..., N).
        count: Of parts.
    """
    if count == 1:
        return [whole]
    rows, columns = y.shape[:-1].numel(), y.shape[-1]
    parts = y.new_empty(count, rows, columns, dtype=torch.float32)
    summed = replace(
        whole,
        grid=(*whole.grid, count),
        arguments={**whole.arguments, "y": parts, "bias": None, "residual": None},
        constants={**whole.constants, "ACTIVATION": "none"},
    )
    block = {"BLOCK_M": 4, "BLOCK_N": 32}
    shared = ("ALIGN_N", "ACTIVATION", "RESIDUAL_FIRST", "SPLIT_K")
    finish = Launch(
        add_parts_kernel,
        product_blocks(rows, columns, block),
        {name: whole.arguments[name] for name in ("bias", "residual", "y", "M", "N")}
        | {"parts": parts},
        {name: whole.constants[name] for name in shared} | block,
        num_warps=1,
    )
    return [summed, finish]


def with_parts(problem: Problem, rows: int, columns: int, inner: int, card: Accelerator) -> Problem:
    """The problem of a product whose sums can be cut into parts, where that makes sense."""

    def needed(BLOCK_M: int, BLOCK_N: int, SPLIT_K: int) -> bool:
        down, across = product_blocks(rows, columns, {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N})
        return SPLIT_K == 1 or down * across * SPLIT_K <= 4 * card.multiprocessors

    def filled(BLOCK_K: int, num_stages: int, SPLIT_K: int) -> bool:
        steps = triton.cdiv(inner, BLOCK_K)
        length = triton.cdiv(steps, SPLIT_K)
        return SPLIT_K == 1 or (length * (SPLIT_K - 1) < steps and num_stages <= length)

    return Problem(
        {**problem.variables, "SPLIT_K": powers(1, 16)},
        (
            *problem.constraints,
            Constraint(needed, "there are programs enough without parts of sums"),
            Constraint(filled, "a part of the sums is empty, or has fewer steps than stages"),
        ),
    )


def default_parts(rows: int, columns: int, inner: int, config: Config) -> int:
    """As many as keep a large card busy and have steps enough that a second kernel pays."""
    down, across = product_blocks(rows, columns, config)
    steps = triton.cdiv(inner, config["BLOCK_K"])
    return max(powers(1, max(1, min(16, BUSY // (down * across), steps // _WORTH))))


def parts_bytes(rows: int, columns: int, count: int) -> int:
    """Bytes of all parts, written and read."""
    return 0 if count == 1 else 8 * count * rows * columns
