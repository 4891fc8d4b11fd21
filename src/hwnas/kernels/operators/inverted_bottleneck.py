"""Whole inverted bottleneck: expand, depthwise, squeeze-excite if it has one, project.

h = activation(window sums of activation(x W + b) + b'), g = hard_sigmoid(W'' relu(W' mean(h))),
y = (h * g) P + p + residual, where batch normalisations are folded into weights (MobileNetV3,
Howard et al., ICCV 2019; the same as `search_spaces.layers.InvertedBottleneck`).

There are two algorithms, and ``FUSED`` of a configuration selects one:

- 1: one kernel, in which each program computes a tile of the output; the hidden map is never whole.
  Pixels that the windows of neighbouring tiles share are expanded more than once. This is fast for
  large maps, or many images, with few channels: there are tiles for all multiprocessors, and the
  hidden map costs most. It does not support a squeeze-excite.
- 0: one kernel expands and convolves the hidden map, in parallel over its channels as well as over
  tiles, and a pointwise kernel projects it. This is fast for maps of 14 x 14 and 7 x 7 at batch 1
  and 8, which have too few tiles. A squeeze-excite costs one small kernel between them. The hidden
  map is written once and read once, which is 94 KB for 7 x 7 x 960 in float16: the second-level
  cache holds it. This is slow if that cache does not hold it, as for large maps at batch 64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Generator, Tensor
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.arguments import check_shapes
from hwnas.kernels.launch import Launch, interpreting
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.primitives.activations import ACTIVATIONS
from hwnas.kernels.primitives.bottleneck_tiles import Tile, bottleneck_default, bottleneck_problem
from hwnas.kernels.primitives.hidden_map import (
    bottleneck_kernel,
    expand_depthwise_kernel,
    gate_kernel,
)
from hwnas.kernels.primitives.tiles import power_block
from hwnas.kernels.primitives.windows import (
    check_stride,
    check_windows,
    convolve,
    out_map,
    out_shape,
)
from hwnas.kernels.suite.random_values import RandomValues
from hwnas.kernels.tuning.constraints import Problem
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "InvertedBottleneckOperator", "inverted_bottleneck"]

_GATE = ("reduce_weight", "reduce_bias", "excite_weight", "excite_bias")
_MADE_OF = ("x", "expand_weight", "expand_bias", "weight", "bias")  # inputs of the hidden map
_CONSTANT = ("height", "width", "inputs", "hidden", "kernel", "stride")


class InvertedBottleneckOperator(Operator):
    """Inverted bottleneck with an optional squeeze-excite and an optional residual.

    Bytes: x, weights, biases, residual and y, once each. Tolerance: that of float32 sums.

    Between layers values are rounded to the type of x; the gate is float32.
    """

    name = "inverted_bottleneck"
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    checked = (
        {"images": 2, "height": 7, "width": 5, "inputs": 19, "hidden": 41, "outputs": 19}
        | {"kernel": 3, "stride": 1, "squeezed": 0, "residual": 1},
        {"images": 2, "height": 5, "width": 4, "inputs": 17, "hidden": 35, "outputs": 24}
        | {"kernel": 5, "stride": 2, "squeezed": 11, "residual": 0},
        {"images": 1, "height": 5, "width": 6, "inputs": 24, "hidden": 33, "outputs": 17}
        | {"kernel": 3, "stride": 2, "squeezed": 0, "residual": 0},
    )
    measured = (
        {"images": 1, "height": 56, "width": 56, "inputs": 24, "hidden": 144, "outputs": 40}
        | {"kernel": 3, "stride": 2, "squeezed": 40, "residual": 0},
        {"images": 1, "height": 14, "width": 14, "inputs": 80, "hidden": 480, "outputs": 80}
        | {"kernel": 3, "stride": 1, "squeezed": 0, "residual": 1},
        {"images": 1, "height": 7, "width": 7, "inputs": 160, "hidden": 960, "outputs": 160}
        | {"kernel": 5, "stride": 1, "squeezed": 240, "residual": 1},
    )

    @staticmethod
    def reference(
        x: Tensor,
        expand_weight: Tensor,
        expand_bias: Tensor,
        weight: Tensor,
        bias: Tensor,
        project_weight: Tensor,
        project_bias: Tensor,
        reduce_weight: Tensor | None = None,
        reduce_bias: Tensor | None = None,
        excite_weight: Tensor | None = None,
        excite_bias: Tensor | None = None,
        residual: Tensor | None = None,
        stride: int = 1,
        activation: str = "relu",
    ) -> Tensor:
        """Compute the module's formulas in PyTorch.

        Args:
            x: Feature maps, (N, H, W, K).
            expand_weight: Weight of the expansion, (K, C).
            expand_bias: Bias of the expansion, (C,).
            weight: Depthwise weight, (k, k, C), k odd and at most 11; the map is padded by k // 2.
            bias: Bias of the depthwise convolution, (C,).
            project_weight: Weight of the projection, (C, L).
            project_bias: Bias of the projection, (L,).
            reduce_weight: First weight of the squeeze-excite, (C, S); all four of its tensors or
                none are given.
            reduce_bias: First bias of the squeeze-excite, (S,).
            excite_weight: Second weight of the squeeze-excite, (S, C).
            excite_bias: Second bias of the squeeze-excite, (C,).
            residual: Residual, (N, H / stride, W / stride, L), rounded up, added at the end.
            stride: Stride of the depthwise convolution, 1 or 2.
            activation: Activation after the first two convolutions, a name in
                `hwnas.kernels.primitives.activations.ACTIVATIONS`.

        Returns:
            Output y, (N, H / stride, W / stride, L), rounded up, in the type of x.
        """
        activate = ACTIVATIONS[activation]
        hidden = activate(convolve(activate(x @ expand_weight + expand_bias), weight, bias, stride))
        if reduce_weight is not None and excite_weight is not None:
            means = hidden.mean((1, 2))
            vector = functional.relu(functional.linear(means, reduce_weight.T, reduce_bias))
            gate = functional.linear(vector, excite_weight.T, excite_bias)
            hidden = hidden * functional.hardsigmoid(gate)[:, None, None]
        y = hidden @ project_weight + project_bias
        return y if residual is None else y + residual

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the sizes of map, channels, window and stride, and residual (0 or 1)."""
        check_stride(self.name, inputs["stride"])
        takes = (
            "x (N, H, W, K), expand_weight (K, C), expand_bias (C,), weight (k, k, C), bias (C,), "
            "project_weight (C, L), project_bias (L,), residual (N, H / stride, W / stride, L) and "
            "all or none of reduce_weight (C, S), reduce_bias (S,), excite_weight (S, C) and "
            "excite_bias (C,)"
        )
        check_shapes(self.name, takes, self._fit(inputs), inputs)
        check_windows(self.name, inputs)
        x, (hidden, outer) = inputs["x"], inputs["project_weight"].shape
        reduce, residual = inputs["reduce_weight"], inputs["residual"]
        if x.shape[:3].numel() * hidden >= 2**31:
            raise KernelError(
                f"{self.name} takes hidden maps of less than 2^31 values; given "
                f"{tuple(x.shape[:3])} x {hidden}; use fewer images"
            )
        return dict(zip(("images", "height", "width", "inputs"), x.shape, strict=True)) | {
            "hidden": hidden,
            "outputs": outer,
            "kernel": inputs["weight"].shape[0],
            "stride": inputs["stride"],
            "squeezed": 0 if reduce is None else reduce.shape[1],
            "residual": int(residual is not None),
        }

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values; the activation is ``hard_swish``."""
        normal = RandomValues(dtype, generator, device).normal

        def factors(inner: int, outer: int) -> Tensor:
            return normal(inner, outer, scale=inner**-0.5)

        images, height, width = out_map(sizes)
        inner, hidden, outer = sizes["inputs"], sizes["hidden"], sizes["outputs"]
        kernel, squeezed = sizes["kernel"], sizes["squeezed"]
        gate = (
            (factors(hidden, squeezed), normal(squeezed), factors(squeezed, hidden), normal(hidden))
            if squeezed
            else (None,) * 4
        )
        return {
            "x": normal(images, sizes["height"], sizes["width"], inner),
            "expand_weight": factors(inner, hidden),
            "expand_bias": normal(hidden),
            "weight": normal(kernel, kernel, hidden, scale=1 / kernel),
            "bias": normal(hidden),
            "project_weight": factors(hidden, outer),
            "project_bias": normal(outer),
            **dict(zip(_GATE, gate, strict=True)),
            "residual": normal(images, height, width, outer) if sizes["residual"] else None,
            "stride": sizes["stride"],
            "activation": "hard_swish",
        }

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x, channels = inputs["x"], inputs["project_weight"].shape[1]
        return (x.new_empty(out_shape(x, inputs["stride"], channels)),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return one launch if fused; otherwise two, or three with a squeeze-excite."""
        [y] = outputs
        sizes = self.sizes(inputs)
        tile = Tile.of(sizes, config["TILE"])
        constants = (
            {name.upper(): sizes[name] for name in _CONSTANT}
            | {"ACTIVATION": inputs["activation"], "UPCAST": interpreting()}
            | tile.constants(config["BLOCK_M"])
            | {"BLOCK_C": config["BLOCK_C"], "BLOCK_K": power_block(sizes["inputs"], 64)}
        )
        arguments = {name: inputs[name] for name in _MADE_OF}
        if config["FUSED"]:
            return [_whole(inputs, y, tile, arguments, constants, config["num_warps"])]
        x = inputs["x"]
        blocks = triton.cdiv(sizes["hidden"], config["BLOCK_C"])
        grid = (tile.count, blocks, sizes["images"])
        hidden = x.new_empty(*y.shape[:3], sizes["hidden"])
        squeezed: Tensor | None = None
        gate: Tensor | None = None
        gates = []
        if sizes["squeezed"]:
            squeezed = x.new_empty(
                sizes["images"], tile.count * blocks, sizes["squeezed"], dtype=torch.float32
            )
            gate = x.new_empty(sizes["images"], sizes["hidden"], dtype=torch.float32)
            gates = [_gate(inputs, squeezed, gate)]
        pieces = x.new_empty(math.prod(grid), constants["ROWS"], config["BLOCK_C"])
        made = Launch(
            expand_depthwise_kernel,
            grid,
            arguments
            | {"reduce_weight": inputs["reduce_weight"], "scratch": pieces}
            | {"hidden": hidden, "squeezed": squeezed},
            constants | {"SQUEEZED": sizes["squeezed"], "BLOCK_S": 64},
            config["num_warps"],
            num_stages=1,
            max_registers=128 if x.dtype.itemsize > 2 else None,  # without tensor cores
        )
        project = {
            "x": hidden,
            "weight": inputs["project_weight"],
            "bias": inputs["project_bias"],
            "gate": gate,
            "residual": inputs["residual"],
            "activation": "none",
            "residual_first": False,
        }
        return [made, *gates, *pointwise.launches(project, outputs, _projection(config))]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return tilings of the output and blocks of the hidden channels."""
        return bottleneck_problem(sizes, dtype, gpu)

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return one kernel if its tiles fill a large GPU; else tiles of 7 to 16 pixels."""
        return bottleneck_default(sizes, dtype)

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work, with padding counted as multiplied and no pixel expanded twice."""
        images, height, width = out_map(sizes)
        inner, hidden, outer = sizes["inputs"], sizes["hidden"], sizes["outputs"]
        window, squeezed = sizes["kernel"] ** 2, sizes["squeezed"]
        seen, made = images * sizes["height"] * sizes["width"], images * height * width
        weights = (inner + 1) * hidden + (window + 1) * hidden + (hidden + 1) * outer
        gate = 2 * hidden * squeezed
        biases = squeezed + hidden if squeezed else 0
        values = seen * inner + weights + gate + biases + made * outer * (1 + sizes["residual"])
        macs = seen * inner * hidden + made * hidden * (window + outer) + images * gate
        return OperatorWork(values * dtype.itemsize, macs)

    @staticmethod
    def _fit(inputs: Inputs) -> bool:
        """Return whether the shapes fit each other."""
        x, expand, project = (inputs[name] for name in ("x", "expand_weight", "project_weight"))
        weight, residual = inputs["weight"], inputs["residual"]
        gate = [inputs[name] for name in _GATE]
        if (x.dim(), expand.dim(), weight.dim(), project.dim()) != (4, 2, 3, 2):
            return False
        hidden, outer = project.shape
        shapes = {
            "expand_weight": (x.shape[3], hidden),
            "expand_bias": (hidden,),
            "weight": (weight.shape[0], weight.shape[0], hidden),
            "bias": (hidden,),
            "project_bias": (outer,),
        }
        if residual is not None:
            shapes["residual"] = out_shape(x, inputs["stride"], outer)
        if any(part is not None for part in gate):
            if any(part is None for part in gate):
                return False
            squeezed = max(1, inputs["reduce_bias"].numel())
            gate_shapes = ((hidden, squeezed), (squeezed,), (squeezed, hidden), (hidden,))
            shapes |= dict(zip(_GATE, gate_shapes, strict=True))
        return all(inputs[name].shape == shape for name, shape in shapes.items())


def _whole(
    inputs: Inputs,
    y: Tensor,
    tile: Tile,
    arguments: dict[str, Any],
    constants: dict[str, Any],
    num_warps: int,
) -> Launch:
    """Return the launch of the fused kernel."""
    outer, grid = y.shape[3], (tile.count, y.shape[0])
    pieces = y.new_empty(2 * math.prod(grid), constants["ROWS"], constants["BLOCK_C"])
    tensors = ("project_weight", "project_bias", "residual")
    return Launch(
        bottleneck_kernel,
        grid,
        arguments | {name: inputs[name] for name in tensors} | {"scratch": pieces, "y": y},
        constants
        | {"OUTPUTS": outer, "BLOCK_P": power_block(tile.pixels), "BLOCK_N": power_block(outer)},
        num_warps,
        num_stages=1,
    )


def _gate(inputs: Inputs, squeezed: Tensor, gate: Tensor) -> Launch:
    """Return the launch that computes the gate from the parts of the squeezed vector."""
    images, parts, size = squeezed.shape
    hidden = gate.shape[1]
    return Launch(
        gate_kernel,
        (triton.cdiv(hidden, 32), images),
        {name: inputs[name] for name in _GATE[1:]}
        | {"squeezed": squeezed, "gate": gate, "parts": parts},
        {"SQUEEZED": size, "HIDDEN": hidden, "BLOCK_C": 32}
        | {"BLOCK_T": min(32, triton.next_power_of_2(parts)), "BLOCK_S": power_block(size, 256)},
        num_warps=8,
        num_stages=1,
    )


def _projection(config: Config) -> Config:
    """Return the configuration of the pointwise kernel, from that of the operator."""
    block_m, block_n = config["PROJECT_M"], config["PROJECT_N"]
    return {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": config["PROJECT_K"],
        "SPLIT_K": 1,
        "num_warps": min(4, max(2, block_m * block_n // 256)),
        "num_stages": 2,
    }


inverted_bottleneck = InvertedBottleneckOperator()


PLUGINS = (
    Plugin(
        "operator",
        "inverted_bottleneck",
        inverted_bottleneck,
        "Whole inverted bottleneck in one kernel",
    ),
)
