"""Tiling of a matrix product into programs of a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
import triton.language as tl

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.operator import Config
from hwnas.kernels.primitives.activations import activate
from hwnas.kernels.tuning.constraints import Constraint, Problem

__all__ = [
    "BUSY",
    "alignment",
    "int8_product_default",
    "least_idle",
    "load_tile",
    "power_block",
    "powers",
    "product_blocks",
    "product_default",
    "product_macs",
    "product_problem",
    "product_reads",
    "store_activated",
]


BUSY = 128
"""Number of programs that keep a large GPU busy."""


def alignment(size: int) -> int:
    """Return the greatest power of two up to 16 that divides a size.

    Triton itself recognises multiples of 16 only. A kernel that takes this number as a constant and
    begins with ``size = size // ALIGN * ALIGN`` loads rows of 24 values in eights, not one by one,
    and is compiled once for all sizes of the same alignment.
    """
    return min(16, size & -size)


def powers(low: int, high: int) -> tuple[int, ...]:
    """Return the powers of two from low to high, both included."""
    return tuple(1 << i for i in range((low - 1).bit_length(), high.bit_length()))


def power_block(size: int, most: int = 2**31, least: int = 16) -> int:
    """Return the power of two that holds a size; at least 16, which tensor cores need."""
    power: int = triton.next_power_of_2(size)
    return min(most, max(least, power))


def _least_step(dtype: torch.dtype) -> int:
    """Return the shortest step along K that tensor cores take."""
    return 32 if dtype.itemsize == 1 else 16


def least_idle(size: int, blocks: Iterable[int]) -> int:
    """Return the block that covers a size with the least padding; the largest of equal ones."""
    return min(blocks, key=lambda block: (triton.cdiv(size, block) * block, -block))


def product_problem(
    rows: int, columns: int, inner: int, dtype: torch.dtype, gpu: Accelerator
) -> Problem:
    """Return blocks BLOCK_M x BLOCK_N of a product over K in steps of BLOCK_K, warps and stages.

    Args:
        rows: Number of rows of the result, M.
        columns: Number of columns of the result, N.
        inner: Length of a sum, K.
        dtype: Type of both factors.
        gpu: GPU whose registers and shared memory limit the blocks.
    """

    def blocks(size: int, most: int, least: int = 16) -> tuple[int, ...]:
        """Return sides from the least that tensor cores take to one that holds the size."""
        return powers(least, power_block(size, most, least))

    return Problem(
        {
            "BLOCK_M": blocks(rows, 128),
            "BLOCK_N": blocks(columns, 256),
            "BLOCK_K": blocks(inner, 128, least=_least_step(dtype)),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 3, 4, 5),
        },
        (
            Constraint(
                lambda BLOCK_M, BLOCK_N, BLOCK_K, num_stages: (
                    (BLOCK_M + BLOCK_N) * BLOCK_K * dtype.itemsize * num_stages <= gpu.shared_bytes
                ),
                "the blocks of all stages do not fit into shared memory",
            ),
            Constraint(
                lambda BLOCK_M, BLOCK_N, num_warps: (
                    8 <= BLOCK_M * BLOCK_N // (num_warps * WARP) <= gpu.registers_per_thread // 2
                ),
                "sums take more than half of a thread's registers, or leave threads idle",
            ),
            Constraint(
                lambda BLOCK_K, num_stages: num_stages == 1 or BLOCK_K * (num_stages - 1) < inner,
                "there are more stages than steps",
            ),
        ),
    )


def product_blocks(rows: int, columns: int, config: Config) -> tuple[int, int]:
    """Return the numbers of blocks of the result, down and across: the grid of programs."""
    return triton.cdiv(rows, config["BLOCK_M"]), triton.cdiv(columns, config["BLOCK_N"])


def product_default(
    rows: int, columns: int, inner: int, dtype: torch.dtype, deepest: int = 128
) -> Config:
    """Return small blocks if there are few sums, so that many programs share the work.

    Programs of small blocks wait for memory, not for arithmetic: they take long steps and load two
    of them ahead. Float32 products use no tensor cores. A long step then takes too many registers,
    and so do more than 16 sums a thread.

    Args:
        rows: Number of rows of the result, M.
        columns: Number of columns of the result, N.
        inner: Length of a sum, K.
        dtype: Type of both factors.
        deepest: Longest step along K.
    """
    small = rows < 4096
    block_m = 16 if small else 64
    tall = triton.cdiv(rows, block_m)
    wide = (n for n in (64, 32) if n < 2 * columns and tall * triton.cdiv(columns, n) >= BUSY)
    block_n = next(wide, 16)
    long = small and dtype.itemsize <= 2
    block_k = power_block(
        inner, min(deepest, 2048 // block_n) if long else 32, least=_least_step(dtype)
    )
    narrow = 2 if block_n == 64 and dtype.itemsize > 2 else 1
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "num_warps": narrow if small else 4,
        "num_stages": min(3 if small else 2, triton.cdiv(inner, block_k)),
    }


def int8_product_default(rows: int, columns: int, inner: int, step: int) -> Config:
    """Return the default of a matrix product, with longer steps along K, as int8 values are small.

    Args:
        rows: Number of rows of the result, M.
        columns: Number of columns of the result, N.
        inner: Length of a sum, K.
        step: Longest suitable step, a power of two.
    """
    block_k = min(128, max(_least_step(torch.int8), step))
    steps = {"BLOCK_K": block_k, "num_stages": min(3, triton.cdiv(inner, block_k))}
    return {**product_default(rows, columns, inner, torch.int8), **steps}


def product_reads(rows: int, columns: int, inner: int, config: Config) -> int:
    """Return the number of values of both factors that all programs of a product read."""
    down, across = product_blocks(rows, columns, config)
    return inner * (rows * across + columns * down)


def product_macs(rows: int, columns: int, inner: int, config: Config) -> int:
    """Return the multiplications of a product in whole blocks, with those of padding."""
    down, across = product_blocks(rows, columns, config)
    steps: int = triton.cdiv(inner, config["BLOCK_K"])
    return down * across * steps * config["BLOCK_M"] * config["BLOCK_N"] * config["BLOCK_K"]


@triton.jit
def load_tile(base, rows, height, stride, columns, end, UPCAST: tl.constexpr):
    """Return rows and columns of a matrix, with zeros beyond its height and the end of a row."""
    mask = (rows[:, None] < height) & (columns[None, :] < end)
    tile = tl.load(base + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit
def store_activated(
    total,  # (BLOCK_M, BLOCK_N) of float32
    bias,  # (N,) or None
    residual,  # (M, N) or None
    y,  # (M, N)
    rows,  # (BLOCK_M,)
    columns,  # (BLOCK_N,)
    M,
    N,
    ACTIVATION: tl.constexpr,
    RESIDUAL_FIRST: tl.constexpr = False,  # before the activation
):
    """Finish a block of sums with bias, activation and residual, and store it."""
    if bias is not None:
        total += tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    if not RESIDUAL_FIRST:
        total = activate(total, ACTIVATION)
    place = rows[:, None] * N + columns[None, :]
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    if residual is not None:
        total += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    if RESIDUAL_FIRST:
        total = activate(total, ACTIVATION)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=mask)
