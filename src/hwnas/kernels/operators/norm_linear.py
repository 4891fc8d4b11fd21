"""Layer normalisation and the linear layer after it in one kernel.

y = activation(((x - mean) / sqrt(variance + epsilon)) W + b) + residual, with mean and variance of
each row, so that normalised rows never leave the chip. The scale and shift of the normalisation are
folded into W and b once (`fold_norm`), not at each call: (n * s + t) W + b is
n (diag(s) W) + (t W + b). Queries, keys and values are one layer whose outputs lie side by side.

Mean and variance of a row are merged from those of its blocks (Chan, Golub and LeVeque, The
American Statistician 1983), which loses no digits where the mean is large.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor
from torch.nn import functional

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.activations import ACTIVATIONS
from hwnas.kernels.primitives.tiles import (
    alignment,
    load_tile,
    power_block,
    powers,
    product_blocks,
    product_default,
    product_macs,
    product_problem,
    product_reads,
    store_activated,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "NormLinear", "fold_norm", "norm_linear"]


def fold_norm(
    scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Fold the scale and shift of a normalisation into the linear layer after it.

    Args:
        scale: Scale, (K,), the weight of ``torch.nn.LayerNorm``.
        shift: Shift, (K,), the bias of ``torch.nn.LayerNorm``.
        weight: Weight of the linear layer, (K, C), transposed as all weights here.
        bias: Bias of the linear layer, (C,); zeros if None.

    Returns:
        Weight (K, C) and bias (C,), computed in float64 and rounded once.
    """
    wide = weight.double()
    folded = shift.double() @ wide
    if bias is not None:
        folded = folded + bias.double()
    return (scale.double()[:, None] * wide).to(weight.dtype), folded.to(weight.dtype)


@triton.jit
def norm_linear_kernel(
    x,  # (M, K)
    weight,  # (K, N)
    bias,  # (N,)
    residual,  # (M, N) or None
    y,  # (M, N)
    M,
    N,
    K,
    epsilon,
    ALIGN_N: tl.constexpr,
    ALIGN_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    WHOLE: tl.constexpr,  # true if a row is one block, which is then read once
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_M rows of BLOCK_N channels in each program."""
    N, K = N // ALIGN_N * ALIGN_N, K // ALIGN_K * ALIGN_K
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    if WHOLE:
        a = load_tile(x, rows, M, K, inner, K, False)
        b = load_tile(weight, inner, K, N, columns, N, UPCAST)
        mean, squares = _moments(a, inner[None, :] < K, K)
        a = _normalised(a, mean, tl.rsqrt(squares / K + epsilon), inner[None, :] < K)
        total = tl.dot(a.to(b.dtype), b, input_precision="ieee")
    else:
        mean = tl.zeros((BLOCK_M,), tl.float32)
        squares = tl.zeros((BLOCK_M,), tl.float32)
        for start in range(0, K, BLOCK_K):
            a = load_tile(x, rows, M, K, start + inner, K, False)
            count = tl.minimum(K - start, BLOCK_K)
            block_mean, block_squares = _moments(a, start + inner[None, :] < K, count)
            difference = block_mean - mean
            share = count / (start + count)
            mean += difference * share
            squares += block_squares + difference * difference * start * share
        scale = tl.rsqrt(squares / K + epsilon)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, K, BLOCK_K):
            a = load_tile(x, rows, M, K, start + inner, K, False)
            b = load_tile(weight, start + inner, K, N, columns, N, UPCAST)
            a = _normalised(a, mean, scale, start + inner[None, :] < K)
            total = tl.dot(a.to(b.dtype), b, total, input_precision="ieee")
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION)


@triton.jit
def _moments(a, valid, count):
    """Return the mean of each row of a, (M,), and the sum of squared differences from it, (M,)."""
    wide = a.to(tl.float32)
    mean = tl.sum(wide, 1) / count
    apart = tl.where(valid, wide - mean[:, None], 0.0)
    return mean, tl.sum(apart * apart, 1)


@triton.jit
def _normalised(a, mean, scale, valid):
    """Return the rows of a with mean 0 and variance 1, in the type of a; zeros if not ``valid``."""
    return tl.where(valid, (a.to(tl.float32) - mean[:, None]) * scale[:, None], 0.0).to(a.dtype)


class NormLinear(Operator):
    """Linear layer of layer-normalised rows.

    Bytes: x, W, b, residual and y, once each. Tolerance: that of a product with float32 sums.

    Rows whose values are all the same become b, since epsilon keeps the division finite.
    """

    name = "norm_linear"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"rows": 37, "inputs": 19, "outputs": 23, "residual": 0},
        {"rows": 13, "inputs": 67, "outputs": 48, "residual": 1},
        {"rows": 1, "inputs": 300, "outputs": 7, "residual": 0},
    )
    measured = (
        {"rows": 196, "inputs": 240, "outputs": 576, "residual": 0},
        {"rows": 196, "inputs": 240, "outputs": 960, "residual": 0},
    )
    batched = "rows"

    @staticmethod
    def reference(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None = None,
        activation: str = "none",
        epsilon: float = 1e-5,
    ) -> Tensor:
        """Compute the module's formula in PyTorch.

        Args:
            x: Input, (N, ..., K), such as (N, T, K) for tokens.
            weight: Weight, (K, C), from `fold_norm` if the normalisation has a scale.
            bias: Bias, (C,), from `fold_norm` likewise.
            residual: Residual, (N, ..., C), added after the activation.
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`.
            epsilon: Number that is added to variances.

        Returns:
            Output y, (N, ..., C), in the type of x.
        """
        normalised = functional.layer_norm(x, x.shape[-1:], eps=epsilon)
        y = ACTIVATIONS[activation](normalised @ weight + bias)
        return y if residual is None else y + residual

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the number of normalised rows, channels in and out, and residual (0 or 1)."""
        x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
        residual = inputs["residual"]
        fits = (
            x.dim() >= 2
            and weight.dim() == 2
            and weight.shape[0] == x.shape[-1]
            and bias.shape == weight.shape[1:]
            and (residual is None or residual.shape == (*x.shape[:-1], weight.shape[1]))
        )
        takes = "x (N, ..., K), weight (K, C), bias (C,) and residual (N, ..., C)"
        check_shapes(self.name, takes, fits, inputs)
        return {
            "rows": x.shape[:-1].numel(),
            "inputs": x.shape[-1],
            "outputs": weight.shape[1],
            "residual": int(residual is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return rows of different means and scales; the activation is ``gelu``."""
        normal = RandomValues(torch.float32, generator, torch.device("cpu")).normal
        rows, inner, outer = sizes["rows"], sizes["inputs"], sizes["outputs"]
        values = {
            "x": normal(1, rows, inner) * normal(1, rows, 1).exp() + 3 * normal(1, rows, 1),
            "weight": normal(inner, outer) * inner**-0.5,
            "bias": normal(outer),
            "residual": normal(1, rows, outer),
        }
        inputs: Inputs = {name: value.to(device, dtype) for name, value in values.items()}
        if not sizes["residual"]:
            inputs["residual"] = None
        return inputs | {"activation": "gelu", "epsilon": 1e-5}

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x: Tensor = inputs["x"]
        return (x.new_empty(*x.shape[:-1], inputs["weight"].shape[1]),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return the launch of the kernel."""
        x, weight = inputs["x"], inputs["weight"]
        (inner, outer), rows = weight.shape, x.shape[:-1].numel()
        names = ("x", "weight", "bias", "residual", "epsilon")
        return [
            Launch(
                norm_linear_kernel,
                product_blocks(rows, outer, config),
                {name: inputs[name] for name in names}
                | {"y": outputs[0], "M": rows, "N": outer, "K": inner},
                {"ALIGN_N": alignment(outer), "ALIGN_K": alignment(inner)}
                | {"ACTIVATION": inputs["activation"], "UPCAST": interpreting()}
                | {"WHOLE": config["BLOCK_K"] >= inner}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem of a product, with steps of up to a whole row held in registers."""
        product = product_problem(*self._product(sizes), dtype, gpu)
        longest = min(512, power_block(sizes["inputs"]))
        return Problem(
            {**product.variables, "BLOCK_K": powers(16, longest)},
            (
                *product.constraints,
                Constraint(
                    lambda BLOCK_M, BLOCK_K, num_warps: (
                        BLOCK_M * BLOCK_K // (num_warps * WARP) <= gpu.registers_per_thread // 4 + 1
                    ),
                    "rows take more than a quarter of a thread's registers",
                ),
            ),
        )

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return the default of a product; with short rows one step, which reads a row once.

        Float32 products use no tensor cores. A long step then takes too many registers.
        """
        config = dict(product_default(*self._product(sizes), dtype))
        block_m, block_n = config["BLOCK_M"], config["BLOCK_N"]
        warps = min(4, block_m * block_n // 256)
        whole = power_block(sizes["inputs"])
        if dtype.itemsize <= 2 and block_m * whole <= 64 * warps * WARP:
            config |= {"BLOCK_K": whole, "num_warps": warps, "num_stages": 1}
        return config

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of one product."""
        rows, outer, inner = self._product(sizes)
        values = rows * inner + inner * outer + outer + rows * outer * (1 + sizes["residual"])
        return OperatorWork(values * dtype.itemsize, rows * inner * outer)

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes that programs read and write; rows of several steps are read twice."""
        rows, outer, inner = self._product(sizes)
        values = product_reads(rows, outer, inner, config) + rows * outer * (1 + sizes["residual"])
        if config["BLOCK_K"] < inner:
            values += rows * inner * triton.cdiv(outer, config["BLOCK_N"])
        return dtype.itemsize * values

    def products(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the multiplications of whole blocks."""
        return product_macs(*self._product(sizes), config)

    @staticmethod
    def _product(sizes: Sizes) -> tuple[int, int, int]:
        """Return M, N and K of the product (rows, columns and length of a sum)."""
        return sizes["rows"], sizes["outputs"], sizes["inputs"]


norm_linear = NormLinear()


PLUGINS = (
    Plugin(
        "operator", "norm_linear", norm_linear, "Layer normalisation and linear layer in one kernel"
    ),
)
