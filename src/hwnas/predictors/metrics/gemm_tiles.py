"""Matrix products in tiles of given sizes, as Triton kernels compute them on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from hwnas.deploy.runtimes.checks import missing_package
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.metrics.gemm import Gemm

if TYPE_CHECKING:
    from hwnas.kernels.accelerator import Accelerator

__all__ = ["GemmTile", "TileSite", "TiledGemm", "allowed_tiles", "sampled_tiles"]

_WARP = 32
_LEAST_SIDE = 16
_SUMS = 64  # sums a thread from which on registers are scarce
_MOST = 20_000  # most tiles of a product
_POOL = 64  # different tiles that are sampled; each is compiled, which takes longest
_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
_NAMES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")


@dataclass(frozen=True, order=True)
class GemmTile:
    """Tile configuration of a matrix product.

    Attributes:
        m: Rows of the result that one program computes, a power of two.
        n: Columns of the result that one program computes, a power of two.
        k: Terms of a sum that are loaded at once, a power of two.
        warps: Warps of 32 threads in a program, a power of two.
        stages: Steps along k that are loaded ahead, at least 1.
    """

    m: int
    n: int
    k: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        powers = all(side > 0 and side & (side - 1) == 0 for side in astuple(self)[:4])
        if not powers or self.stages < 1:
            raise ConfigError(
                f"tile {self} is not valid; expected MxNxKxWARPSxSTAGES with powers of two before "
                "the stages, such as 64x64x32x4x3"
            )

    def __str__(self) -> str:
        """Return a text such as ``64x64x32x4x3``, which `parse` reads."""
        return "x".join(map(str, astuple(self)))

    @classmethod
    def parse(cls, text: str) -> GemmTile:
        """Return the tile of a text such as ``64x64x32x4x3``.

        Raises:
            ConfigError: The text is not of this form.
        """
        try:
            m, n, k, warps, stages = map(int, text.split("x"))
        except ValueError:
            raise ConfigError(
                f"tile {text!r} is not of the form MxNxKxWARPSxSTAGES, such as 64x64x32x4x3"
            ) from None
        return cls(m, n, k, warps, stages)

    @classmethod
    def of(cls, config: Mapping[str, int]) -> GemmTile:
        """Return the tile of a kernel's configuration."""
        return cls(*(config[name] for name in _NAMES))

    @property
    def config(self) -> dict[str, int]:
        """Configuration of the operator ``pointwise`` with this tile, and whole sums."""
        return {**dict(zip(_NAMES, astuple(self), strict=True)), "SPLIT_K": 1}


@dataclass(frozen=True)
class TileSite:
    """GPU, number format and batch size with which products are computed in tiles.

    Attributes:
        multiprocessors: Number of multiprocessors.
        shared_bytes: Most bytes of shared memory of one program.
        registers_per_thread: Most registers of one thread.
        itemsize: Bytes of one value.
        batch: Number of products with the same second matrix in a run.
    """

    multiprocessors: int
    shared_bytes: int
    registers_per_thread: int
    itemsize: int
    batch: int = 1

    def __post_init__(self) -> None:
        if min(astuple(self)) < 1:
            raise ConfigError(f"{self} has a number below 1; calibrate the GPU again")

    @classmethod
    def of(cls, gpu: Accelerator, target: Target) -> TileSite:
        """Return the site of a target on a GPU.

        Raises:
            ConfigError: Products of this format are not computed in tiles of floating point.
        """
        if target.format not in _BYTES:
            raise ConfigError(
                f"products are timed in {', '.join(_BYTES)}, not in {target.format}; choose one of "
                "these formats"
            )
        limits = gpu.multiprocessors, gpu.shared_bytes, gpu.registers_per_thread
        return cls(*limits, _BYTES[target.format], target.device.batch)

    def check(self, tile: GemmTile) -> None:
        """Raise if no kernel can compute in a tile here.

        Raises:
            ConfigError: The tile has sides that tensor cores lack, or is too large.
        """
        if min(tile.m, tile.n, tile.k) < _LEAST_SIDE:
            raise ConfigError(f"tile {tile} has a side below {_LEAST_SIDE}, the least of a GPU")
        asked = (tile.m + tile.n) * tile.k * self.itemsize * tile.stages
        if asked > self.shared_bytes:
            raise ConfigError(
                f"tile {tile} needs {asked:,} bytes of shared memory, and the GPU has "
                f"{self.shared_bytes:,}; choose shorter sides or fewer stages"
            )


@dataclass(frozen=True)
class TiledGemm:
    """Matrix product in a tile, at a site.

    Attributes:
        gemm: Sizes of the product.
        tile: Tile that it is computed in.
        site: GPU, number format and batch size.
    """

    gemm: Gemm
    tile: GemmTile
    site: TileSite

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes m, n and k of the product."""
        return self.gemm.sizes

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one product, without padding."""
        return self.gemm.macs

    @property
    def work(self) -> tuple[float, ...]:
        """Amount of each kind of work.

        The kinds are a call and the bytes of the three matrices; then, for the busiest
        multiprocessor and for an average one, its steps, the bytes and products of its steps, and
        the sums that it stores; then what the busiest one waits for with few stages, with few warps
        and for the barriers between many; and registers and shared memory that are scarce.
        """
        (m, n, k), tile = self.sizes, self.tile
        m *= self.site.batch
        programs = math.ceil(m / tile.m) * math.ceil(n / tile.n)
        rounds = math.ceil(programs / self.site.multiprocessors)
        depth = math.ceil(k / tile.k)
        loaded = (tile.m + tile.n) * tile.k * self.site.itemsize
        products, sums = tile.m * tile.n * tile.k, tile.m * tile.n
        kinds: list[float] = [1, (m * k + k * n + m * n) * self.site.itemsize]
        for count in (rounds, programs / self.site.multiprocessors):
            steps = count * depth
            kinds += [steps, steps * loaded, steps * products, count * sums]
        steps = rounds * depth
        kinds += [steps / tile.stages, steps * loaded / tile.stages]
        kinds += [steps * loaded / tile.warps, steps * products / tile.warps, steps * tile.warps]
        scarce = max(0.0, sums / (tile.warps * _WARP) - _SUMS)
        kinds += [steps * scarce * tile.warps, steps * loaded * tile.stages]
        return tuple(map(float, kinds))


def allowed_tiles(gemm: Gemm, site: TileSite) -> list[GemmTile]:
    """Return the tiles of a product that the tuner would try at a site.

    Raises:
        ConfigError: Triton is not installed.
    """
    if reason := missing_package("triton", "'hwnas[kernels]'"):
        raise ConfigError(f"tiles of products cannot be listed: {reason}")
    return list(islice(_solutions(gemm, site), _MOST))


def sampled_tiles(
    gemms: Sequence[Gemm], site: TileSite, each: int, rng: np.random.Generator
) -> list[TiledGemm]:
    """Draw tiles for products to time, from 64 tiles in all where these are allowed.

    Args:
        gemms: Products.
        site: GPU, number format and batch size.
        each: Number of tiles for each product, fewer if fewer are allowed.
        rng: Generator that draws the tiles.

    Raises:
        ConfigError: Triton is not installed.
    """
    allowed = {gemm: allowed_tiles(gemm, site) for gemm in gemms}
    every = sorted({tile for tiles in allowed.values() for tile in tiles})
    pool = {every[i] for i in rng.permutation(len(every))[:_POOL]}
    found = []
    for gemm, tiles in allowed.items():
        shuffled = [tiles[i] for i in rng.permutation(len(tiles))]
        shuffled.sort(key=lambda tile: tile not in pool)  # stable: those of the pool first
        found += [TiledGemm(gemm, tile, site) for tile in shuffled[:each]]
    return found


def _solutions(gemm: Gemm, site: TileSite) -> Iterator[GemmTile]:
    import torch

    from hwnas.kernels.accelerator import Accelerator
    from hwnas.kernels.primitives.tiles import product_problem

    like = Accelerator(
        "",
        0,
        site.multiprocessors,
        site.shared_bytes,
        registers_per_thread=site.registers_per_thread,
    )
    dtype = {4: torch.float32, 2: torch.float16}[site.itemsize]
    problem = product_problem(site.batch * gemm.m, gemm.n, gemm.k, dtype, like)
    return (GemmTile.of(config) for config in problem.solutions())
