"""Linear layers with 2:4 sparsity: at most two of each four input channels per output.

y = activation(x W + b) + residual, or activation(x W + b + residual). The two values of a group of
four channels are stored, with four bits that give their positions. Triton has no instruction for
the sparse tensor cores, so this saves no multiplication: a program expands the loaded values in
registers. It saves bytes (a weight of 16-bit values takes 9/16 of them), which decide the time at
batch 1. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.activations import activated
from hwnas.kernels.primitives.tiles import (
    alignment,
    load_tile,
    product_blocks,
    product_macs,
    product_problem,
    store_activated,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "TwoFour", "pack_two_four", "two_four", "unpack_two_four"]

LEAST_K = 64  # tensor cores take 16 channels at least, and each of the four has its own product


def pack_two_four(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Pack a weight with 2:4 sparsity.

    Args:
        weight: Weight, (K, C); K is a multiple of 4.

    Returns:
        values, (K / 2, C), two of each group of four rows, and places, (K / 8 rounded up, C) uint8:
        in its lower four bits the two rows of one group, from 0 to 3, and in its upper four those
        of the next.

    Raises:
        KernelError: K is no multiple of 4, or a group has more than two values that are not zero.
    """
    inner, outer = weight.shape
    if inner % 4:
        raise KernelError(f"the rows of a 2:4 weight are a multiple of 4; given {inner} x {outer}")
    groups = weight.reshape(inner // 4, 4, outer)
    filled = groups != 0
    if (wrong := filled.sum(1) > 2).any():
        group, column = wrong.nonzero()[0].tolist()
        raise KernelError(
            f"the weight is not 2:4: rows {4 * group} to {4 * group + 3} of column {column} have "
            f"{int(filled[group, :, column].sum())} values that are not 0; prune it to 2 first"
        )
    order = filled.byte().argsort(dim=1, descending=True, stable=True)
    places = order[:, :2].sort(1).values
    values = groups.gather(1, places).reshape(inner // 2, outer)
    bits = places[:, 0] | places[:, 1] << 2
    bits = functional.pad(bits, (0, 0, 0, len(bits) % 2))
    return values, (bits[0::2] | bits[1::2] << 4).byte()


def unpack_two_four(values: Tensor, places: Tensor) -> Tensor:
    """Return the weight (K, C) that `pack_two_four` was given, with its zeros."""
    half, outer = values.shape
    bits = torch.stack((places & 15, places >> 4), 1).flatten(0, 1)[: half // 2].long()
    rows = torch.stack((bits & 3, bits >> 2), 1)
    groups = values.new_zeros(half // 2, 4, outer)
    return groups.scatter(1, rows, values.reshape(half // 2, 2, outer)).flatten(0, 1)


@triton.jit
def two_four_kernel(
    x,  # (M, K)
    values,  # (K / 2, N)
    places,  # (K / 8 rounded up, N)
    bias,  # (N,)
    residual,  # (M, N) or None
    y,  # (M, N)
    M,
    N,
    K,
    ALIGN_N: tl.constexpr,
    ALIGN_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RESIDUAL_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_M rows of BLOCK_N channels in each program.

    The first channels of all groups make one product, the second ones another, and so on, so that
    expanded values never move between threads.
    """
    N, K = N // ALIGN_N * ALIGN_N, K // ALIGN_K * ALIGN_K
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        group = start // 4 + tl.arange(0, BLOCK_K // 4)
        stored = (group[:, None] < K // 4) & (columns[None, :] < N)
        byte = tl.load(
            places + (group // 2)[:, None] * N + columns[None, :], mask=stored, other=0
        ).to(tl.int32)
        bits = byte >> ((group % 2) * 4)[:, None]
        place = (2 * group)[:, None] * N + columns[None, :]
        low = tl.load(values + place, mask=stored, other=0.0)
        high = tl.load(values + place + N, mask=stored, other=0.0)
        inner = start + tl.arange(0, BLOCK_K)
        a = load_tile(x, rows, M, K, inner, K, UPCAST)
        if UPCAST:
            low, high = low.to(tl.float32), high.to(tl.float32)
        even, odd = tl.split(tl.reshape(a, (BLOCK_M, BLOCK_K // 4, 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        total = tl.dot(first, _row(low, high, bits, 0), total, input_precision="ieee")
        total = tl.dot(second, _row(low, high, bits, 1), total, input_precision="ieee")
        total = tl.dot(third, _row(low, high, bits, 2), total, input_precision="ieee")
        total = tl.dot(fourth, _row(low, high, bits, 3), total, input_precision="ieee")
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION, RESIDUAL_FIRST)


@triton.jit
def _row(low, high, bits, PLACE: tl.constexpr):
    """Return the rows of the weight that are at a position in their group."""
    row = tl.where((bits >> 2) & 3 == PLACE, high, tl.zeros_like(high))
    return tl.where(bits & 3 == PLACE, low, row)


class TwoFour(Operator):
    """Linear layer with 2:4 sparsity.

    Bytes: x, the values, their positions, b, residual and y, once each. Tolerance: that of a
    product with float32 sums.
    """

    name = "two_four"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"rows": 49, "inputs": 20, "outputs": 23, "residual": 0},
        {"rows": 13, "inputs": 136, "outputs": 40, "residual": 1},
        {"rows": 1, "inputs": 4, "outputs": 1, "residual": 0},
    )
    measured = (
        {"rows": 196, "inputs": 192, "outputs": 768, "residual": 0},
        {"rows": 1, "inputs": 960, "outputs": 1280, "residual": 0},
    )
    batched = "rows"

    @staticmethod
    def reference(
        x: Tensor,
        values: Tensor,
        places: Tensor,
        bias: Tensor,
        activation: str = "none",
        residual: Tensor | None = None,
        residual_first: bool = False,
    ) -> Tensor:
        """Compute the module's formula in PyTorch.

        Args:
            x: Input, (N, ..., K).
            values: Values, (K / 2, C), from `pack_two_four`.
            places: Positions of the values, (K / 8 rounded up, C) uint8, from `pack_two_four`.
            bias: Bias, (C,).
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`.
            residual: Residual, (N, ..., C).
            residual_first: Whether the residual is added before the activation, not after it.

        Returns:
            Output y, (N, ..., C), in the type of x.
        """
        y = x @ unpack_two_four(values, places) + bias
        return activated(y, residual, activation, residual_first)

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the rows of x, channels in and out, and residual (0 or 1)."""
        x, values, bias, residual = (inputs[name] for name in ("x", "values", "bias", "residual"))
        fits = (
            x.dim() >= 2
            and x.shape[-1] % 4 == 0
            and values.shape == (x.shape[-1] // 2, *bias.shape)
            and inputs["places"].shape == (triton.cdiv(x.shape[-1], 8), *bias.shape)
            and (residual is None or residual.shape == (*x.shape[:-1], *bias.shape))
        )
        takes = (
            "x (N, ..., K), bias (C,), residual (N, ..., C) and the result of pack_two_four for a "
            "weight (K, C)"
        )
        check_shapes(self.name, takes, fits, inputs)
        return {
            "rows": x.shape[:-1].numel(),
            "inputs": x.shape[-1],
            "outputs": len(bias),
            "residual": int(residual is not None),
        }

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """Return uint8 for the positions."""
        return {"places": (torch.uint8,)}

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values at random positions; the activation is ``hard_swish``."""
        normal = RandomValues(dtype, generator, device).normal
        inner, outer = sizes["inputs"], sizes["outputs"]
        ranks = torch.rand(inner // 4, 4, outer, generator=generator).argsort(1)
        kept = (ranks < 2).reshape(inner, outer).to(device)
        values, places = pack_two_four(normal(inner, outer, scale=(inner / 2) ** -0.5) * kept)
        return {
            "x": normal(sizes["rows"], inner),
            "values": values,
            "places": places,
            "bias": normal(outer),
            "activation": "hard_swish",
            "residual": normal(sizes["rows"], outer) if sizes["residual"] else None,
            "residual_first": False,
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x: Tensor = inputs["x"]
        return (x.new_empty(*x.shape[:-1], len(inputs["bias"])),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        rows, inner, outer, _ = self.sizes(inputs).values()
        names = ("x", "values", "places", "bias", "residual")
        arguments = {name: inputs[name] for name in names}
        return [
            Launch(
                two_four_kernel,
                product_blocks(rows, outer, config),
                arguments | {"y": outputs[0], "M": rows, "N": outer, "K": inner},
                {"ALIGN_N": alignment(outer), "ALIGN_K": alignment(inner)}
                | {"ACTIVATION": inputs["activation"], "UPCAST": interpreting()}
                | {"RESIDUAL_FIRST": inputs["residual_first"]}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem of a matrix product with at least 16 groups a step."""
        product = product_problem(*self._product(sizes), dtype, gpu)
        enough = Constraint(lambda BLOCK_K: BLOCK_K >= LEAST_K, "a step has fewer than 16 groups")
        return replace(product, constraints=(*product.constraints, enough))

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return narrow blocks, as expansion takes registers; narrower ones if programs are few."""
        rows, columns, inner = self._product(sizes)
        block_m = 64 if rows >= 4096 else 16
        most = 64 if block_m == 64 and dtype.itemsize < 4 else 32
        block_n = min(most, max(16, triton.next_power_of_2(columns)))
        while block_n > 16 and triton.cdiv(rows, block_m) * triton.cdiv(columns, block_n) < 132:
            block_n //= 2
        return {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": LEAST_K,
            "num_warps": 4 if block_m == 64 else block_n // 16,
            "num_stages": 2 if inner > LEAST_K else 1,
        }

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of a product in which only stored values are multiplied."""
        rows, inner, outer = sizes["rows"], sizes["inputs"], sizes["outputs"]
        values = rows * inner + (inner // 2 + 1 + rows * (1 + sizes["residual"])) * outer
        places = triton.cdiv(inner, 8) * outer
        return OperatorWork(values * dtype.itemsize + places, rows * inner // 2 * outer)

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes of x, values and positions that each program reads, and of y."""
        rows, inner, outer = sizes["rows"], sizes["inputs"], sizes["outputs"]
        down, across = product_blocks(rows, outer, config)
        values = rows * inner * across + inner // 2 * outer * down
        values += rows * outer * (1 + sizes["residual"])
        places: int = triton.cdiv(inner, 8) * outer * down
        return values * dtype.itemsize + places

    def products(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the multiplications of the expanded weight, zeros included."""
        return product_macs(sizes["rows"], sizes["outputs"], sizes["inputs"], config)

    @staticmethod
    def _product(sizes: Sizes) -> tuple[int, int, int]:
        """Return M, N and K of the product (rows, columns and length of a sum).

        K is at least one step.
        """
        return sizes["rows"], sizes["outputs"], max(sizes["inputs"], LEAST_K)


two_four = TwoFour()


PLUGINS = (Plugin("operator", "two_four", two_four, "Linear layer with 2:4 sparsity"),)
