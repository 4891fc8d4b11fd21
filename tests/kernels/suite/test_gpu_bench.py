"""Trials of configurations on a GPU: results and grids in the interpreter, times on a GPU."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hwnas.kernels.accelerator import ACCELERATORS, Accelerator
from hwnas.kernels.launch import Launch
from hwnas.kernels.operator import Config, Inputs
from hwnas.kernels.operators.pointwise import Pointwise, pointwise
from hwnas.kernels.suite.gpu_bench import GpuBench
from hwnas.kernels.suite.timer import GpuTimer, Times
from hwnas.kernels.tuning.gpu_tuning import GpuTuning, keep, task_of, versions_here
from hwnas.kernels.tuning.tuned import TunedEntry, TunedTable, own_path

H200 = ACCELERATORS["nvidia-h200"]
CPU = torch.device("cpu")
SIZES = {"images": 1, "pixels": 40, "inputs": 24, "outputs": 33, "gate": 0, "residual": 0}
CONFIG = {
    "BLOCK_M": 16,
    "BLOCK_N": 32,
    "BLOCK_K": 16,
    "num_warps": 1,
    "num_stages": 1,
    "SPLIT_K": 1,
}


class IncompletePointwise(Pointwise):
    """Operator that leaves out the last block of rows."""

    def __init__(self) -> None:
        pass

    def launches(self, inputs: Inputs, outputs: Any, config: Config) -> Any:
        [launch] = super().launches(inputs, outputs, config)
        down, across = launch.grid
        return [Launch(launch.kernel, (down - 1, across), launch.arguments, launch.constants)]


def bench(operator: Pointwise = pointwise, dtype: torch.dtype = torch.float16) -> GpuBench:
    return GpuBench(operator, SIZES, dtype, H200, GpuTimer(), CPU)


def test_gpu_bench_error_of_a_correct_kernel_is_within_tolerance() -> None:
    for dtype in pointwise.dtypes:
        assert bench(dtype=dtype).error(CONFIG) <= 1


@pytest.mark.slow
def test_gpu_bench_detects_unwritten_outputs_in_reused_memory() -> None:
    right, careless = bench(), bench(IncompletePointwise())
    for _ in range(3):  # memory that was just freed is used again
        assert right.error(CONFIG) <= 1
        assert careless.error(CONFIG) == float("inf")


def test_gpu_bench_footprint_counts_programs_and_bytes_of_the_grid() -> None:
    found = bench().footprint(CONFIG)
    assert found.programs == 3 * 2
    reads = 24 * (40 * 2 + 33 * 3) + 40 * 33
    assert found.busiest_bytes == pytest.approx(2 * reads / 6)  # each on a multiprocessor


def test_gpu_bench_footprint_grows_if_programs_share_multiprocessors() -> None:
    small = Accelerator("small", 90, 4, 1024)
    found = GpuBench(pointwise, SIZES, torch.float16, small, GpuTimer(), CPU).footprint(CONFIG)
    assert found.busiest_bytes == pytest.approx(2 * bench().footprint(CONFIG).busiest_bytes)


def test_tuning_task_starts_with_the_default_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path))
    found = task_of(pointwise, SIZES, torch.float16, H200)
    assert found.starts == (pointwise.default_config(SIZES, torch.float16),)
    assert {"triton", "torch", "driver"} == set(versions_here())


def test_times_are_quantiles_and_survive_json() -> None:
    times = Times.of([5.0, 1.0, 2.0, 3.0, 4.0, 0.0])
    assert times == Times(1.0, 2.5, 4.0, 6)
    assert Times.from_json(times.to_json()) == times


def test_gpu_timer_describes_its_method_and_flushes_by_cache_size() -> None:
    assert GpuTimer.cold(H200).flush_bytes == 120 * 2**20
    assert GpuTimer.cold(H200).description == "CUDA graph, second-level cache cold"
    assert GpuTimer(graph=False).description == "started from Python, second-level cache warm"


def test_keep_stores_all_entries_of_concurrent_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path))
    entries = [
        TunedEntry("pointwise", "float16", SIZES | {"pixels": pixels}, CONFIG, Times(1, 2, 3, 30),
              "CUDA graph", {}, versions_here(), "2026-01-01")
        for pixels in range(1, 41)
    ]  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(keep, H200), entries))
    assert len(TunedTable.read(own_path(H200), H200).entries) == len(entries)


@pytest.mark.gpu
@pytest.mark.parametrize("timer", [GpuTimer(), GpuTimer(graph=False), GpuTimer(2**27)])
def test_gpu_timer_measures_more_time_for_more_work(timer: GpuTimer) -> None:
    small, large = (torch.ones(2**power, device="cuda") for power in (16, 26))
    less, more = (Times.of(timer.prepare(values.neg_)(10)) for values in (small, large))
    assert 0 < less.p50_us < more.p50_us


@pytest.mark.gpu
def test_gpu_tuning_stores_the_best_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path))
    gpu = Accelerator.here()
    outcome, entry = GpuTuning(gpu, GpuTimer.cold(gpu), 10.0).tune(
        pointwise, SIZES | {"pixels": 3136}, torch.float16
    )
    assert entry
    assert outcome.best
    assert entry.config == outcome.best.config
    assert (tmp_path / "kernels" / f"{gpu.key}.json").is_file()
