"""Pointwise convolution, or a linear layer, from int8 to int8, requantised in the same kernel.

y = requantise(x W^T + b), see `hwnas.kernels.primitives.requantisation`. The product is exact, in
int32, on tensor cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config, Inputs, OperatorWork, Sizes
from hwnas.kernels.primitives.requantisation import (
    RequantisingOperator,
    check_requantisation,
    example_requantisation,
    requantise,
    requantised_arguments,
    store_requantised,
)
from hwnas.kernels.primitives.tiles import (
    alignment,
    int8_product_default,
    product_blocks,
    product_problem,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Int8Pointwise", "int8_pointwise"]


@triton.jit
def int8_pointwise_kernel(
    x,  # (M, K)
    weight,  # (N, K)
    bias,  # (N,)
    multiplier,  # (N,)
    residual,  # (M, N) or None
    table,  # (256,) or None
    y,  # (M, N)
    M,
    N,
    K,
    y_scale,
    y_zero,
    residual_step,
    residual_zero,
    table_zero,
    ALIGN_N: tl.constexpr,
    ALIGN_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_M rows of BLOCK_N channels in each program."""
    N, K = N // ALIGN_N * ALIGN_N, K // ALIGN_K * ALIGN_K
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows, in_columns = rows[:, None] < M, columns[None, :] < N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            x + rows[:, None] * K + inner[None, :], mask=in_rows & (inner[None, :] < K), other=0
        )
        b = tl.load(
            weight + columns[None, :] * K + inner[:, None],
            mask=(inner[:, None] < K) & in_columns,
            other=0,
        )
        total = tl.dot(a, b, total, out_dtype=tl.int32)
    store_requantised(
        total,
        bias,
        multiplier,
        residual,
        table,
        y,
        rows[:, None] * N + columns[None, :],
        in_rows & in_columns,
        columns[None, :],
        in_columns,
        y_scale,
        y_zero,
        residual_step,
        residual_zero,
        table_zero,
        ACTIVATION,
    )


class Int8Pointwise(RequantisingOperator):
    """Pointwise convolution of int8 values.

    Bytes: x, W, b, multiplier, residual and y, once each. Tolerance: one step.

    The weights of an output channel are contiguous, as in ONNX and PyTorch, because tensor cores
    read int8 values only along the sum.
    """

    name = "int8_pointwise"
    checked = (
        {"rows": 49, "inputs": 17, "outputs": 23, "residual": 0, "table": 0},
        {"rows": 26, "inputs": 72, "outputs": 24, "residual": 1, "table": 1},
        {"rows": 1, "inputs": 131, "outputs": 1, "residual": 1, "table": 0},
    )
    measured = (
        {"rows": 3136, "inputs": 24, "outputs": 96, "residual": 0, "table": 0},
        {"rows": 196, "inputs": 480, "outputs": 80, "residual": 1, "table": 0},
        {"rows": 49, "inputs": 160, "outputs": 960, "residual": 0, "table": 0},
    )
    batched = "rows"

    @staticmethod
    def reference(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        multiplier: Tensor,
        y_scale: float,
        y_zero: int,
        residual: Tensor | None = None,
        residual_scale: float = 1.0,
        residual_zero: int = 0,
        activation: str = "none",
        table: Tensor | None = None,
        table_zero: int = 0,
    ) -> Tensor:
        """Compute the module's formula in PyTorch.

        `hwnas.kernels.primitives.requantisation.folded` returns ``bias`` and ``multiplier``.

        Args:
            x: Input, (N, ..., K) in int8, such as (N, H, W, K) for feature maps.
            weight: Weight, (C, K) in int8.
            bias: Bias, (C,) in int32, less the zero point of x times the sum of a channel's
                weights.
            multiplier: Multiplier, (C,) in float32: x_scale * weight_scale / y_scale.
            y_scale: Scale of the output, above 0.
            y_zero: Zero point of the output, from -128 to 127.
            residual: Residual, (N, ..., C) in int8, added after the activation or the table.
            residual_scale: Scale of the residual, above 0.
            residual_zero: Zero point of the residual, from -128 to 127.
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`, for the value in
                real units.
            table: Lookup table, (256,) in float32, instead of an activation.
            table_zero: Zero point of the steps that index the table, from -128 to 127.

        Returns:
            Output y, (N, ..., C) in int8.
        """
        # Exact: integers below 2^53. PyTorch multiplies no matrices of integers on a GPU.
        total = x.double() @ weight.double().T + bias
        return requantise(
            total,
            multiplier,
            y_scale,
            y_zero,
            residual,
            residual_scale,
            residual_zero,
            activation,
            table,
            table_zero,
        )

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the number of rows, channels in and out, and residual and table (0 or 1)."""
        x, weight, residual = inputs["x"], inputs["weight"], inputs["residual"]
        fits = (
            x.dim() >= 2
            and weight.dim() == 2
            and weight.shape[1] == x.shape[-1]
            and inputs["bias"].shape == inputs["multiplier"].shape == weight.shape[:1]
            and (residual is None or residual.shape == (*x.shape[:-1], len(weight)))
        )
        takes = "x (N, ..., K), weight (C, K), bias and multiplier (C,) and residual (N, ..., C)"
        check_shapes(self.name, takes, fits, inputs)
        check_requantisation(self.name, inputs)
        return {
            "rows": x.shape[:-1].numel(),
            "inputs": x.shape[-1],
            "outputs": len(weight),
            "residual": int(residual is not None),
            "table": int(inputs["table"] is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return uniform int8 values; the activation is ``hard_swish`` if there is no table."""
        steps = RandomValues(dtype, generator, device).steps
        rows, outer, inner = self._product(sizes)
        return {
            "x": steps(rows, inner),
            "weight": steps(outer, inner),
            **example_requantisation((rows, outer), inner, sizes, generator, device),
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x: Tensor = inputs["x"]
        return (x.new_empty(*x.shape[:-1], len(inputs["weight"])),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        x, weight = inputs["x"], inputs["weight"]
        (outer, inner), rows = weight.shape, x.shape[:-1].numel()
        return [
            Launch(
                int8_pointwise_kernel,
                product_blocks(rows, outer, config),
                {"x": x, "weight": weight, "y": outputs[0], "M": rows, "N": outer, "K": inner}
                | requantised_arguments(inputs),
                {"ALIGN_N": alignment(outer), "ALIGN_K": alignment(inner)}
                | {"ACTIVATION": inputs["activation"]}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem of a matrix product."""
        return product_problem(*self._product(sizes), dtype, gpu)

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return the default of a matrix product, with longer steps, as int8 values are small."""
        rows, outer, inner = self._product(sizes)
        return int8_product_default(rows, outer, inner, triton.next_power_of_2(inner))

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of one product; bias and multiplier take four bytes each."""
        rows, outer, inner = self._product(sizes)
        moved = rows * inner + inner * outer + 8 * outer + rows * outer * (1 + sizes["residual"])
        return OperatorWork(moved, rows * inner * outer)

    @staticmethod
    def _product(sizes: Sizes) -> tuple[int, int, int]:
        """Return M, N and K of the product (rows, columns and length of a sum)."""
        return sizes["rows"], sizes["outputs"], sizes["inputs"]


int8_pointwise = Int8Pointwise()


PLUGINS = (
    Plugin("operator", "int8_pointwise", int8_pointwise, "Pointwise convolution from int8 to int8"),
)
