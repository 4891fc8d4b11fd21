"""Tiling of an inverted bottleneck into programs of a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from hwnas.kernels.accelerator import WARP, Accelerator
from hwnas.kernels.operator import Config, Sizes
from hwnas.kernels.primitives.tiles import least_idle, power_block, powers
from hwnas.kernels.primitives.windows import UNROLLED, out_map, window_registers, window_warps
from hwnas.kernels.tuning.constraints import Constraint, Problem

__all__ = ["Tile", "bottleneck_default", "bottleneck_problem"]

_WIDEST = 256  # most output channels that one program can hold
_MANY = 128  # programs that keep a large GPU busy


@dataclass(frozen=True)
class Tile:
    """Tile of the output, and the window of the input map that it depends on.

    Attributes:
        height: Height of the tile in pixels.
        width: Width of the tile in pixels.
        window_height: Height of the window, at most that of the map.
        window_width: Width of the window, at most that of the map.
        count: Number of tiles of an image.
    """

    height: int
    width: int
    window_height: int
    window_width: int
    count: int

    @classmethod
    def of(cls, sizes: Sizes, side: int) -> Tile:
        """Return a square tile, cut to the size of the output.

        Args:
            sizes: Sizes of an operator, with height, width, kernel and stride.
            side: Side of the tile in pixels.
        """
        _, height, width = out_map(sizes)
        own = min(side, height), min(side, width)
        reach = [(size - 1) * sizes["stride"] + sizes["kernel"] for size in own]
        return cls(
            *own,
            min(reach[0], sizes["height"]),
            min(reach[1], sizes["width"]),
            triton.cdiv(height, own[0]) * triton.cdiv(width, own[1]),
        )

    @property
    def pixels(self) -> int:
        """Number of output pixels of the tile."""
        return self.height * self.width

    @property
    def seen(self) -> int:
        """Number of pixels of the window."""
        return self.window_height * self.window_width

    def constants(self, block_m: int) -> dict[str, int]:
        """Return the tile's constants for kernels that expand ``block_m`` pixels at a time."""
        return {
            "TILE_H": self.height,
            "TILE_W": self.width,
            "WINDOW_H": self.window_height,
            "WINDOW_W": self.window_width,
            "ROWS": triton.cdiv(self.seen, block_m) * block_m,
            "BLOCK_M": block_m,
        }


def bottleneck_problem(sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
    """Return tiles whose windows are not much larger, and blocks whose sums fit into registers.

    ``FUSED`` says whether one kernel computes all. ``TILE`` is the side of a tile; BLOCK_M pixels
    of its window are expanded at a time to BLOCK_C hidden channels. The other blocks are those of
    the projection where it is a separate kernel.

    Args:
        sizes: Sizes of `inverted_bottleneck`.
        dtype: Type of all factors.
        gpu: GPU whose registers and shared memory limit the blocks.
    """
    images, height, width = out_map(sizes)
    outer, inner = power_block(sizes["outputs"]), power_block(sizes["inputs"], 64)
    hidden, tiles = power_block(sizes["hidden"]), {t: Tile.of(sizes, t) for t in _sides(sizes)}
    half = gpu.registers_per_thread // 2
    can_fuse = not sizes["squeezed"] and outer <= _WIDEST
    return Problem(
        {
            "FUSED": (0, 1) if can_fuse else (0,),
            "TILE": tuple(tiles),
            "BLOCK_M": (16, 32, 64, 128),
            "BLOCK_C": powers(16, min(64, hidden)),
            "PROJECT_M": (16, 64) if images * height * width > 16 else (16,),
            "PROJECT_N": powers(16, min(64, outer)),
            "PROJECT_K": (32, 128) if hidden >= 128 else (32,),
            "num_warps": (2, 4, 8),
        },
        (
            Constraint(
                lambda TILE, BLOCK_M: max(16, tiles[TILE].seen) > BLOCK_M // 2,
                "windows read at most half of the values that are expanded at a time",
            ),
            Constraint(
                lambda BLOCK_M, BLOCK_C, num_warps: (
                    2 <= BLOCK_M * BLOCK_C // (num_warps * WARP) <= 32
                ),
                "expanded channels leave threads idle, or take too many of their registers",
            ),
            Constraint(
                lambda BLOCK_C, num_warps: num_warps * WARP > BLOCK_C,
                "weights of one window position are exchanged between threads, not loaded",
            ),
            Constraint(
                lambda FUSED, TILE, num_warps: (
                    not FUSED
                    or power_block(tiles[TILE].pixels) * outer // (num_warps * WARP) <= half
                ),
                "sums of a tile's outputs take more than half of a thread's registers",
            ),
            Constraint(
                lambda FUSED, TILE, BLOCK_M, BLOCK_C, num_warps: (
                    window_registers(
                        (power_block(tiles[TILE].pixels) if FUSED else BLOCK_M)
                        * BLOCK_C
                        // (num_warps * WARP),
                        sizes["kernel"],
                        dtype,
                    )
                    <= half
                ),
                "values loaded for windows take more than half of a thread's registers",
            ),
            Constraint(
                lambda FUSED, TILE, BLOCK_M, BLOCK_C: (
                    (
                        (BLOCK_M + BLOCK_C) * inner
                        + FUSED * (power_block(tiles[TILE].pixels) + outer) * BLOCK_C
                    )
                    * dtype.itemsize
                    <= gpu.shared_bytes
                ),
                "factors of the products do not fit into shared memory",
            ),
            Constraint(
                lambda PROJECT_M, PROJECT_N, PROJECT_K: (
                    2 * (PROJECT_M + PROJECT_N) * PROJECT_K * dtype.itemsize <= gpu.shared_bytes
                ),
                "factors of the projection do not fit into shared memory",
            ),
            Constraint(
                lambda FUSED, PROJECT_M, PROJECT_N, PROJECT_K: (
                    not FUSED or (PROJECT_M, PROJECT_N, PROJECT_K) == (16, 16, 32)
                ),
                "a fused kernel has no second product, so its blocks do not vary",
            ),
        ),
    )


def bottleneck_default(sizes: Sizes, dtype: torch.dtype) -> Config:
    """Return one kernel if its tiles fill a large GPU; else tiles of 7 to 16 pixels.

    Float32 products use no tensor cores. The factors of the expansion are then in registers, too,
    so less is expanded at a time.
    """
    images, height, width = out_map(sizes)
    outer, sides = power_block(sizes["outputs"]), _sides(sizes)
    many = images * height * width >= _MANY * 64
    fused = many and not sizes["squeezed"] and outer <= 128 and 8 in sides
    block_c, single = 16, dtype.itemsize > 2
    if fused:
        side = 8
        wide = sizes["kernel"] == UNROLLED.value  # issues many loads at once
        block_c = 16 if wide or single else least_idle(sizes["hidden"], (32, 16))
    else:
        blocks = images * triton.cdiv(sizes["hidden"], block_c)
        usual = [side for side in sides if 7 <= side <= 16] or sides[-1:]
        enough = [side for side in usual if blocks * Tile.of(sizes, side).count >= _MANY]
        side = enough[-1] if enough else usual[0]
    project = (16, 16, 32)
    if not fused:
        deep = 128 if power_block(sizes["hidden"]) >= 128 else 32
        project = (64, min(64, outer), deep) if many else (16, 16, deep)
    tile = Tile.of(sizes, side)
    block_m = power_block(tile.seen, 32 if single else 64)
    windows = power_block(tile.pixels) if fused else block_m
    warps = window_warps(windows * block_c, sizes["hidden"], sizes["kernel"], dtype)
    return {
        "FUSED": int(fused),
        "TILE": side,
        "BLOCK_M": block_m,
        "BLOCK_C": block_c,
        **dict(zip(("PROJECT_M", "PROJECT_N", "PROJECT_K"), project, strict=True)),
        "num_warps": max(4 if fused else 2, warps),
    }


def _sides(sizes: Sizes) -> tuple[int, ...]:
    """Return ascending sides of tiles with windows of at most four times their share of the map."""
    side = max(out_map(sizes)[1:])
    sides = [small for small in (4, 7, 8, 14, 16, 28) if small < side]
    sides += [side] if side <= 28 else []
    return tuple(
        side
        for side, tile in ((side, Tile.of(sizes, side)) for side in sides)
        if tile.seen <= 4 * tile.pixels * sizes["stride"] ** 2
    )
