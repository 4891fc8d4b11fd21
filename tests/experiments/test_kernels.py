"""The kernel experiment, as far as it can be tested without a GPU."""

import json
import math
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments.kernels.pool import NOT_REACHED
from experiments.record import Row, read_rows
from hwnas.errors import ConfigError

ROOT = Path(__file__).parents[2]
ABSENT = ("moocore", "optuna", "plotly", "pydantic", "ray")
"""Packages that need not be installed on a machine with a GPU."""
H200 = "nvidia-h200"


def run(*options: str, path: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.kernels.run", *options]
    paths = [path, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    kept = {k: v for k, v in os.environ.items() if k not in ("HWNAS_HOME", "TRITON_INTERPRET")}
    environment = kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Return a folder that makes the absent packages fail to import when it is on the path."""
    folder = tmp_path / "absent"
    folder.mkdir()
    for name in ABSENT:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n")
    return str(folder)


def test_kernel_experiment_refuses_to_run_without_a_gpu(refusal: Callable[..., str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert refusal("kernels").startswith("error: PyTorch found no usable GPU")


def test_dry_run_refuses_to_write_into_the_recorded_results() -> None:
    from experiments.kernels.run import work

    with pytest.raises(ConfigError, match="--out"):
        work(Namespace(dry_run=True, out=None))


@pytest.mark.slow
def test_dry_run_works_without_search_packages_and_marks_its_results(
    tmp_path: Path, bare: str
) -> None:
    out = tmp_path / "out"
    done = run(
        *("--dry-run", "--out", str(out), "--stages", "operators", "--operators", "two_four"),
        path=bare,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {
        *("kernels", "configurations.json"),
        *("simulated-observations.jsonl", "simulated-results.jsonl"),
    }
    assert [path.name for path in (out / "kernels").iterdir()] == ["simulated.json"]
    rows = [row for path in out.glob("*.jsonl") for row in read_rows(path)]
    assert {row.metric for row in rows} >= {"copy", "speedup", "geometric_mean"}
    assert all(row.details["simulated"] for row in rows)
    assert all("simulated" in row.unit for row in rows)
    speedups = [row for row in rows if row.metric == "speedup"]
    assert {row.details["cache"] for row in speedups} == {"cold", "warm"}
    for row in speedups:
        assert row.details["error"] <= 1
        assert {"reference", "eager", "eager compiled"} <= set(row.details["rivals"])
        assert "sparse" in row.details["absent"]
        assert row.value is not None


@pytest.mark.exhaustive
def test_dry_run_covers_every_stage_and_repeats_nothing(tmp_path: Path, bare: str) -> None:
    options = ["--dry-run", "--out", str(tmp_path / "out")]
    options += ["--operators", "pointwise", "int8_depthwise", "--networks", "hybrid-160", "vit-224"]
    first, second = (run(*options, path=bare) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    rows = {
        (r.metric, r.subject): r for r in read_rows(tmp_path / "out/simulated-observations.jsonl")
    }
    for name in ("pointwise", "int8_depthwise"):
        checked = rows["failed_checks", name]  # a slow machine may not finish the checks in time
        assert checked.value == 0 or checked.details["reason"] == NOT_REACHED
        assert 0 <= (rows["largest_error", name].value or 0) <= 1
    for mode in ("default", "max-autotune-no-cudagraphs"):
        network = rows["speedup", f"vit-224 float16 b1 beside {mode} cold"]
        assert network.value is not None
        assert network.details["absent"] == {"tensorrt": "absent"}
        assert network.details["operators"]["norm_linear"] > 0
        assert set(network.details["rivals"]) == {"eager", mode}
        quantised = rows["speedup", f"hybrid-160 int8 b1 beside {mode} cold"]
        assert quantised.value is not None
        assert quantised.details["absent"] == {"tensorrt": "absent", "tensorrt int8": "absent"}
        assert quantised.details["operators"]["int8_depthwise"] > 0
        assert set(quantised.details["rivals"]) == {"eager", mode}
    assert "speedup, " in first.stdout
    assert "speedup, " not in second.stdout
    table = json.loads((tmp_path / "out/kernels/simulated.json").read_text())
    assert table["device"] == "simulated"
    tuned = {entry["operator"] for entry in table["entries"]}
    assert tuned >= {"pointwise", "norm_linear", "int8_pointwise"}


@pytest.mark.slow
def test_symmetric_int8_model_has_no_zero_points_and_small_error(
    tmp_path: Path,
) -> None:
    import onnx

    from experiments.kernels.engines import symmetric
    from hwnas.deploy import export_onnx
    from hwnas.deploy.export.to_onnx import relative_error
    from hwnas.deploy.runtimes.onnx import OnnxSession

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
    export_onnx(network.eval(), (3, 6, 6), tmp_path / "plain.onnx")
    made = symmetric(tmp_path / "plain.onnx")
    zeros = [
        onnx.numpy_helper.to_array(each)
        for each in onnx.load(made).graph.initializer
        if each.name.endswith("zero_point")
    ]
    assert len(zeros) >= 3
    assert not any(zero.any() or zero.dtype != "int8" for zero in zeros)
    images = torch.randn(1, 3, 6, 6).numpy()
    plain, found = (OnnxSession(p, 1, 1).run(images) for p in (tmp_path / "plain.onnx", made))
    assert 0 < relative_error(found, plain) < 0.25  # as for other int8 files


def test_operators_have_benchmarks_at_supported_sizes() -> None:
    from experiments.kernels.catalogue import BENCHMARKS
    from hwnas.kernels.accelerator import Accelerator
    from hwnas.kernels.operators.registry import OPERATORS

    gpu = Accelerator.named(H200)
    for name, operator in OPERATORS.items():
        benchmark = BENCHMARKS[name]
        assert benchmark.operator is operator
        for case in benchmark.cases():
            assert list(case.sizes) == list(operator.checked[0]), name
            config = operator.default_config(case.sizes, benchmark.dtype)
            assert not operator.problem(case.sizes, benchmark.dtype, gpu).broken(config)
            assert operator.work(case.sizes, benchmark.dtype).macs > 0
        assert {1, 8} <= {case.batch for case in benchmark.cases()}


def test_rivals_compute_the_same_as_the_operators() -> None:
    from experiments.kernels.catalogue import BENCHMARKS
    from hwnas.errors import KernelError
    from hwnas.kernels.suite.tolerance import worst_error

    for benchmark in BENCHMARKS.values():
        operator, compared = benchmark.operator, 0
        dtype = torch.float32 if torch.float32 in operator.dtypes else benchmark.dtype
        for sizes in operator.checked:
            inputs = operator.example(
                sizes, dtype, torch.Generator().manual_seed(0), torch.device("cpu")
            )
            truth = operator.reference(**inputs)
            truth = truth if isinstance(truth, tuple) else (truth,)
            for rival in benchmark.rivals:
                if rival.name == "sparse":  # on GPUs only
                    continue
                try:
                    function, tensors = rival.make(inputs)
                except KernelError:
                    continue
                outputs = function(*tensors)
                outputs = outputs if isinstance(outputs, tuple) else (outputs,)
                assert [x.shape for x in outputs] == [x.shape for x in truth]
                if rival.same:
                    pairs = zip(outputs, truth, strict=True)
                    assert max(worst_error(one, other.double()) for one, other in pairs) <= 1
                compared += 1
        assert compared >= 2, operator.name


def times(**p50_us: float) -> dict[str, dict[str, float]]:
    return {
        name: {"p20_us": 0.9 * us, "p50_us": us, "p80_us": 1.1 * us, "n": 30}
        for name, us in p50_us.items()
    }


WORDS = {"eager": "F.conv2d", "fast": "torch.compile of F.conv2d"}


def speedup(batch: int = 1, kernel: bool = True, **p50_us: float) -> Row:
    from experiments.kernels.rows import race_rows

    found = {"kind": "operators", "dtype": "float16", "batch": batch, "kernel": kernel}
    found |= {"moved_bytes": 10**6, "macs": 10**6, "absent": {}, "reason": ""}
    found |= {"times": {"cold": times(**p50_us)}, "timing": {"cold": "CUDA graph"}}
    ceilings = {"bytes": 4e12, "operations": 8e14}
    [row] = race_rows(f"op b{batch} {p50_us}", found, WORDS, ceilings)
    return row


def test_speedup_row_uses_the_fastest_rival_and_lists_all() -> None:
    row = speedup(triton=2.0, reference=8.0, eager=3.0, fast=2.5)
    assert row.value == pytest.approx(1.25)
    assert row.details["best_rival"] == "fast"
    assert row.details["rivals"]["eager"]["configuration"] == "F.conv2d"
    assert row.details["gb_per_s"] == pytest.approx(500)
    assert row.details["share_of_copy"] == pytest.approx(0.125)
    assert row.details["tflop_per_s"] == pytest.approx(1)
    assert row.spread["least"] < 1.25 < row.spread["most"]
    assert row.details["runtime_chooses"] == "triton"


def test_speedup_row_reports_the_slower_kernel_as_not_chosen() -> None:
    row = speedup(kernel=False, triton=4.0, reference=3.0, eager=2.0, fast=2.5)
    assert row.value == pytest.approx(0.5)
    assert row.details["runtime_chooses"] == "reference"
    assert row.details["as_chosen"] == pytest.approx(2 / 3)


def test_summary_averages_rows_with_eager_and_compiled_rivals() -> None:
    from experiments.kernels.rows import summary

    rows = [
        speedup(1, triton=1.0, eager=2.0, fast=3.0),
        speedup(8, triton=1.0, eager=9.0, fast=8.0),
        speedup(8, triton=4.0, eager=9.0, fast=2.0),
        speedup(1, triton=1.0, reference=90.0, eager=90.0),
        speedup(64, triton=1.0, eager=5.0, fast=5.0),
    ]
    means = {(row.metric, row.subject): row for row in summary(rows)}
    mean = means["geometric_mean", "operators b1+b8 float16 cold"]
    assert mean.value == pytest.approx(math.prod((2, 8, 0.5)) ** (1 / 3))
    assert (mean.n, mean.details["left_out"], mean.details["slower"]) == (3, 1, 1)
    assert len(mean.details["slower_than_a_rival_and_chosen"]) == 1
    assert means["geometric_mean", "operators b64 float16 cold"].value == pytest.approx(5)


def test_race_rows_give_no_speedup_to_wrong_results() -> None:
    from experiments.kernels.rows import race_rows, summary

    found = {"reason": "", "error": 7.0, "kind": "operators"}
    rows = race_rows("op", found, WORDS, {})
    assert [row.value for row in rows] == [None, None]
    assert "wrong" in rows[0].details["reason"]
    assert summary(rows) == []


@pytest.mark.slow
def test_process_pool_isolates_tasks_that_fail_or_hang() -> None:
    from experiments.kernels.operators import check_values
    from experiments.kernels.place import Place
    from experiments.kernels.pool import NOT_REACHED, Task, dealt, in_processes

    place = Place.here(simulated=True)
    fine, wrong = Task(Place.touch, None), Task(check_values, "no such operator")
    found = list(in_processes(place, [[fine, wrong, fine]], time.monotonic() + 120, 60))
    assert [outcome.found for outcome in found] == [{"sum": 2}, {}, {"sum": 2}]
    assert "KeyError" in found[1].reason
    [hung] = in_processes(place, [[fine]], time.monotonic() + 60, 0.0)
    assert "took more than" in hung.reason
    [late] = in_processes(place, [[fine]], time.monotonic() - 1, 60)
    assert late.reason == NOT_REACHED
    tasks = [Task(Place.touch, number) for number in range(7)]
    lines = dealt(tasks, 3)
    assert sorted(map(len, lines)) == [2, 2, 3]
    assert [task for line in lines for task in line] == tasks
