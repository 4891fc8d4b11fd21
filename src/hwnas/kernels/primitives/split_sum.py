"""Split-K: long sums of small products in parts, so that more multiprocessors have work.

At batch 1 a product can have fewer blocks than a GPU has multiprocessors, and each block iterates
over all of K. With SPLIT_K parts there are SPLIT_K times as many programs. They write their sums in
float32, and a second small kernel adds these, always in the same order, and applies what follows
the product. That costs a launch and 8 * SPLIT_K bytes for each value of the result.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config
from hwnas.kernels.primitives.tiles import BUSY, load_tile, powers, product_blocks, store_activated
from hwnas.kernels.tuning.constraints import Constraint, Problem

__all__ = ["default_parts", "in_parts", "part_of_sum", "parts_bytes", "with_parts"]

_WORTH = 8  # least steps of a part for which a second kernel pays


@triton.jit
def part_of_sum(K, SPLIT_K: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the start and end of a program's sum; parts are the third axis of the grid."""
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
    """Add the parts of BLOCK_M rows of BLOCK_N channels, and finish them, in each program."""
    N = N // ALIGN_N * ALIGN_N
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for part in tl.static_range(SPLIT_K):
        total += load_tile(parts + part * M * N, rows, M, N, columns, N, False)
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION, RESIDUAL_FIRST)


def in_parts(whole: Launch, y: Tensor, count: int) -> list[Launch]:
    """Return the launch of a product as it is, or split into parts that a second kernel adds.

    Args:
        whole: Launch of the product. Its kernel starts and ends where `part_of_sum` says, and
            stores each part with `store_activated`, one after the other; its arguments are bias,
            residual, y, M, N and others.
        y: Result, (..., N).
        count: Number of parts.
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


def with_parts(problem: Problem, rows: int, columns: int, inner: int, gpu: Accelerator) -> Problem:
    """Return the problem of a product whose sums can be split into parts, where that is useful."""

    def needed(BLOCK_M: int, BLOCK_N: int, SPLIT_K: int) -> bool:
        down, across = product_blocks(rows, columns, {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N})
        return SPLIT_K == 1 or down * across * SPLIT_K <= 4 * gpu.multiprocessors

    def filled(BLOCK_K: int, num_stages: int, SPLIT_K: int) -> bool:
        steps = triton.cdiv(inner, BLOCK_K)
        length = triton.cdiv(steps, SPLIT_K)
        return SPLIT_K == 1 or (length * (SPLIT_K - 1) < steps and num_stages <= length)

    return Problem(
        {**problem.variables, "SPLIT_K": powers(1, 16)},
        (
            *problem.constraints,
            Constraint(needed, "there are enough programs without splitting sums"),
            Constraint(filled, "a part of the sums is empty, or has fewer steps than stages"),
        ),
    )


def default_parts(rows: int, columns: int, inner: int, config: Config) -> int:
    """Return the number of parts that keeps a large GPU busy, with enough steps for each part."""
    down, across = product_blocks(rows, columns, config)
    steps = triton.cdiv(inner, config["BLOCK_K"])
    return max(powers(1, max(1, min(16, BUSY // (down * across), steps // _WORTH))))


def parts_bytes(rows: int, columns: int, count: int) -> int:
    """Return the bytes of all parts, written and read."""
    return 0 if count == 1 else 8 * count * rows * columns
