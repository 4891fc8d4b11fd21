"""Slimmed attention: pointwise layers of queries, keys and values, and attention, in one kernel.

y = softmax(Q K' / sqrt(d)) V with Q, K, V = x Wq + bq, x Wk + bk, x Wv + bv for each head, as in
LowFormer (Nottebaum, Dunnhofer and Micheloni, WACV 2025, section 3), on a map that a depthwise
convolution has downsampled. There are few pixels (49, at most some 200) and few channels of a head,
so a program can compute the queries, keys and values of its head from the map and keep them. Two or
four kernels would write 3 h d values a pixel and read them again; here each head reads the map
once, mostly from the second-level cache.

If all pixels are one block, nothing is computed twice. Otherwise each block of queries computes
keys and values again, which `OperatorWork` does not count: the fewer blocks the better, and from
some size on `hwnas.kernels.operators.pointwise` and `hwnas.kernels.operators.attention` are faster.
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
from hwnas.kernels.operators.attention import attended
from hwnas.kernels.primitives.tiles import load_tile, power_block, powers
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "SlimAttention", "slim_attention"]

WIDEST = 64  # most channels of a head


@triton.jit
def slim_attention_kernel(
    x,  # (N, P, C)
    weight,  # (C, 3, h, d): of queries, keys and values
    bias,  # (3, h, d) or None
    y,  # (N, P, h, d)
    P,
    C,
    heads,
    scale,  # log2(e) / sqrt(d)
    WIDTH: tl.constexpr,  # d
    UPCAST: tl.constexpr,
    WHOLE: tl.constexpr,  # true if all pixels are one block, which is then read once
    BLOCK_M: tl.constexpr,  # queries
    BLOCK_N: tl.constexpr,  # keys
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Compute BLOCK_M pixels of one head of one image in each program."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    image, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    all_heads = heads * WIDTH
    columns, end = head * WIDTH + tl.arange(0, BLOCK_D), (head + 1) * WIDTH
    row = 3 * all_heads  # stride of the weights' rows
    x += image * P * C
    q = _initial(bias, 0, columns, end, BLOCK_M)
    if not WHOLE:
        for first in range(0, C, BLOCK_C):
            inner = first + tl.arange(0, BLOCK_C)
            pixels = load_tile(x, rows, P, C, inner, C, UPCAST)
            wq = load_tile(weight, inner, C, row, columns, end, UPCAST)
            q = tl.dot(pixels, wq, q, input_precision="ieee")
    total = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weights = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, P, BLOCK_N):
        tokens = start + tl.arange(0, BLOCK_N)
        k = _initial(bias, all_heads, columns, end, BLOCK_N)
        v = _initial(bias, 2 * all_heads, columns, end, BLOCK_N)
        for first in range(0, C, BLOCK_C):
            inner = first + tl.arange(0, BLOCK_C)
            pixels = load_tile(x, tokens, P, C, inner, C, UPCAST)
            if WHOLE:
                wq = load_tile(weight, inner, C, row, columns, end, UPCAST)
                q = tl.dot(pixels, wq, q, input_precision="ieee")
            wk = load_tile(weight + all_heads, inner, C, row, columns, end, UPCAST)
            k = tl.dot(pixels, wk, k, input_precision="ieee")
            wv = load_tile(weight + 2 * all_heads, inner, C, row, columns, end, UPCAST)
            v = tl.dot(pixels, wv, v, input_precision="ieee")
        total, highest, weights = attended(
            _rounded(q, y, UPCAST),
            _rounded(k, y, UPCAST),
            _rounded(v, y, UPCAST),
            tokens[None, :] < P,
            scale,
            total,
            highest,
            weights,
        )
    tl.store(
        y + (image * P + rows[:, None]) * all_heads + columns[None, :],
        (total / weights[:, None]).to(y.dtype.element_ty),
        mask=(rows[:, None] < P) & (columns[None, :] < end),
    )


@triton.jit
def _initial(bias, offset, columns, end, ROWS: tl.constexpr):
    """Return the initial sums of a layer: its bias, the same for all rows, or zeros."""
    zeros = tl.zeros((ROWS, columns.shape[0]), tl.float32)
    if bias is None:
        return zeros
    else:
        values = tl.load(bias + offset + columns, mask=columns < end, other=0.0)
        return zeros + values.to(tl.float32)[None, :]


@triton.jit
def _rounded(sums, like, UPCAST: tl.constexpr):
    """Return sums in the type of a pointer, as the next product takes them; float32 if UPCAST."""
    if UPCAST:
        return sums
    else:
        return sums.to(like.dtype.element_ty)


class SlimAttention(Operator):
    """Attention together with the layers of its queries, keys and values.

    Bytes: x, W, b and y, once each. Tolerance: Q, K and V are rounded to the type of x.
    """

    name = "slim_attention"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"images": 1, "pixels": 49, "inputs": 19, "heads": 3, "width": 16, "bias": 0},
        {"images": 1, "pixels": 101, "inputs": 37, "heads": 1, "width": 7, "bias": 1},
        {"images": 2, "pixels": 19, "inputs": 40, "heads": 1, "width": 24, "bias": 1},
    )
    measured = (
        {"images": 1, "pixels": 100, "inputs": 48, "heads": 1, "width": 16, "bias": 0},
        {"images": 1, "pixels": 25, "inputs": 192, "heads": 6, "width": 16, "bias": 0},
    )

    @staticmethod
    def reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the module's formula in PyTorch.

        Args:
            x: Input, (N, ..., C), such as (N, H, W, C) for feature maps.
            weight: Weights of queries, keys and values, (C, 3, h, d); d is at most 64.
            bias: Biases of queries, keys and values, (3, h, d).

        Returns:
            Output y, (N, ..., h, d), in the type of x.
        """
        layers = torch.einsum("npc,cqhd->qnhpd", x.flatten(1, -2), weight)
        if bias is not None:
            layers = layers + bias[:, None, :, None]
        q, k, v = layers
        scores = (q * weight.shape[3] ** -0.5) @ k.transpose(2, 3)
        y: Tensor = scores.softmax(3) @ v
        return y.transpose(1, 2).reshape(*x.shape[:-1], *weight.shape[2:])

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return images, pixels, input channels, heads, channels of a head, and bias (0 or 1)."""
        x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
        fits = (
            x.dim() >= 3
            and weight.dim() == 4
            and weight.shape[:2] == (x.shape[-1], 3)
            and weight.shape[3] <= WIDEST
            and (bias is None or bias.shape == weight.shape[1:])
        )
        takes = f"x (N, ..., C), weight (C, 3, h, d) and bias (3, h, d), d at most {WIDEST}"
        check_shapes(self.name, takes, fits, inputs)
        return {
            "images": x.shape[0],
            "pixels": x.shape[1:-1].numel(),
            "inputs": x.shape[-1],
            "heads": weight.shape[2],
            "width": weight.shape[3],
            "bias": int(bias is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values; weights make queries, keys and values about as large as x."""
        normal = RandomValues(dtype, generator, device).normal
        inner, heads, width = sizes["inputs"], sizes["heads"], sizes["width"]
        return {
            "x": normal(sizes["images"], sizes["pixels"], inner),
            "weight": normal(inner, 3, heads, width, scale=inner**-0.5),
            "bias": normal(3, heads, width, scale=0.5) if sizes["bias"] else None,
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x: Tensor = inputs["x"]
        return (x.new_empty(*x.shape[:-1], *inputs["weight"].shape[2:]),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        x, weight = inputs["x"], inputs["weight"]
        images, pixels = len(x), x.shape[1:-1].numel()
        inner, _, heads, width = weight.shape
        whole = config["BLOCK_M"] == config["BLOCK_N"] >= pixels
        return [
            Launch(
                slim_attention_kernel,
                (triton.cdiv(pixels, config["BLOCK_M"]), images * heads),
                inputs
                | {"y": outputs[0], "P": pixels, "C": inner, "heads": heads}
                | {"scale": math.log2(math.e) / math.sqrt(width)},
                {"WIDTH": width, "UPCAST": interpreting(), "WHOLE": whole}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_C")}
                | {"BLOCK_D": power_block(width)},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return blocks of queries, keys and channels whose sums fit into registers together."""
        inner, width = sizes["inputs"], power_block(sizes["width"])
        pixels = power_block(sizes["pixels"])
        return Problem(
            {
                "BLOCK_M": powers(16, min(128, pixels)),
                "BLOCK_N": powers(16, min(256, pixels)),
                "BLOCK_C": powers(16, min(128, power_block(inner))),
                "num_warps": (1, 2, 4, 8),
                "num_stages": (1, 2, 3, 4),
            },
            (
                Constraint(
                    lambda BLOCK_M, BLOCK_N, num_warps: (
                        BLOCK_M * BLOCK_N // (num_warps * WARP) >= 4
                        and BLOCK_M * BLOCK_N + 2 * (BLOCK_M + BLOCK_N) * width
                        <= gpu.registers_per_thread // 2 * num_warps * WARP
                    ),
                    "scores and sums take more than half of a thread's registers, or leave threads "
                    "idle",
                ),
                Constraint(
                    lambda BLOCK_N, BLOCK_C, num_stages: (
                        (BLOCK_N + 3 * width) * BLOCK_C * dtype.itemsize * num_stages
                        <= gpu.shared_bytes
                    ),
                    "the blocks of all stages do not fit into shared memory",
                ),
                Constraint(
                    lambda BLOCK_C, num_stages: (
                        num_stages == 1 or BLOCK_C * (num_stages - 1) < inner
                    ),
                    "there are more stages than steps",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return one block of all pixels up to 64 of them, or up to 32 without tensor cores."""
        block = min(64 if dtype.itemsize <= 2 else 32, power_block(sizes["pixels"]))
        block_c = min(32, power_block(sizes["inputs"]))
        sums = block * block + 4 * block * power_block(sizes["width"])
        per_thread = 96 if dtype.itemsize <= 2 else 16
        warps = triton.next_power_of_2(triton.cdiv(sums, per_thread * WARP))
        return {
            "BLOCK_M": block,
            "BLOCK_N": block,
            "BLOCK_C": block_c,
            "num_warps": min(8, warps, block * block // 128),
            "num_stages": 2 if block_c < sizes["inputs"] else 1,
        }

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of three layers and of attention."""
        rows, inner = sizes["images"] * sizes["pixels"], sizes["inputs"]
        channels = sizes["heads"] * sizes["width"]
        values = rows * (inner + channels) + 3 * (inner + sizes["bias"]) * channels
        return OperatorWork(
            values * dtype.itemsize, rows * channels * (3 * inner + 2 * sizes["pixels"])
        )


slim_attention = SlimAttention()


PLUGINS = (Plugin("operator", "slim_attention", slim_attention, "Slimmed attention in one kernel"),)
