"""Pointwise convolution, or a linear layer, with gate, activation and residual in one kernel.

y = activation((x * gate) W + b) + residual, where batch normalisation is folded into W and b and
the gate is that of a squeeze-excite; or activation((x * gate) W + b + residual), as in a ResNet.
The product is accumulated in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl
from torch import Generator, Tensor

from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.primitives.activations import activated
from hwnas.kernels.primitives.split_sum import (
    default_parts,
    in_parts,
    part_of_sum,
    parts_bytes,
    with_parts,
)
from hwnas.kernels.primitives.tiles import (
    alignment,
    load_tile,
    product_blocks,
    product_default,
    product_macs,
    product_problem,
    product_reads,
    store_activated,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "Pointwise", "pointwise"]


@triton.jit
def pointwise_kernel(
    x,  # (M, K)
    weight,  # (K, N)
    bias,  # (N,) or None
    gate,  # (images, K) or None
    residual,  # (M, N) or None
    y,  # (M, N), or (SPLIT_K, M, N)
    M,
    N,
    K,
    pixels,  # rows of x that share a row of the gate
    ALIGN_N: tl.constexpr,
    ALIGN_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RESIDUAL_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    """Compute BLOCK_M rows of BLOCK_N channels, or a part of their sums, in each program."""
    N, K = N // ALIGN_N * ALIGN_N, K // ALIGN_K * ALIGN_K
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    first, end = part_of_sum(K, SPLIT_K, BLOCK_K)
    for start in range(first, end, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = load_tile(x, rows, M, K, inner, K, False)
        if gate is not None:
            factor = load_tile(gate, rows // pixels, M // pixels, K, inner, K, True)
            a = (a.to(tl.float32) * factor).to(a.dtype)
        if UPCAST:
            a = a.to(tl.float32)
        b = load_tile(weight, inner, K, N, columns, N, UPCAST)
        total = tl.dot(a, b, total, input_precision="ieee")
    y += tl.program_id(2) * M * N
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION, RESIDUAL_FIRST)


class Pointwise(Operator):
    """Pointwise convolution with an optional gate and an optional residual.

    Bytes: x, W, b, gate, residual and y, once each. Tolerance: that of a product with float32 sums.
    """

    name = "pointwise"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"images": 1, "pixels": 49, "inputs": 17, "outputs": 23, "gate": 0, "residual": 0},
        {"images": 2, "pixels": 13, "inputs": 40, "outputs": 24, "gate": 1, "residual": 1},
        {"images": 1, "pixels": 1, "inputs": 31, "outputs": 1, "gate": 0, "residual": 1},
    )
    measured = (
        {"images": 1, "pixels": 3136, "inputs": 24, "outputs": 96, "gate": 0, "residual": 0},
        {"images": 1, "pixels": 196, "inputs": 480, "outputs": 80, "gate": 1, "residual": 1},
        {"images": 1, "pixels": 49, "inputs": 160, "outputs": 960, "gate": 0, "residual": 0},
    )

    @staticmethod
    def reference(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        gate: Tensor | None = None,
        residual: Tensor | None = None,
        activation: str = "none",
        residual_first: bool = False,
    ) -> Tensor:
        """Compute the module's formula in PyTorch.

        Args:
            x: Input, (N, ..., K), such as (N, H, W, K) for feature maps.
            weight: Weight, (K, C).
            bias: Bias, (C,).
            gate: Factors of the channels of each image, (N, K), in the type of x or float32.
            residual: Residual, (N, ..., C).
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`.
            residual_first: Whether the residual is added before the activation, not after it.

        Returns:
            Output y, (N, ..., C), in the type of x.
        """
        if gate is not None:
            x = (x * gate.reshape(len(x), *(1,) * (x.dim() - 2), -1)).to(x.dtype)
        return activated(x @ weight + bias, residual, activation, residual_first)

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return images, pixels, channels in and out, and gate and residual (0 or 1)."""
        x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
        gate, residual = inputs["gate"], inputs["residual"]
        fits = (
            x.dim() >= 2
            and weight.dim() == 2
            and weight.shape[0] == x.shape[-1]
            and bias.shape == weight.shape[1:]
            and (gate is None or gate.shape == (x.shape[0], x.shape[-1]))
            and (residual is None or residual.shape == (*x.shape[:-1], weight.shape[1]))
        )
        takes = "x (N, ..., K), weight (K, C), bias (C,), gate (N, K) and residual (N, ..., C)"
        check_shapes(self.name, takes, fits, inputs)
        return {
            "images": x.shape[0],
            "pixels": x.shape[1:-1].numel(),
            "inputs": x.shape[-1],
            "outputs": weight.shape[1],
            "gate": int(gate is not None),
            "residual": int(residual is not None),
        }

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """Return the type of x or float32 for a gate, as sums over pixels are float32."""
        return {"gate": (dtype, torch.float32)}

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values and gates from 0 to 1; the activation is ``hard_swish``."""
        random = RandomValues(dtype, generator, device)
        images, pixels = sizes["images"], sizes["pixels"]
        inner, outer = sizes["inputs"], sizes["outputs"]
        gate = random.uniform(images, inner)
        return {
            "x": random.normal(images, pixels, inner),
            "weight": random.normal(inner, outer, scale=inner**-0.5),
            "bias": random.normal(outer),
            "gate": gate if sizes["gate"] else None,
            "residual": random.normal(images, pixels, outer) if sizes["residual"] else None,
            "activation": "hard_swish",
            "residual_first": False,
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x: Tensor = inputs["x"]
        return (x.new_empty(*x.shape[:-1], inputs["weight"].shape[1]),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return one launch, or two if sums are split into parts."""
        [y], (inner, outer) = outputs, inputs["weight"].shape
        rows = y.shape[:-1].numel()
        names = ("x", "weight", "bias", "gate", "residual")
        blocks = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT_K")
        whole = Launch(
            pointwise_kernel,
            product_blocks(rows, outer, config),
            {name: inputs[name] for name in names}
            | {"y": y, "M": rows, "N": outer, "K": inner, "pixels": rows // len(y)},
            {"ALIGN_N": alignment(outer), "ALIGN_K": alignment(inner), "UPCAST": interpreting()}
            | {"ACTIVATION": inputs["activation"], "RESIDUAL_FIRST": inputs["residual_first"]}
            | {name: config[name] for name in blocks},
            config["num_warps"],
            config["num_stages"],
        )
        return in_parts(whole, y, config["SPLIT_K"])

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem of a matrix product whose sums can be split into parts."""
        product = self._product(sizes)
        return with_parts(product_problem(*product, dtype, gpu), *product, gpu)

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return the default of a matrix product; long sums of few programs are split."""
        product = self._product(sizes)
        config = product_default(*product, dtype)
        return {**config, "SPLIT_K": default_parts(*product, config)}

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of one product."""
        rows, outer, inner = self._product(sizes)
        values = rows * inner + inner * outer + outer + rows * outer * (1 + sizes["residual"])
        values += sizes["gate"] * sizes["images"] * inner
        return OperatorWork(values * dtype.itemsize, rows * inner * outer)

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes of the factors and gates that each program reads, of y and of parts."""
        rows, outer, inner = self._product(sizes)
        reads = product_reads(rows, outer, inner, config)
        reads += sizes["gate"] * rows * inner * -(-outer // config["BLOCK_N"])
        moved = dtype.itemsize * (reads + rows * outer * (1 + sizes["residual"]))
        return moved + parts_bytes(rows, outer, config["SPLIT_K"])

    def products(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the multiplications of whole blocks."""
        return product_macs(*self._product(sizes), config)

    @staticmethod
    def _product(sizes: Sizes) -> tuple[int, int, int]:
        """Return M, N and K of the product (rows, columns and length of a sum)."""
        return sizes["images"] * sizes["pixels"], sizes["outputs"], sizes["inputs"]


pointwise = Pointwise()


PLUGINS = (
    Plugin(
        "operator",
        "pointwise",
        pointwise,
        "Pointwise convolution with gate, activation and residual",
    ),
)
