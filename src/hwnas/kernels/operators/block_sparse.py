"""Linear layers with block-sparse weights, as LPViT prunes them.

y = activation(x W + b) + residual, or activation(x W + b + residual), where W is divided into
blocks of HEIGHT input and WIDTH output channels (Xu et al., LPViT: Low-Power Semi-structured
Pruning for Vision Transformers, ECCV 2024). A strip is a column of blocks. The blocks that are kept
are stored dense, strip by strip, with a list of their positions in the strip; pruned blocks are
neither stored nor read nor multiplied. Sums are float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    powers,
    product_default,
    product_problem,
    store_activated,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Constraint, Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "BlockSparse", "PackedBlocks", "block_sparse", "pack_blocks"]

SIDES = powers(16, 128)  # tensor cores take 16 at least


@dataclass(frozen=True)
class PackedBlocks:
    """Kept blocks of a weight, in the order in which they are read.

    Attributes:
        blocks: Values of the blocks, (blocks, HEIGHT, WIDTH); zero beyond the edge of the weight.
        places: Position of each block in its strip, counted in blocks, (blocks,) int32.
        ends: Offsets of the strips, (strips + 1,) int32; strip i has the blocks from ``ends[i]`` to
            ``ends[i + 1]``.
        inputs: Number of input channels, K.
    """

    blocks: Tensor
    places: Tensor
    ends: Tensor
    inputs: int


def pack_blocks(weight: Tensor, mask: Tensor, height: int, width: int) -> PackedBlocks:
    """Return the blocks of a weight that a mask keeps.

    Args:
        weight: Weight, (K, C); neither size has to be a multiple of a block's side.
        mask: Mask of the blocks that are kept, bool, (K / height, C / width), both rounded up.
        height: Input channels of a block: 16, 32, 64 or 128.
        width: Output channels of a block: 16, 32, 64 or 128.

    Raises:
        KernelError: Blocks have other sides, or the mask does not fit the weight.
    """
    if height not in SIDES or width not in SIDES:
        sides = ", ".join(map(str, SIDES))
        raise KernelError(f"blocks are {height} x {width}; their sides can be {sides}")
    inner, outer = weight.shape
    tall, strips = triton.cdiv(inner, height), triton.cdiv(outer, width)
    if mask.shape != (tall, strips) or mask.dtype != torch.bool:
        raise KernelError(
            f"a weight {inner} x {outer} in blocks {height} x {width} has a bool mask "
            f"{tall} x {strips}; given {mask.dtype} {' x '.join(map(str, mask.shape))}"
        )
    whole = functional.pad(weight, (0, strips * width - outer, 0, tall * height - inner))
    blocks = whole.reshape(tall, height, strips, width).permute(2, 0, 1, 3)[mask.T]
    strip, place = mask.T.nonzero(as_tuple=True)
    ends = functional.pad(torch.bincount(strip, minlength=strips).cumsum(0), (1, 0))
    return PackedBlocks(blocks.contiguous(), place.int(), ends.int(), inner)


@triton.jit
def block_sparse_kernel(
    x,  # (M, K)
    blocks,  # (blocks, HEIGHT, WIDTH)
    places,  # (blocks,)
    ends,  # (strips + 1,)
    bias,  # (N,)
    residual,  # (M, N) or None
    y,  # (M, N)
    M,
    N,
    K,
    ALIGN_N: tl.constexpr,
    ALIGN_K: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ACTIVATION: tl.constexpr,
    RESIDUAL_FIRST: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute BLOCK_M rows of BLOCK_N channels of one strip in each program.

    Each block of the strip takes HEIGHT / BLOCK_K steps.
    """
    STEPS: tl.constexpr = HEIGHT // BLOCK_K
    PARTS: tl.constexpr = WIDTH // BLOCK_N
    strip = tl.program_id(1) // PARTS
    inside = (tl.program_id(1) % PARTS) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = strip * WIDTH + inside
    N, K = N // ALIGN_N * ALIGN_N, K // ALIGN_K * ALIGN_K
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.load(ends + strip) * STEPS, tl.load(ends + strip + 1) * STEPS):
        block = step // STEPS
        part = (step % STEPS) * BLOCK_K + tl.arange(0, BLOCK_K)
        inner = tl.load(places + block) * HEIGHT + part
        a = load_tile(x, rows, M, K, inner, K, UPCAST)
        b = tl.load(blocks + (block * HEIGHT + part)[:, None] * WIDTH + inside[None, :])
        if UPCAST:
            b = b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
    store_activated(total, bias, residual, y, rows, columns, M, N, ACTIVATION, RESIDUAL_FIRST)


class BlockSparse(Operator):
    """Linear layer with a block-sparse weight.

    Bytes: x, the kept blocks, b, residual and y, once each. Tolerance: that of a product with
    float32 sums.
    """

    name = "block_sparse"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"rows": 49, "inputs": 37, "outputs": 40, "height": 16, "width": 16, "blocks": 5}
        | {"residual": 0},
        {"rows": 13, "inputs": 64, "outputs": 70, "height": 32, "width": 64, "blocks": 3}
        | {"residual": 1},
        {"rows": 1, "inputs": 31, "outputs": 1, "height": 16, "width": 32, "blocks": 2}
        | {"residual": 0},
    )
    measured = (  # with half of the blocks
        {"rows": 196, "inputs": 240, "outputs": 960, "height": 32, "width": 32, "blocks": 120}
        | {"residual": 0},
        {"rows": 196, "inputs": 960, "outputs": 240, "height": 32, "width": 32, "blocks": 120}
        | {"residual": 0},
    )
    batched = "rows"

    @staticmethod
    def reference(
        x: Tensor,
        blocks: Tensor,
        places: Tensor,
        ends: Tensor,
        bias: Tensor,
        inputs: int,
        activation: str = "none",
        residual: Tensor | None = None,
        residual_first: bool = False,
    ) -> Tensor:
        """Compute the module's formula in PyTorch.

        Values of x that meet no kept block have no influence.

        Args:
            x: Input, (N, ..., K).
            blocks: Kept blocks, (blocks, HEIGHT, WIDTH), as in `PackedBlocks`.
            places: Positions of the blocks, (blocks,) int32, as in `PackedBlocks`.
            ends: Offsets of the strips, (strips + 1,) int32, as in `PackedBlocks`.
            bias: Bias, (C,).
            inputs: Number of input channels, K.
            activation: Name in `hwnas.kernels.primitives.activations.ACTIVATIONS`.
            residual: Residual, (N, ..., C).
            residual_first: Whether the residual is added before the activation, not after it.

        Returns:
            Output y, (N, ..., C), in the type of x.
        """
        count, height, width = blocks.shape
        strips, outer = len(ends) - 1, len(bias)
        tall = triton.cdiv(inputs, height)
        cut = functional.pad(x, (0, -inputs % height)).reshape(-1, tall, height)
        parts = torch.einsum("rbh,bhw->rbw", cut[:, places.long()], blocks)
        strip = torch.repeat_interleave(ends.diff().long(), output_size=count)
        y = parts.new_zeros(len(parts), strips, width).index_add(1, strip, parts)
        y = (y.flatten(1)[:, :outer] + bias).reshape(*x.shape[:-1], outer)
        return activated(y, residual, activation, residual_first)

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return rows of x, channels, sides and number of kept blocks, and residual (0 or 1)."""
        x, blocks, bias, residual = (inputs[name] for name in ("x", "blocks", "bias", "residual"))
        fits = (
            x.dim() >= 2
            and x.shape[-1] == inputs["inputs"]
            and blocks.dim() == 3
            and set(blocks.shape[1:]) <= set(SIDES)
            and bias.dim() == 1
            and inputs["places"].shape == blocks.shape[:1]
            and inputs["ends"].shape == (triton.cdiv(len(bias), blocks.shape[2]) + 1,)
            and (residual is None or residual.shape == (*x.shape[:-1], len(bias)))
        )
        takes = (
            "x (N, ..., inputs), bias (C,), residual (N, ..., C) and the result of pack_blocks for "
            "a weight (inputs, C)"
        )
        check_shapes(self.name, takes, fits, inputs, "inputs")
        return {
            "rows": x.shape[:-1].numel(),
            "inputs": x.shape[-1],
            "outputs": len(bias),
            "height": blocks.shape[1],
            "width": blocks.shape[2],
            "blocks": len(blocks),
            "residual": int(residual is not None),
        }

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """Return int32 for the lists of blocks."""
        return {"places": (torch.int32,), "ends": (torch.int32,)}

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values and random blocks; the activation is ``hard_swish``."""
        normal = RandomValues(dtype, generator, device).normal
        inner, outer = sizes["inputs"], sizes["outputs"]
        height, width = sizes["height"], sizes["width"]
        mask = torch.zeros(triton.cdiv(inner, height), triton.cdiv(outer, width), dtype=torch.bool)
        kept = torch.randperm(mask.numel(), generator=generator)[: sizes["blocks"]]
        mask.view(-1)[kept] = True
        weight = normal(inner, outer, scale=inner**-0.5)
        packed = pack_blocks(weight, mask.to(device), height, width)
        return {
            "x": normal(sizes["rows"], inner),
            "blocks": packed.blocks,
            "places": packed.places,
            "ends": packed.ends,
            "bias": normal(outer),
            "inputs": inner,
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
        sizes = self.sizes(inputs)
        rows, strips = sizes["rows"], len(inputs["ends"]) - 1
        parts = strips * (sizes["width"] // config["BLOCK_N"])
        grid = (triton.cdiv(rows, config["BLOCK_M"]), parts)
        names = ("x", "blocks", "places", "ends", "bias", "residual")
        arguments = {name: inputs[name] for name in names}
        outer, inner = sizes["outputs"], sizes["inputs"]
        return [
            Launch(
                block_sparse_kernel,
                grid,
                arguments | {"y": outputs[0], "M": rows, "N": outer, "K": inner},
                {"HEIGHT": sizes["height"], "WIDTH": sizes["width"]}
                | {"ALIGN_N": alignment(outer), "ALIGN_K": alignment(inner)}
                | {"ACTIVATION": inputs["activation"], "UPCAST": interpreting()}
                | {"RESIDUAL_FIRST": inputs["residual_first"]}
                | {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")},
                config["num_warps"],
                config["num_stages"],
            )
        ]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem of a matrix product in which a program stays inside a strip."""
        product = product_problem(sizes["rows"], sizes["width"], sizes["inputs"], dtype, gpu)
        height = sizes["height"]
        whole = Constraint(lambda BLOCK_K: height >= BLOCK_K, "a step is higher than a block")
        return replace(product, constraints=(*product.constraints, whole))

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return the default of a matrix product, with steps no longer than a block is high."""
        config = dict(product_default(sizes["rows"], sizes["width"], sizes["inputs"], dtype))
        return config | {"BLOCK_K": min(config["BLOCK_K"], sizes["height"])}

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work of the kept blocks."""
        rows, weights = sizes["rows"], sizes["blocks"] * sizes["height"] * sizes["width"]
        values = rows * sizes["inputs"] + weights + sizes["outputs"]
        values += rows * sizes["outputs"] * (1 + sizes["residual"])
        return OperatorWork(values * dtype.itemsize + self._list_bytes(sizes), rows * weights)

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes of x and of kept blocks that each program reads, of lists and of y."""
        rows, weights = sizes["rows"], sizes["blocks"] * sizes["height"] * sizes["width"]
        values: int = rows * weights // config["BLOCK_N"]
        values += weights * triton.cdiv(rows, config["BLOCK_M"])
        values += rows * sizes["outputs"] * (1 + sizes["residual"])
        return values * dtype.itemsize + self._list_bytes(sizes)

    def products(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the multiplications with kept blocks, for whole blocks of rows."""
        rows: int = triton.cdiv(sizes["rows"], config["BLOCK_M"]) * config["BLOCK_M"]
        return rows * sizes["blocks"] * sizes["height"] * sizes["width"]

    @staticmethod
    def _list_bytes(sizes: Sizes) -> int:
        """Return the bytes of the lists of positions and of strips."""
        strips: int = triton.cdiv(sizes["outputs"], sizes["width"])
        return 4 * (sizes["blocks"] + strips + 1)


block_sparse = BlockSparse()


PLUGINS = (
    Plugin("operator", "block_sparse", block_sparse, "Linear layer with block-sparse weights"),
)
