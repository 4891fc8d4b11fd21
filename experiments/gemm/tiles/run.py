"""Is the best tile of a matrix product on a GPU predicted for sizes that were never timed?

For each seed, known products are timed in some tiles each, and new products in more tiles. Models
are fitted to the known ones and scored on the new ones. Readings are recorded product by product,
so an interrupted run resumes. With --dry-run the GPU is simulated: times and powers are invented,
and every file and row says so.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command import run_command
from experiments.gemm.run import scores
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from experiments.timings import Timings
from hwnas.deploy import RUNTIMES, Target
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.errors import ConfigError
from hwnas.predictors.metrics.gemm import Gemm, sampled_gemms
from hwnas.predictors.metrics.gemm_bench import GpuTileBench, TileBench, TileReading
from hwnas.predictors.metrics.gemm_model import GemmModel, PowerModel
from hwnas.predictors.metrics.gemm_tiles import GemmTile, TiledGemm, TileSite, sampled_tiles
from hwnas.predictors.models.gaussian_process import Numbers

FOLDER = Path(__file__).parent
TARGETS = ("cuda-triton-fp16-b1-t1", "cuda-triton-fp32-b1-t1")
SMALLEST, LARGEST = Gemm(16, 16, 16), Gemm(8192, 8192, 8192)
MAX_MACS = 2**34

Readings = Mapping[TiledGemm, TileReading]
Fit = Callable[[Sequence[TiledGemm], Numbers], Callable[[Sequence[TiledGemm]], Numbers]]
"""Function of known products and their costs; it returns a function that predicts costs."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gemm.tiles.run", description=__doc__
    )
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--known", type=int, default=60, help="products to fit to")
    parser.add_argument("--tiles", type=int, default=8, help="tiles of each known product")
    parser.add_argument("--new", type=int, default=20, help="products to score on")
    parser.add_argument("--new-tiles", type=int, default=32, help="tiles of each new product")
    parser.add_argument("--dry-run", action="store_true", help="simulate the GPU; needs --out")
    parser.add_argument("--out", type=Path, help="folder for the recorded rows")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    if arguments.dry_run and arguments.out is None:
        raise ConfigError("--dry-run invents times; name another folder for them with --out")
    out, prefix = arguments.out or FOLDER, "simulated-" if arguments.dry_run else ""
    config = {name: getattr(arguments, name) for name in ("known", "tiles", "new", "new_tiles")}
    answers = Results(out / f"{prefix}results.jsonl", config | {"simulated": arguments.dry_run})
    timings = Timings(out / f"{prefix}tiles.parquet")
    for name in arguments.targets:
        target = Target.parse(name)
        bench = bench_of(target, arguments.dry_run)
        for seed in arguments.seeds:
            known, new = drawn(seed, arguments, bench.site, target)
            readings = measured(timings, target, bench, [*known, *new])
            answers.put(judge(target, known, new, readings, seed, arguments.dry_run))
    print(crosstab(answers.rows))


def bench_of(target: Target, simulated: bool) -> TileBench:
    if simulated:
        return SimulatedGpu(TileSite(132, 227 * 1024, 255, 4 if target.format == "fp32" else 2))
    if target.device.runtime != "triton":
        raise ConfigError(f"{target.name} has no tiles; give a target of the runtime triton")
    check_usable(RUNTIMES["triton"], target)
    return GpuTileBench(target)


def drawn(
    seed: int, arguments: argparse.Namespace, site: TileSite, target: Target
) -> tuple[list[TiledGemm], list[TiledGemm]]:
    """Return known products in their tiles, and new ones, each also in the operator's default."""
    rng = np.random.default_rng(seed)
    gemms = sampled_gemms(arguments.known + arguments.new, rng, SMALLEST, LARGEST, MAX_MACS)
    known, new = gemms[: arguments.known], gemms[arguments.known :]
    defaults = [TiledGemm(gemm, default_tile(gemm, target), site) for gemm in new]
    tiled = sampled_tiles(new, site, arguments.new_tiles, rng)
    return sampled_tiles(known, site, arguments.tiles, rng), [*dict.fromkeys([*defaults, *tiled])]


def default_tile(gemm: Gemm, target: Target) -> GemmTile:
    """Return the tile that the operator uses where nothing was measured."""
    from hwnas.deploy.runtimes.triton import torch_type
    from hwnas.kernels.primitives.tiles import product_default

    rows = target.device.batch * gemm.m
    return GemmTile.of(product_default(rows, gemm.n, gemm.k, torch_type(target)))


def measured(
    timings: Timings, target: Target, bench: TileBench, products: Sequence[TiledGemm]
) -> dict[TiledGemm, TileReading]:
    """Measure the products that are not recorded, and return those that could be computed."""
    done = {
        TiledGemm(Gemm(row["m"], row["n"], row["k"]), GemmTile.parse(row["tile"]), bench.site): row
        for row in timings.rows
        if row["target"] == target.name
    }
    missing = [product for product in products if product not in done]
    for gemm in dict.fromkeys(product.gemm for product in missing):
        rows = [row_of(target, each, bench) for each in missing if each.gemm == gemm]
        timings.put(rows)
        done |= zip((each for each in missing if each.gemm == gemm), rows, strict=True)
        print(f"{target.name}: {gemm}, {len(rows)} tiles", flush=True)
    return {
        product: TileReading(done[product]["latency_ms"], done[product]["power_w"])
        for product in products
        if done[product]["latency_ms"] is not None
    }


def row_of(target: Target, product: TiledGemm, bench: TileBench) -> dict[str, Any]:
    reading = bench.measure(product)
    about = {"target": target.name, **vars(product.gemm), "tile": str(product.tile)}
    values = (None, None) if reading is None else (reading.latency_ms, reading.power_w)
    about |= zip(("latency_ms", "power_w"), values, strict=True)
    return about | {"counter": bench.counter}


def judge(
    target: Target,
    known: Sequence[TiledGemm],
    new: Sequence[TiledGemm],
    readings: Readings,
    seed: int,
    simulated: bool,
) -> list[Row]:
    """Fit all methods on the known products, and score their predictions of the new ones."""
    known, new = ([each for each in some if each in readings] for some in (known, new))
    times, truth = (np.array([readings[each].latency_ms for each in some]) for some in (known, new))
    mark = " (simulated)" if simulated else ""

    def row(metric: str, method: str, value: float | None, n: int, why: str = "") -> Row:
        unit = ("ratio" if metric == "r2_log" else "fraction") + mark
        details = {"absent": why} if why else {}
        return Row(metric, f"{target.name} {method}", seed, value, unit, n, details=details)

    rows = []
    for method, fit in METHODS.items():
        predicted = fit(known, times)(new)
        found = scores(predicted, truth)
        rows += [row(metric, method, found[metric], len(new)) for metric in ("r2_log", "mape")]
        rows.append(row("lost_time", method, lost_time(new, truth, predicted), len(new)))
    default = np.array([each.tile != default_tile(each.gemm, target) for each in new], dtype=float)
    rows.append(row("lost_time", "default", lost_time(new, truth, default), len(new)))
    return rows + power_rows(known, new, readings, row)


def lost_time(products: Sequence[TiledGemm], truth: Numbers, predicted: Numbers) -> float:
    """Return how much longer the tiles of least predicted time take than the best ones, on average.

    Only the tiles that were timed are compared.
    """
    lost = []
    for gemm in dict.fromkeys(product.gemm for product in products):
        mine = np.array([product.gemm == gemm for product in products])
        lost.append(truth[mine][predicted[mine].argmin()] / truth[mine].min() - 1)
    return float(np.mean(lost))


def power_rows(
    known: Sequence[TiledGemm],
    new: Sequence[TiledGemm],
    readings: Readings,
    row: Callable[..., Row],
) -> list[Row]:
    """Return the error of predicted powers, beside that of the mean power of all known products."""
    known, new = ([each for each in some if readings[each].power_w] for some in (known, new))
    if not known or not new:
        why = "no energy counter can be read on this machine"
        return [row("power_mape", method, None, 0, why) for method in ("model", "mean")]
    powers, truth = (
        np.array([readings[each].power_w for each in some], dtype=float) for some in (known, new)
    )
    times = np.array([readings[each].latency_ms for each in known])
    latency = GemmModel.fit("", known, times)
    estimates = PowerModel.fit(latency, known, times, powers).predict(new)
    predicted = np.array([estimate.mean for estimate in estimates])
    errors = {"model": predicted / truth - 1, "mean": np.exp(np.log(powers).mean()) / truth - 1}
    return [
        row("power_mape", method, float(np.abs(error).mean()), len(new))
        for method, error in errors.items()
    ]


def by_model(known: Sequence[TiledGemm], times: Numbers) -> Callable[..., Numbers]:
    """Fit hwnas's model, which takes the tile."""
    roofline = GemmModel.fit("", known, times).roofline
    return lambda products: np.exp(roofline.log_costs(products))


def by_sizes(known: Sequence[TiledGemm], times: Numbers) -> Callable[..., Numbers]:
    """Fit hwnas's model of products whose tile is unknown."""
    roofline = GemmModel.fit("", [each.gemm for each in known], times).roofline
    return lambda products: np.exp(roofline.log_costs([each.gemm for each in products]))


def by_roofline(known: Sequence[TiledGemm], times: Numbers) -> Callable[..., Numbers]:
    """Scale the analytical model of the kernels, which was not fitted to anything, by a factor."""
    factor = np.exp(np.mean(np.log(times) - np.log(analytical_ms(known))))
    return lambda products: factor * analytical_ms(products)


def analytical_ms(products: Sequence[TiledGemm]) -> Numbers:
    import torch

    from hwnas.kernels.accelerator import Accelerator
    from hwnas.kernels.operators.pointwise import pointwise
    from hwnas.kernels.tuning.roofline import LaunchWork

    found = []
    for each in products:
        (m, n, k), site = each.sizes, each.site
        gpu = Accelerator("", 0, site.multiprocessors, site.shared_bytes)
        dtype = {4: torch.float32, 2: torch.float16}[site.itemsize]
        shapes = {"x": (site.batch, m, k), "weight": (k, n), "bias": (n,)}
        tensors = {
            name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()
        }
        inputs = pointwise.bound(**tensors)
        found.append(LaunchWork.of(pointwise, inputs, each.tile.config, gpu).milliseconds)
    return np.array(found)


METHODS: dict[str, Fit] = {"model": by_model, "sizes-only": by_sizes, "roofline": by_roofline}


@dataclass(frozen=True)
class SimulatedGpu:
    """GPU whose times and powers are invented."""

    site: TileSite
    counter: str = "simulated"

    def measure(self, product: TiledGemm) -> TileReading:
        """Return invented numbers: slow with few stages or warps, and with idle multiprocessors."""
        (m, n, k), tile = product.sizes, product.tile
        programs = math.ceil(m / tile.m) * math.ceil(n / tile.n)
        steps = math.ceil(programs / self.site.multiprocessors) * math.ceil(k / tile.k)
        rate = 3e8 / self.site.itemsize * min(1.0, 0.3 + tile.warps / 8)
        computing = steps * tile.m * tile.n * tile.k / rate
        moving = steps * self.site.itemsize * (tile.m + tile.n) * tile.k / 12e6
        latency_ms = 2e-3 + max(computing, moving) + steps * 3e-4 / tile.stages
        return TileReading(latency_ms, 100 + 250 * (computing + moving) / latency_ms)


if __name__ == "__main__":
    main()
