"""Operator of a chain of steps; `hwnas.kernels.codegen.fusion.fuse` makes subclasses of it.

Values between the steps are float32 and stay in registers, so memory is read and written once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from types import ModuleType
from typing import ClassVar

import torch
import triton
from torch import Generator, Tensor

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.codegen.generated import digest, loaded, source_of
from hwnas.kernels.codegen.steps import (
    ChainStep,
    Operand,
    floating,
    named_operands,
    reference_of,
    stored_dtype,
)
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config, Inputs, Operator, OperatorWork, Sizes, dtype_name
from hwnas.kernels.primitives.tiles import powers
from hwnas.kernels.tuning.constraints import Constraint, Problem

__all__ = ["FUSED", "Chain", "chain_of"]

FUSED = "fused_"  # prefix of chains' names; their steps and a digest of their kernels follow
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
MOST_CHANNELS = 8192  # of one program, if a step needs all channels of a pixel
PROGRAMS = 256  # that keep a GPU busy: about two for each multiprocessor
MOST_PARTS = 64


class Chain(Operator):
    """Chain of steps that is computed by one kernel, or by two if it reduces pixels in parts.

    Bytes: x, operands and y, once each. Tolerance: that of the type of y.

    Attributes:
        steps: Steps in their order.
        source: Source of the module with the kernels.
    """

    steps: ClassVar[tuple[ChainStep, ...]]
    source: ClassVar[str]
    checked = (
        {"images": 1, "pixels": 49, "channels": 17},
        {"images": 2, "pixels": 13, "channels": 24},
        {"images": 1, "pixels": 1, "channels": 1},
    )
    measured = (
        {"images": 1, "pixels": 3136, "channels": 96},
        {"images": 1, "pixels": 196, "channels": 480},
    )

    @cached_property
    def kernels(self) -> ModuleType:
        """Module of the kernels, loaded from its file."""
        return loaded(self.source)

    @property
    def reduces(self) -> bool:
        """True if the pixels of an image are reduced to one value of each channel."""
        return any(step.reduction for step in self.steps)

    @property
    def needs_rows(self) -> bool:
        """True if a step needs all channels of a pixel."""
        return any(step.place == "rows" for step in self.steps)

    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the numbers of images, pixels and channels."""
        x = inputs["x"]
        if x.dim() < 2:
            raise KernelError(f"{self.name} takes x (N, ..., C); given {tuple(x.shape)}")
        for name, (place, operand) in named_operands(self.steps).items():
            if operand.per == "number":
                continue
            given, shape = inputs[name], _shape(operand, x)
            if given.shape != shape or not given.is_floating_point():
                raise KernelError(
                    f"step {place} ({self.steps[place].name}) takes floats {shape} as "
                    f"{operand.name}, one per {operand.per} of x; "
                    f"given {dtype_name(given.dtype)} {tuple(given.shape)}"
                )
        if self.needs_rows and x.shape[-1] > MOST_CHANNELS:
            raise KernelError(
                f"softmax and layer_norm take up to {MOST_CHANNELS} channels; given {x.shape[-1]}"
            )
        return {
            "images": x.shape[0],
            "pixels": x.shape[1:-1].numel(),
            "channels": x.shape[-1],
        }

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """Return any floating type for each operand."""
        return dict.fromkeys(named_operands(self.steps), (*FLOATS, torch.float64))

    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return Gaussian values, or uniform int8 ones, and operands around typical values."""
        shape = (sizes["images"], sizes["pixels"], sizes["channels"])
        if dtype == torch.int8:
            x = torch.randint(-128, 128, shape, generator=generator, dtype=dtype).to(device)
        else:
            x = torch.randn(shape, generator=generator).to(device, dtype)
        inputs: Inputs = {"x": x}
        for name, (_, operand) in named_operands(self.steps).items():
            inputs[name] = operand.typical
            if operand.per != "number":
                noise = torch.randn(_shape(operand, x), generator=generator) / 4
                inputs[name] = (operand.typical + noise).to(device, floating(dtype))
        return inputs

    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return an empty tensor for y."""
        x: Tensor = inputs["x"]
        shape = (len(x), x.shape[-1]) if self.reduces else x.shape
        return (x.new_empty(shape, dtype=stored_dtype(self.steps, x.dtype)),)

    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return one launch, or two if the pixels of an image are reduced in parts."""
        images, pixels, channels = self.sizes(inputs).values()
        blocks = triton.cdiv(channels, config["BLOCK_C"])
        constants = {"CHANNELS": channels} | {
            name: config[name] for name in ("BLOCK_P", "BLOCK_C", "PARTS") if name in config
        }
        options = (config["num_warps"], config["num_stages"])
        kernel, [y] = self.kernels.fused_kernel, outputs
        if not self.reduces:
            rows = images * pixels
            grid = (triton.cdiv(rows, config["BLOCK_P"]), blocks)
            arguments = inputs | {"y": y, "rows": rows, "pixels": pixels}
            return [Launch(kernel, grid, arguments, constants, *options)]
        parts = config["PARTS"]
        target = y if parts == 1 else y.new_empty(images, parts, channels, dtype=torch.float32)
        arguments = inputs | {"y": target, "pixels": pixels}
        first = Launch(kernel, (images * parts, blocks), arguments, constants, *options)
        return [first] if parts == 1 else [first, self._finish(inputs, target, y)]

    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return blocks with up to 32 values a thread, and parts that each have a pixel."""
        pixels = sizes["pixels"]
        width = triton.next_power_of_2(sizes["channels"])
        height = triton.next_power_of_2(pixels * (1 if self.reduces else sizes["images"]))
        variables = {
            "BLOCK_C": (width,) if self.needs_rows else powers(min(16, width), min(256, width)),
            "BLOCK_P": powers(1, min(256, height)),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 3) if self.reduces else (1,),
        }
        constraints = [
            Constraint(
                lambda BLOCK_P, BLOCK_C, num_warps: (
                    32 * num_warps * WARP >= BLOCK_P * BLOCK_C
                    and (num_warps == 1 or num_warps * WARP <= BLOCK_P * BLOCK_C)
                ),
                "a thread has more than 32 values, or none",
            )
        ]
        if self.reduces:
            variables["PARTS"] = powers(1, min(MOST_PARTS, height))
            constraints.append(
                Constraint(
                    lambda PARTS, BLOCK_P: PARTS == 1 or pixels > (PARTS - 1) * BLOCK_P,
                    "a part has no pixel",
                )
            )
        return Problem(variables, tuple(constraints))

    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return eight values a thread, so that a load has up to 16 bytes, and enough programs."""
        images, pixels, channels = sizes["images"], sizes["pixels"], sizes["channels"]
        width = triton.next_power_of_2(channels)
        block_c = width if self.needs_rows else min(32 if self.reduces else 128, width)
        height = triton.next_power_of_2(pixels * (1 if self.reduces else images))
        values = 1024
        if not self.reduces:
            values = _clipped(images * pixels * width // PROGRAMS, 256, 2048)
        block_p = _clipped(values // block_c, 1, min(256, height))
        config = {
            "BLOCK_C": block_c,
            "BLOCK_P": block_p,
            "num_warps": _clipped(block_p * block_c // (8 * WARP), 1, 8),
            "num_stages": 1,
        }
        if self.reduces:
            programs = images * triton.cdiv(channels, block_c)
            most = min(PROGRAMS // programs, pixels // (2 * block_p))
            # Fewer than eight parts are not worth the launch of a second kernel.
            config["PARTS"] = _clipped(most, 1, MOST_PARTS) if most >= 8 else 1
        return config

    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the work, with each step of each value counted as one multiply-accumulate.

        None of the steps is a product of matrices.
        """
        shape = (sizes["images"], sizes["pixels"], sizes["channels"])
        x = torch.empty(shape, dtype=dtype, device="meta")
        read = sum(
            math.prod(_shape(operand, x))
            for _, operand in named_operands(self.steps).values()
            if operand.per != "number"
        )
        [y] = self.outputs({"x": x})
        moved = x.nbytes + y.nbytes + read * floating(dtype).itemsize
        return OperatorWork(moved, x.numel() * len(self.steps))

    def _finish(self, inputs: Inputs, parts: Tensor, y: Tensor) -> Launch:
        """Return the launch of the kernel that combines the parts, (images, PARTS, C)."""
        cut = next(place for place, step in enumerate(self.steps) if step.reduction)
        named = named_operands(self.steps)
        arguments = {name: inputs[name] for name, (place, _) in named.items() if place >= cut}
        arguments |= {"parts": parts, "y": y, "pixels": inputs["x"].shape[1:-1].numel()}
        images, count, channels = parts.shape
        width = min(32, triton.next_power_of_2(channels))
        constants = {"CHANNELS": channels, "PARTS": count, "BLOCK_C": width}
        grid = (images, triton.cdiv(channels, width))
        return Launch(self.kernels.finish_kernel, grid, arguments, constants, 4, 1)


@cache
def chain_of(steps: tuple[ChainStep, ...]) -> Chain:
    """Return the operator of some steps, which is the same object for the same steps."""
    source = source_of(steps)
    made = type(
        "Chain",
        (Chain,),
        {
            "name": f"{FUSED}{'_'.join(step.name for step in steps)}_{digest(source)[:8]}",
            "dtypes": (torch.int8,) if steps[0].place == "first" else FLOATS,
            "steps": steps,
            "source": source,
            "reference": staticmethod(reference_of(steps)),
        },
    )
    chain: Chain = made()
    return chain


def _shape(operand: Operand, x: Tensor) -> tuple[int, ...]:
    """Return the shape of an operand for this input."""
    if operand.per == "channel":
        return tuple(x.shape[-1:])
    return (len(x), x.shape[-1]) if operand.per == "image" else tuple(x.shape)


def _clipped(number: int, low: int, high: int) -> int:
    """Return the largest power of two that is at most a number, limited to low..high."""
    return max(low, min(high, 1 << max(0, number.bit_length() - 1)))
