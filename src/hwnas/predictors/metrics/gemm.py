"""Matrix products (GEMM): choice of the sizes to time, and their timing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.models.gaussian_process import Numbers

__all__ = ["Gemm", "sampled_gemms", "steady_ms", "time_gemms", "write_gemm"]

_OPSET, _IR_VERSION = 17, 8
_SETTINGS = TimingSettings(warmup=3, rounds=15, round_ms=3.0, max_seconds=1.0, retries=2)
_TIMED_AT_ONCE = 40  # all of them are in memory
_TRIES = 200  # attempts for each product
_MULTIPLE = 16  # usual divisor of the widths of layers
_ROWS, _COLUMNS, _DEPTH = (4, 6, 8, 12, 16), (16, 32), 256
"""Sizes of tiles that kernels compute at once; the fit finds which of them a kernel has."""


@dataclass(frozen=True, order=True)
class Gemm:
    """Product of an M x K matrix and a constant K x N matrix.

    Attributes:
        m: Rows of the first matrix.
        n: Columns of the second matrix.
        k: Columns of the first matrix and rows of the second.
    """

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise ConfigError(f"m, n, k are {self.m}, {self.n}, {self.k}; expected at least 1 each")

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the product."""
        return self.m * self.n * self.k

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes m, n and k."""
        return self.m, self.n, self.k

    @property
    def work(self) -> tuple[float, ...]:
        """Amount of each kind of work if the tile is not known.

        The kinds are a call; the elements of the three matrices; multiply-accumulates with the
        columns, or rows and columns, rounded up to whole tiles; partial sums that are stored; and
        tiles.
        """
        m, n, k = self.sizes
        kinds = [1, m * k, n * k, m * n]
        for columns in _COLUMNS:
            strips = -(-n // columns)
            kinds += [m * strips * k, m * strips * -(-k // _DEPTH)]
            for rows in _ROWS:
                tiles = -(-m // rows) * strips
                kinds += [tiles, tiles * k]
        return tuple(map(float, kinds))


def sampled_gemms(
    count: int,
    rng: np.random.Generator,
    smallest: Gemm = Gemm(1, 1, 1),
    largest: Gemm = Gemm(4096, 4096, 4096),
    max_macs: int = 2**30,
) -> list[Gemm]:
    """Draw different products to time, which cover a range of sizes.

    Sizes are uniform in their logarithms. About half of them are multiples of 16, as in networks;
    the others are arbitrary.

    Args:
        count: Number of products.
        rng: Generator that draws the sizes.
        smallest: Least m, n and k.
        largest: Largest m, n and k.
        max_macs: Largest number of multiply-accumulates; larger products are left out.

    Raises:
        ConfigError: The range has too few products.
    """
    least = np.array([smallest.m, smallest.n, smallest.k])
    most = np.array([largest.m, largest.n, largest.k])
    chosen: dict[Gemm, None] = {}
    for _ in range(_TRIES * count if (least <= most).all() else 0):
        if len(chosen) == count:
            break
        sizes = np.exp(rng.uniform(np.log(least), np.log(most + 1))).astype(np.int64)
        rounded = sizes // _MULTIPLE * _MULTIPLE
        sizes = np.where((rounded >= least) & (rng.random(3) < 0.5), rounded, sizes)
        gemm = Gemm(*sizes.clip(least, most).tolist())
        if gemm.macs <= max_macs:
            chosen[gemm] = None
    if len(chosen) < count:
        raise ConfigError(
            f"found {len(chosen)} of {count} products from {smallest} to {largest} with at most "
            f"{max_macs:,} multiply-accumulates; widen the range or ask for fewer"
        )
    return list(chosen)


def write_gemm(gemm: Gemm, path: Path) -> None:
    """Write a product as ONNX: input (batch, M, K), constant weight (K, N), float32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.cos(np.arange(gemm.k * gemm.n)).reshape(gemm.k, gemm.n).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["rows", "weight"], ["product"])],
        "gemm",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", gemm.m, gemm.k])],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, ["batch", gemm.m, gemm.n])],
        [numpy_helper.from_array(weight, "weight")],
    )
    opset = helper.make_opsetid("", _OPSET)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION), path)


def time_gemms(
    gemms: Sequence[Gemm], target: Target, progress: Callable[[float], None] | None = None
) -> list[Measurement]:
    """Time products on a target of this machine, in its format, 40 at a time and interleaved.

    On a target with batch size B, a run computes B products with the same weight.

    Args:
        gemms: Products to time.
        target: Target on which to time them.
        progress: Function that is called with the share that is done, from 0 to 1.

    Returns:
        Measurement of each product, in the same order. Most take about a tenth of a second, during
        which a machine may become faster or slower; `steady_ms` corrects for this.

    Raises:
        DeviceError: The target cannot be used here.
    """
    measured: list[Measurement] = []
    for start in range(0, len(gemms), _TIMED_AT_ONCE):
        with tempfile.TemporaryDirectory() as folder:
            models = {}
            for number, gemm in enumerate(gemms[start : start + _TIMED_AT_ONCE], start):
                models[str(number)] = path = Path(folder, f"{number}.onnx")
                write_gemm(gemm, path)
            measured += measure(models, target, _SETTINGS).values()
        if progress is not None:
            progress(len(measured) / len(gemms))
    return measured


def steady_ms(latencies_ms: Sequence[float], references_ms: Sequence[float]) -> Numbers:
    """Return latencies corrected for drift of the machine's speed between measurements.

    Args:
        latencies_ms: Latencies of products.
        references_ms: Latencies of the reference model in the same rounds, `Measurement.anchor_ms`.

    Returns:
        Latencies over those of the reference model, times the median of the latter.
    """
    references = np.asarray(references_ms, dtype=np.float64)
    steady: Numbers = np.asarray(latencies_ms) * np.median(references) / references
    return steady
