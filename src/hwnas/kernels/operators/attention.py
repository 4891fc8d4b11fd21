"""Attention for short sequences, with scores that never leave the chip.

y = softmax(Q K' / sqrt(d)) V for each head. As in FlashAttention-2 (Dao, ICLR 2024, algorithm 1) a
program keeps a block of queries and iterates over blocks of keys, with a running maximum and a
running sum of each row; it divides once, at the end. Exponentials are powers of two, for which a
GPU has an instruction, so the scale contains log2(e).

Queries, keys and values are read in the layout that linear layers write, (N, T, h, d), also as
parts of the rows of one layer. y has the same layout, so the next layer takes ``y.flatten(2)``.
Neither side needs a copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.tiles import power_block, powers
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "AttentionOperator", "attended", "attention"]

WIDEST = 128  # most channels of a head


@triton.jit
def attention_kernel(
    query,  # (N, T, h, d)
    key,  # (N, S, h, d)
    value,  # (N, S, h, d)
    y,  # (N, T, h, d)
    T,
    S,
    heads,
    query_image,  # stride of images, in values
    query_token,  # stride of tokens, in values
    key_image,
    key_token,
    value_image,
    value_token,
    scale,  # log2(e) / sqrt(d)
    WIDTH: tl.constexpr,  # d
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute BLOCK_M rows of one head of one image in each program."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    image, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    columns = tl.arange(0, BLOCK_D)
    in_width = columns[None, :] < WIDTH
    in_rows = (rows[:, None] < T) & in_width
    channels = head * WIDTH + columns[None, :]
    # Offsets in strided views, such as the parts of one packed layer, can exceed 32 bits.
    wide_image, wide_rows = image.to(tl.int64), rows.to(tl.int64)
    query += wide_image * query_image
    key += wide_image * key_image
    value += wide_image * value_image
    q = tl.load(query + wide_rows[:, None] * query_token + channels, mask=in_rows, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weights = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, S, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        wide_tokens = tokens.to(tl.int64)[:, None]
        in_tokens = (tokens[:, None] < S) & in_width
        k = tl.load(key + wide_tokens * key_token + channels, mask=in_tokens, other=0.0)
        v = tl.load(value + wide_tokens * value_token + channels, mask=in_tokens, other=0.0)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        total, highest, weights = attended(
            q, k, v, tokens[None, :] < S, scale, total, highest, weights
        )
    place = (wide_image * T + wide_rows[:, None]) * (heads * WIDTH) + channels
    tl.store(y + place, (total / weights[:, None]).to(y.dtype.element_ty), mask=in_rows)


@triton.jit
def attended(q, k, v, valid, scale, total, highest, weights):
    """Attend from a block of queries to one more block of keys and values.

    ``highest`` is the highest score so far, times the scale. ``total`` is the sum of weighted
    values and ``weights`` the sum of weights, both relative to the power of two of ``highest``.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    scores = tl.where(valid, scores, float("-inf"))
    reached = tl.maximum(highest, tl.max(scores, 1) * scale)
    # If all scores so far are minus infinity, their difference to the highest would be NaN.
    base = tl.where(reached == float("-inf"), 0.0, reached)
    powers_of_two = tl.exp2(scores * scale - base[:, None])  # one fused multiply-add before exp2
    shrink = tl.exp2(highest - base)
    weights = weights * shrink + tl.sum(powers_of_two, 1)
    total = tl.dot(powers_of_two.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
    return total, reached, weights


class AttentionOperator(Operator):
    """Scaled dot-product attention with several heads.

    Bytes: Q, K, V and y, once each. Tolerance: attention weights are rounded to the type of the
    values.
    """

    name = "attention"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"images": 1, "queries": 37, "keys": 37, "heads": 3, "width": 16},
        {"images": 1, "queries": 53, "keys": 101, "heads": 1, "width": 7},
        {"images": 2, "queries": 1, "keys": 37, "heads": 1, "width": 24},
    )
    measured = (
        {"images": 1, "queries": 196, "keys": 196, "heads": 3, "width": 64},
        {"images": 1, "queries": 49, "keys": 49, "heads": 4, "width": 64},
    )

    @staticmethod
    def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute the module's formula in PyTorch.

        Args:
            query: Queries, (N, T, h, d), d at most 128.
            key: Keys, (N, S, h, d).
            value: Values, (N, S, h, d).

        Returns:
            Output y, (N, T, h, d), contiguous, in the type of the queries.
        """
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        scores = (q * query.shape[3] ** -0.5) @ k.transpose(2, 3)
        y: Tensor = scores.softmax(3) @ v
        return y.transpose(1, 2).contiguous()

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the numbers of images, queries, keys, heads and channels of a head."""
        query, key, value = inputs["query"], inputs["key"], inputs["value"]
        fits = (
            query.dim() == key.dim() == 4
            and key.shape == value.shape
            and query.shape[::2] == key.shape[::2]
            and query.shape[3] == key.shape[3] <= WIDEST
        )
        takes = f"query (N, T, h, d), key (N, S, h, d) and value (N, S, h, d), d at most {WIDEST}"
        check_shapes(self.name, takes, fits, inputs)
        images, queries, heads, width = query.shape
        keys = key.shape[1]
        return dict(images=images, queries=queries, keys=keys, heads=heads, width=width)

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values; queries are larger, so that few keys have most of the weight."""
        normal = RandomValues(dtype, generator, device).normal
        images, width = sizes["images"], (sizes["heads"], sizes["width"])
        keys = images, sizes["keys"], *width
        return {
            "query": normal(images, sizes["queries"], *width, scale=2),
            "key": normal(*keys),
            "value": normal(*keys),
        }

    def counted(self, tensor: Tensor) -> int:
        """Return the number of values: offsets in strided views are counted in 64 bits."""
        return tensor.numel()

    def laid_out(self, inputs: Inputs) -> Inputs:
        """Return the inputs, copied only if the channels of a token are not contiguous."""
        return {name: x if _rows_lie_together(x) else x.contiguous() for name, x in inputs.items()}

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        query: Tensor = inputs["query"]
        return (query.new_empty(query.shape),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        images, queries, heads, width = inputs["query"].shape
        strides = {
            f"{name}_{of}": x.stride(axis)
            for name, x in inputs.items()
            for axis, of in enumerate(("image", "token"))
        }
        return [
            Launch(
                attention_kernel,
                (triton.cdiv(queries, config["BLOCK_M"]), images * heads),
                inputs
                | strides
                | {"y": outputs[0], "T": queries, "S": inputs["key"].shape[1], "heads": heads}
                | {"scale": math.log2(math.e) / math.sqrt(width)},
                {
                    "WIDTH": width,
                    "UPCAST": interpreting(),
                    "BLOCK_M": config["BLOCK_M"],
                    "BLOCK_N": config["BLOCK_N"],
                    "BLOCK_D": power_block(width),
                },
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return blocks of queries and keys whose scores and sums fit into registers."""
        width, keys = power_block(sizes["width"]), sizes["keys"]
        return Problem(
            {
                "BLOCK_M": powers(16, min(128, power_block(sizes["queries"]))),
                "BLOCK_N": powers(16, min(256, power_block(keys))),
                "num_warps": (1, 2, 4, 8),
                "num_stages": (1, 2, 3, 4),
            },
            (
                Constraint(
                    lambda BLOCK_M, BLOCK_N, num_warps: (
                        BLOCK_M * BLOCK_N // (num_warps * WARP) >= 4
                        and BLOCK_M * (BLOCK_N + width) // (num_warps * WARP)
                        <= gpu.registers_per_thread // 2
                    ),
                    "scores and sums take more than half of a thread's registers, or leave threads "
                    "idle",
                ),
                Constraint(
                    lambda BLOCK_M, BLOCK_N, num_stages: (
                        (BLOCK_M + 2 * BLOCK_N * num_stages) * width * dtype.itemsize
                        <= gpu.shared_bytes
                    ),
                    "keys and values of all stages do not fit into shared memory",
                ),
                Constraint(
                    lambda BLOCK_N, num_stages: (
                        num_stages == 1 or BLOCK_N * (num_stages - 1) < keys
                    ),
                    "there are more stages than steps",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return blocks of 16 queries unless that makes more programs than a GPU can hold.

        Float32 products use no tensor cores. A thread then keeps all channels of its queries, so
        there are more threads.
        """
        programs = sizes["images"] * sizes["heads"] * triton.cdiv(sizes["queries"], 16)
        block_m = min(64, power_block(sizes["queries"])) if programs > 1024 else 16
        block_n = min(32, power_block(sizes["keys"]))
        warps = max(1, block_m // 16) if dtype.itemsize <= 2 else block_m * block_n // 128
        return {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "num_warps": min(8, warps),
            "num_stages": 2 if block_n < sizes["keys"] else 1,
        }

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of two matrix products."""
        queries, keys = sizes["queries"], sizes["keys"]
        channels = sizes["images"] * sizes["heads"] * sizes["width"]
        values = 2 * (queries + keys) * channels
        return OperatorWork(values * dtype.itemsize, 2 * queries * keys * channels)


def _rows_lie_together(x: Tensor) -> bool:
    """Return whether the heads of a token and the channels of a head are contiguous."""
    return x.stride(3) == 1 and x.stride(2) == x.shape[3]


attention = AttentionOperator()


PLUGINS = (Plugin("operator", "attention", attention, "Attention for short sequences"),)
