"""Softmax of rows of any length, with the largest value and the sum found in one pass.

y = exp(z - m) / s with z = scale x + mask, m = max(z) and s = sum(exp(z - m)) of each row, as
attention needs it: the mask is the same for all rows, such as -inf for padded keys. Each step reads
a block of the row, and rescales the sum so far to the new largest value: m' = max(m, max(block)),
s' = s exp(m - m') + sum(exp(block - m')) (Milakov and Gimelshein, "Online normalizer calculation
for softmax", 2018, algorithm 3; Edge-MoE, Sarkar et al., ICCAD 2023, computes attention in this
way). A second pass writes y, so a long row is read twice, where one pass each for m, s and y would
read it three times. A row that fits into registers is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.tiles import BUSY, alignment, power_block, powers
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Softmax", "softmax", "softmax_error"]

_LONGEST = 4096  # values of a row that one program holds in registers
_MOST_VALUES = 64  # of a block in each thread


def softmax_error(steps: int) -> float:
    """Return the largest absolute error in float32, for any finite row that takes some steps.

    It is the error for z as float32 has it, so for x itself without scale and mask. A difference d
    = z - m is rounded, which changes exp(d) by at most 2^-24 / e, since |d| exp(d)
    is at most 1 / e for d below 0. An exponential has an error of two units of its last place. In
    each step, the sum is multiplied by an exponential, and a block is added, each with a rounding.
    These are less than 2^-21 for each step, and for the terms and the division together.

    Args:
        steps: Number of blocks that the row is read in.
    """
    return float((steps + 4) * 2**-21)


@triton.jit
def _block_of(x, mask, rows, columns, M, K, scale):
    """Return a block of scaled and masked rows in float32, with -inf beyond the end of a row."""
    inside = (rows[:, None] < M) & (columns[None, :] < K)
    place = rows[:, None] * K + columns[None, :]
    values = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * scale
    added = tl.load(mask + columns, mask=columns < K, other=-float("inf")).to(tl.float32)
    return values + added[None, :]


@triton.jit
def _finite(largest):
    """Return the largest values, 0 where a row has none yet: -inf minus -inf would be NaN."""
    return tl.where(largest == -float("inf"), 0.0, largest)


@triton.jit
def softmax_kernel(
    x,  # (M, K)
    mask,  # (K,)
    y,  # (M, K)
    M,
    K,
    scale,
    ALIGN_K: tl.constexpr,
    WHOLE: tl.constexpr,  # true if a row is one block, which is then read once
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_M rows in each program."""
    K = K // ALIGN_K * ALIGN_K
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inner = tl.arange(0, BLOCK_K)
    if WHOLE:
        block = _block_of(x, mask, rows, inner, M, K, scale)
        powers = tl.exp(block - _finite(tl.max(block, 1))[:, None])
        _store(powers / tl.sum(powers, 1)[:, None], y, rows, inner, M, K)
    else:
        largest = tl.full((BLOCK_M,), -float("inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        for start in range(0, K, BLOCK_K):
            block = _block_of(x, mask, rows, start + inner, M, K, scale)
            before, largest = largest, tl.maximum(largest, tl.max(block, 1))
            powers = tl.exp(block - _finite(largest)[:, None])
            total = total * tl.exp(before - _finite(largest)) + tl.sum(powers, 1)
        for start in range(0, K, BLOCK_K):
            block = _block_of(x, mask, rows, start + inner, M, K, scale)
            powers = tl.exp(block - _finite(largest)[:, None])
            _store(powers / total[:, None], y, rows, start + inner, M, K)


@triton.jit
def _store(values, y, rows, columns, M, K):
    mask = (rows[:, None] < M) & (columns[None, :] < K)
    place = rows[:, None] * K + columns[None, :]
    tl.store(y + place, values.to(y.dtype.element_ty), mask=mask)


class Softmax(Operator):
    """Softmax of scaled and masked rows, over the last dimension.

    Bytes: x, mask and y, once each. Tolerance: `softmax_error` in float32, and half a unit of the
        last place of y in 16 bits.

    As in PyTorch, a row with NaN or inf, or of -inf alone, becomes NaN.
    """

    name = "softmax"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"rows": 37, "channels": 19},
        {"rows": 5, "channels": 333},
        {"rows": 2, "channels": 4099},
    )
    measured = (
        {"rows": 588, "channels": 196},
        {"rows": 128, "channels": 32000},
    )
    batched = "rows"

    @staticmethod
    def reference(x: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
        """Compute the module's formula in PyTorch.

        Args:
            x: Input, (N, ..., K), such as (N, heads, T, T) for scores of attention.
            mask: Numbers that are added to each row after scaling, (K,): 0, or -inf for values that
                get no weight.
            scale: Factor of x.

        Returns:
            Output y, of the same shape and type.
        """
        return (x * scale + mask).softmax(-1)

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the number of rows, and their length."""
        x, mask = inputs["x"], inputs["mask"]
        fits = x.dim() >= 2 and mask.shape == x.shape[-1:]
        check_shapes(self.name, "x (N, ..., K) and mask (K,)", fits, inputs)
        return {"rows": x.shape[:-1].numel(), "channels": x.shape[-1]}

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return rows whose values lie some units apart, around different means; none is masked."""
        normal = RandomValues(torch.float32, generator, torch.device("cpu")).normal
        rows, channels = sizes["rows"], sizes["channels"]
        x = 6 * normal(1, rows, channels) + 9 * normal(1, rows, 1)
        inputs: Inputs = {"x": x, "mask": normal(channels)}
        return {name: value.to(device, dtype) for name, value in inputs.items()} | {"scale": 0.5}

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        return (torch.empty_like(inputs["x"], memory_format=torch.contiguous_format),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        x: Tensor = inputs["x"]
        rows, channels = x.shape[:-1].numel(), x.shape[-1]
        return [
            Launch(
                softmax_kernel,
                (triton.cdiv(rows, config["BLOCK_M"]),),
                {name: inputs[name] for name in ("x", "mask", "scale")}
                | {"y": outputs[0], "M": rows, "K": channels},
                {"ALIGN_K": alignment(channels), "WHOLE": config["BLOCK_K"] >= channels}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return blocks that fill the threads and fit into their registers."""
        longest = power_block(sizes["channels"], _LONGEST)
        return Problem(
            {
                "BLOCK_M": (1, 2, 4, 8, 16, 32),
                "BLOCK_K": powers(16, longest),
                "num_warps": (1, 2, 4, 8),
                "num_stages": (1, 2, 3),
            },
            (
                Constraint(
                    lambda BLOCK_M, BLOCK_K, num_warps: (
                        _MOST_VALUES * num_warps * WARP >= BLOCK_M * BLOCK_K
                    ),
                    "a block takes too many registers",
                ),
                Constraint(
                    lambda BLOCK_M, BLOCK_K, num_warps: num_warps * WARP <= BLOCK_M * BLOCK_K,
                    "threads are idle",
                ),
                Constraint(
                    lambda BLOCK_K, num_stages: num_stages == 1 or sizes["channels"] > BLOCK_K,
                    "there are more stages than steps",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return whole rows where they fit, as many in a program as leave the GPU busy."""
        block_k = power_block(sizes["channels"], _LONGEST)
        block_m = 32
        while block_m > 1 and (block_m * block_k > 1024 or sizes["rows"] < block_m * BUSY):
            block_m //= 2
        block_m = max(block_m, WARP // block_k)
        warps = min(8, max(1, block_m * block_k // (16 * WARP)))
        return {"BLOCK_M": block_m, "BLOCK_K": block_k, "num_warps": warps, "num_stages": 1}

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the bytes of x, mask and y; each value is scaled and added to once."""
        values = sizes["rows"] * sizes["channels"]
        return OperatorWork((2 * values + sizes["channels"]) * dtype.itemsize, values)

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes that programs read and write; rows of several steps are read twice."""
        passes = 2 if config["BLOCK_K"] >= sizes["channels"] else 3
        return passes * sizes["rows"] * sizes["channels"] * dtype.itemsize


softmax = Softmax()


PLUGINS = (
    Plugin("operator", "softmax", softmax, "Softmax of scaled and masked rows of any length"),
)
