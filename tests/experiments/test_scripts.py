"""Experiment scripts at toy size: they record their results and repeat no finished work."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.record import read_rows

ROOT = Path(__file__).parents[2]
TOY = [
    "data.source=digits",
    "space.preset=tiny",
    "space.stem_stride=1",
    "space.resolution=[8]",
    "train.budget_minutes=0.02",
    "train.workers=0",
    "predictor.networks=4",
    "search.trials=8",
    "search.workers=0",
    "deploy.finetune_epochs=0.1",
]
MINUTES = [s.replace("finetune_epochs=0.1", "finetune_minutes=0.01") for s in TOY]
"""Settings for recipes that limit fine-tuning in minutes."""
PLANNED = [
    "data.source=digits",
    "run.minutes=3",
    "train.budget_minutes=0.03",
    "predictor.networks=4",
    "search.trials=4",
    "search.batch=4",
    "search.workers=0",
    "deploy.top=2",
    "deploy.reference=false",
]
COMPRESSED = [
    *(setting for setting in PLANNED if ".reference" not in setting),
    "train.workers=0",
    "deploy.finetune_minutes=0.02",
]
SMALL_IMAGES = [
    "data.source=digits",
    "data.size=8",
    "data.train_limit=300",
    "space.resolution=[8]",
    "train.budget_minutes=0.02",
]
TOY_MASKS = [
    "data.train_limit=300",
    "data.test_limit=100",
    "train.budget_minutes=0.02",
    "predictor.networks=4",
    "search.trials=4",
    "deploy.top=2",
    "deploy.finetune_epochs=0.1",
]
SCRIPTS = {
    "predictor": ["--seeds", "0", "--timed", "4", "--unseen", "3"],
    "engine": ["--seeds", "0", "--trials", "200", "--cases", "random-12"],
    "training_step": ["--seeds", "0", "--networks", "1", "--rounds", "1", "--batch", "8"],
    "depthwise": ["--seeds", "0", "--kernels", "5", "--strides", "1", "--rounds", "5"],
    "ranking": [
        "--seeds",
        "0",
        "1",
        "--networks",
        "4",
        "--pool",
        "12",
        "--epochs",
        "1",
        "--supernet-seeds",
        "0",
        "--methods",
        "uniform",
        "teacher-ema",
    ],
    "joint_recipe": ["--seeds", "0"],
}
EXPECTED = {
    "predictor": {("spearman", "default"), ("median_error", "macs")},
    "engine": {("ms_per_trial", "random-12"), ("memory_growth", "random-12"), ("peak_pss", "job")},
    "training_step": {("step_ratio", "cpu-t1"), ("first_activation", "cpu")},
    "depthwise": {("plain_over_ours", "k5-s1-144x7x7-t1")},
    "ranking": {("tau_quotient", "uniform"), ("tau above uniform's", "teacher-ema")},
    "joint_recipe": {("hypervolume_ratio", "joint / fixed"), ("best_test", "joint")},
}


GROWN = ("bandit grown", "controller grown", "bandit scratch", "controller scratch", "alone")
OWN = {
    "growth": (
        [
            *("--seeds", "0", "--target", "0.2", "--set", "search.trials=8"),
            *("--set", "data.train_limit=300", "--set", "train.epochs=1"),
        ],
        {(metric, side) for metric in ("cpu_s_to_target", "best_accuracy") for side in GROWN},
        "seed 0: bandit grown",
    ),
    "hybrid_latency": (
        [
            *("--cases", "small", "--networks", "3", "--timed", "4", "--seeds", "0"),
            *("--block", "4", "--workers", "0"),
        ],
        {("spearman", "small default"), ("coverage_of_90", "small default")},
        "small: timed ",
    ),
    "own_models": (
        [
            *("--models", "cnn", "--widths", "0.5", "1.0", "--rivals", "scratch", "sliced"),
            *("--pretraining", "0.02", "--seeds", "0"),
            *(
                part
                for setting in MINUTES
                for part in ("--set", setting)
                if ".preset" not in setting
                and ".stem_" not in setting
                and ".resolution" not in setting
            ),
            *("--set", "deploy.top=2"),
        ],
        {("hypervolume_ratio", "cnn elastic / scratch"), ("seconds", "cnn sliced")},
        "seed 0: ",
    ),
    "transfer": (
        [
            *("--seeds", "0", "--first-minutes", "0.02"),
            *(part for setting in SMALL_IMAGES for part in ("--set", setting)),
        ],
        {("accuracy_gain", "mean"), ("test_accuracy", "transfer")},
        "seed 0: ",
    ),
    "cifar10": (
        [
            *("--seeds", "0", "--rivals", "2", "--targets", "cpu-onnxruntime-fp32-b1-t1"),
            *(part for setting in PLANNED for part in ("--set", setting)),
        ],
        {("hypervolume_ratio", "hwnas / published"), ("seconds", "hwnas, and each of published")},
        "seed 0: ",
    ),
    "fashion_mnist": (
        [
            *("--seeds", "0", "--widths", "0.5", "1.0"),
            *(part for setting in PLANNED for part in ("--set", setting)),
        ],
        {
            ("hypervolume_ratio", "hwnas / hand-scaled"),
            ("test_accuracy_at_latency_q50", "hwnas"),
            ("seconds", "hwnas, and all hand-scaled"),
        },
        "seed 0: ",
    ),
    "compress": (
        [
            *("--seeds", "0", "--models", "resnet", "--ratios", "0.5", "--pretraining", "0.2"),
            *(part for setting in COMPRESSED for part in ("--set", setting)),
        ],
        {
            ("hypervolume_ratio", "resnet compress / given"),
            ("hypervolume_ratio", "resnet compress / pruned"),
            ("seconds", "resnet compress, and all pruned"),
        },
        "seed 0: ",
    ),
    "compress.sizes": (
        [
            *("--seeds", "0", "--models", "resnet", "--pretraining", "0.2"),
            *(part for setting in COMPRESSED for part in ("--set", setting)),
        ],
        {
            ("hypervolume_ratio", "resnet searched / afterwards"),
            ("seconds", "resnet searched"),
            ("seconds", "resnet pruning"),
        },
        "seed 0: ",
    ),
    "sparsity": (
        [
            *("--seeds", "0", "--models", "cnn", "--set", "data.source=digits"),
            *("--set", "data.train_limit=300", "--set", "train.epochs=0.5"),
        ],
        {
            ("accuracy_pruned", "cnn unstructured-25 obs-searched"),
            ("accuracy_int8", "cnn 2of4 obs-features"),
            ("output_error", "three-layers brute-force"),
        },
        "seed 0: ",
    ),
    "on_device_finetuning": (
        [
            *("--seeds", "0", "--shifts", "inverted", "--images", "64", "--steps", "2"),
            *("--set", "data.source=digits", "--set", "data.train_limit=300"),
            *("--set", "train.epochs=0.5"),
        ],
        {
            ("accuracy", "inverted none"),
            ("accuracy", "inverted planned-25-4bit"),
            ("memory", "inverted full"),
        },
        "seed 0: ",
    ),
    "early_exit": (
        [
            *("--seeds", "0", "--set", "deploy.top=2", "--set", "deploy.finetune_epochs=0.1"),
            *(
                part
                for setting in TOY
                if not setting.startswith(("space.", "deploy."))
                for part in ("--set", setting)
            ),
        ],
        {
            ("hypervolume_ratio", "exits / plain"),
            ("seconds", "exits"),
            ("seconds", "plain"),
        },
        "seed 0: ",
    ),
    "precision_front": (
        [
            *("--seeds", "0", "--cases", "cifar10"),
            *(part for setting in PLANNED for part in ("--set", setting)),
        ],
        {
            ("hypervolume_ratio", "cifar10 joint / afterwards"),
            ("seconds", "cifar10 joint"),
            ("seconds", "cifar10 afterwards"),
        },
        "seed 0: ",
    ),
    "microcontroller.search": (
        [
            *("--seeds", "0", "--cases", "convolutions"),
            *(part for setting in PLANNED for part in ("--set", setting)),
        ],
        {
            ("test_error", "convolutions in 32 KB c"),
            ("arena_kb", "convolutions in 320 KB"),
            ("instructions", "convolutions in 320 KB"),
        },
        "seed 0: ",
    ),
}
"""Options, some expected rows, and a text that is printed only before work is done."""


@pytest.fixture
def run(experiment: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs a script with the folders of the test."""
    return lambda script, *options: experiment(
        f"{script}.run", "--out", tmp_path / "out", "--work", tmp_path / "work", *options
    )


@pytest.fixture
def run_twice(experiment: Callable[..., Any]) -> Callable[..., tuple[str, str]]:
    """Return a function that runs a module twice and returns what it prints."""

    def twice(module: str, *options: str | Path) -> tuple[str, str]:
        first, second = (experiment(module, *options) for _ in range(2))
        assert first.status == second.status == 0, first.err + second.err
        return first.out, second.out

    return twice


@pytest.fixture
def latency_tables() -> None:
    """Skip a test if there are no published latency tables."""
    if not (Path(os.environ.get("HWNAS_DATA", "")) / "latency").is_dir():
        pytest.skip("HWNAS_DATA names no folder with latency tables")


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_records_results_and_repeats_nothing(
    script: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    options = [*SCRIPTS[script], *(part for setting in TOY for part in ("--set", setting))]
    first = run(script, *options)
    assert first.status == 0, first.err
    observed = tmp_path / "out" / "observations.jsonl"
    before = observed.read_text() if observed.exists() else ""
    answers = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out/results.jsonl")}
    assert set(answers) >= EXPECTED[script]
    for metric, subject in EXPECTED[script]:
        shown = [f"| {metric} | {subject} |"]
        if script == "ranking":  # one line per method, one column per metric
            shown = [f"| {metric} |", f"\n| {subject} |"]
        assert all(text in first.out for text in shown)

    second = run(script, *options)
    assert second.status == 0, second.err
    assert (observed.read_text() if observed.exists() else "") == before
    assert "seed 0: " not in second.out  # printed before each piece of work


@pytest.mark.exhaustive
def test_multi_task_script_compares_networks_of_equal_path_cost(
    run: Callable[..., Any], tmp_path: Path, hwnas_data: Path
) -> None:
    small = ["data.train_limit=300", "data.test_limit=200", "train.epochs=0.5"]
    options = ["--seeds", "0", *(part for each in small for part in ("--set", each))]
    done = run("multi_task", *options)
    assert done.status == 0, done.err
    rows = {(r.metric, r.subject): r.value for r in read_rows(tmp_path / "out/results.jsonl")}
    sides = ("shared", "late", "early", "single")
    assert {subject for metric, subject in rows if metric == "test_accuracy"} == {
        f"{side} {name}" for side in sides for name in ("mean", "garment", "turn", "quarter")
    }
    for task in ("garment", "turn", "quarter"):
        assert len({rows["million_macs", f"{side} {task}"] for side in sides}) == 1
    costs = [rows["million_macs", f"{side} together"] for side in sides]
    assert costs == sorted(set(costs))
    assert "seed 0: " not in run("multi_task", *options).out  # nothing is trained again


@pytest.mark.exhaustive
def test_operators_script_finds_published_cells_of_every_method(
    run: Callable[..., Any], tmp_path: Path, hwnas_data: Path
) -> None:
    options = ["--seeds", "0", "--minutes", "0.02", "--set", "data.train_limit=600"]
    done = run("operators", *options)
    assert done.status == 0, done.err
    rows = {(r.metric, r.subject): r.value for r in read_rows(tmp_path / "out/results.jsonl")}
    methods = {subject for metric, subject in rows if metric == "million_macs"}
    assert methods > {"gdas", "guided", "random", "proxyless, cost limit 0.5"}
    best = rows["table_accuracy", "best cell"]
    assert all(0.1 <= rows["table_accuracy", method] <= best for method in methods)
    assert "seed 0: " not in run("operators", *options).out


@pytest.mark.exhaustive
def test_segmentation_script_records_the_score_of_bundle_masks(
    run: Callable[..., Any], tmp_path: Path, hwnas_data: Path
) -> None:
    options = [part for setting in TOY_MASKS for part in ("--set", setting)]
    done = run("segmentation", *options)
    assert done.status == 0, done.err
    answers = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out/results.jsonl")}
    assert {pick for _, pick in answers} >= {"fastest", "most-accurate"}
    for (metric, pick), row in answers.items():
        if metric == "test_mean_iou":
            assert answers["mean_iou_of_masks", pick].value == pytest.approx(row.value, abs=1e-3)


@pytest.mark.exhaustive
def test_detection_script_records_the_score_of_bundle_boxes(
    run: Callable[..., Any], tmp_path: Path, hwnas_data: Path
) -> None:
    small = ["run.minutes=3", "data.train_limit=300", "data.test_limit=60"]
    done = run("detection", *[part for setting in small for part in ("--set", setting)])
    assert done.status == 0, done.err
    answers = {(row.metric, row.subject): row for row in read_rows(tmp_path / "out/results.jsonl")}
    assert answers["map_difference", "boxes of bundles"].value < 0.005
    for width in ("0.35", "0.75"):
        assert ("speed_at_map", f"alone mobilenet-v3-small-w{width}") in answers


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", OWN)
def test_script_with_own_options_records_results_and_repeats_nothing(
    script: str, run: Callable[..., Any], tmp_path: Path
) -> None:
    options, expected, prefix = OWN[script]
    first, second = (run(script, *options) for _ in range(2))
    assert first.status == second.status == 0, first.err + second.err
    assert {(r.metric, r.subject) for r in read_rows(tmp_path / "out/results.jsonl")} >= expected
    assert prefix in first.out
    assert prefix not in second.out


@pytest.mark.slow
def test_script_reports_bad_input_in_one_line_with_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.ranking.run", "--out", str(tmp_path / "out")]
    command += ["--set", "train.bugdet_minutes=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean 'budget_minutes'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_data_parallel_script_compares_workers_that_train_together(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.data_parallel.run", "--out", str(tmp_path)]
    command += ["--seeds", "0", "--workers", "2", "--preset", "tiny", "--side", "32"]
    command += ["--batch", "4", "--steps", "2", "--rounds", "2", "--scored", "16"]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True) for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "seed 0: " in first.stdout
    assert "seed 0: " not in second.stdout
    found = {(row.metric, row.subject): row for row in read_rows(tmp_path / "results.jsonl")}
    alone = found["images_per_s", "without-averaging"].value
    assert alone > 0.5 * found["images_per_s", "hwnas"].value > 0
    assert found["speed_over_ddp", "hwnas"].value > 0


def test_data_parallel_script_refuses_an_empty_measurement(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    assert "--steps is 0" in refusal("data_parallel", "--out", tmp_path, "--steps", "0")


@pytest.mark.usefixtures("latency_tables")
@pytest.mark.slow
def test_predictors_script_scores_published_tables_once(
    run_twice: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    options = ["--splits", "fbnet-F2", "--methods", "macs", "ridge", "--seeds", "2"]
    first, second = run_twice("predictors.run", "--out", tmp_path, *options)
    assert "fbnet-F2 ridge: " in first
    assert "fbnet-F2 ridge: " not in second
    found = {row.subject: row.value for row in read_rows(tmp_path / "results.jsonl")}
    assert set(found) == {"fbnet-F2 macs", "fbnet-F2 ridge"}


@pytest.mark.usefixtures("latency_tables")
@pytest.mark.slow
def test_spec_sheets_script_leaves_out_each_hardware_once(
    run_twice: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    options = ["--tables", "nasbench201", "--methods", "nearest-3", "mean", "--out", str(tmp_path)]
    first, second = run_twice("spec_sheets.run", *options)
    assert "nasbench201 mean: " in first
    assert "nasbench201 mean: " not in second
    rows = {(row.metric, row.subject): row for row in read_rows(tmp_path / "results.jsonl")}
    near = rows["median_ape", "nasbench201 nearest-3"]
    assert len(near.details["hardware"]) == near.n == 14
    assert near.value < rows["median_ape", "nasbench201 mean"].value


@pytest.mark.slow
def test_evolution_script_times_and_scores_once(
    run_twice: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    options = ["--populations", "40", "--generations", "3", "--rounds", "2", "--seeds", "0"]
    options += ["--quality-population", "40", "--quality-generations", "4", "--out", str(tmp_path)]
    first, second = run_twice("evolution.run", *options)
    assert "round 1: hype-40 hwnas" in first
    assert "hwnas\n" not in second
    found = {(row.metric, row.subject) for row in read_rows(tmp_path / "results.jsonl")}
    assert found >= {
        ("individuals a second", "moead-40 hwnas"),
        ("CPU time an individual", "nsga2-40 moocore-loop/hwnas"),
        ("igd", "nsga2-40x4 hwnas"),
        ("igd", "nsga2-40x4 moocore-loop"),
    }


@pytest.mark.slow
def test_gemm_script_times_products_once(
    run_twice: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    options = ["--targets", "cpu-onnxruntime-fp32-b1-t1", "--seeds", "0"]
    options += ["--known", "30", "--new", "2", "--out", str(tmp_path)]
    first, second = run_twice("gemm.run", *options)
    assert "seed 0: " in first
    assert "seed 0: " not in second
    found = {(row.metric, row.subject.split()[-2]) for row in read_rows(tmp_path / "results.jsonl")}
    assert found >= {("r2_log", "held-out"), ("mape", "larger-m"), ("mape", "smaller-mnk")}


@pytest.mark.slow
def test_gemm_tiles_script_simulates_a_gpu_and_says_so(
    run_twice: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    options = ["--targets", "cuda-triton-fp16-b1-t1", "--seeds", "0", "--known", "20", "--new", "3"]
    options += ["--tiles", "4", "--new-tiles", "6", "--dry-run", "--out", str(tmp_path)]
    first, second = run_twice("gemm.tiles.run", *options)
    assert "Gemm(" in first
    assert "Gemm(" not in second
    rows = read_rows(tmp_path / "simulated-results.jsonl")
    assert all(row.unit.endswith("(simulated)") for row in rows)
    assert {(row.metric, row.subject.split()[-1]) for row in rows} >= {
        ("lost_time", "model"),
        ("lost_time", "default"),
        ("mape", "roofline"),
        ("power_mape", "model"),
    }


def test_gemm_tiles_script_refuses_to_run_without_a_gpu(refusal: Callable[..., str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert "triton cannot be used" in refusal("gemm.tiles")
    assert "--out" in refusal("gemm.tiles", "--dry-run")


def test_predictor_scripts_name_unknown_splits_and_tables(
    refusal: Callable[..., str], tmp_path: Path
) -> None:
    assert "unknown split 'x'" in refusal("predictors", "--out", tmp_path, "--splits", "x")
    told = refusal("predictor_intervals", "--out", tmp_path, "--tables", "x")
    assert "unknown table 'x'" in told
    for option in ("--tables", "--methods"):
        told = refusal("spec_sheets", "--out", tmp_path, option, "x")
        assert "unknown table or method 'x'" in told


@pytest.mark.parametrize(
    ("script", "options", "file", "subjects"),
    [
        pytest.param(
            "gemm.as_feature",
            ["--targets", "cpu-openvino-fp32-b1-t1", "--seeds", "1"],
            "as_feature.jsonl",
            {"cpu-openvino-fp32-b1-t1 with", "cpu-openvino-fp32-b1-t1 without"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "latency_zoo.speed",
            ["--networks", "2000", "--seeds", "1"],
            "speed.jsonl",
            {"all default", "nasbench201 default", "fbnet default"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_analysis_script_evaluates_recorded_measurements(
    experiment: Callable[..., Any],
    tmp_path: Path,
    script: str,
    options: list[str],
    file: str,
    subjects: set[str],
) -> None:
    done = experiment(script, *options, "--out", tmp_path)
    assert done.status == 0, done.err
    assert {row.subject for row in read_rows(tmp_path / file)} == subjects


@pytest.mark.usefixtures("latency_tables")
@pytest.mark.exhaustive
def test_paired_script_compares_methods_seed_by_seed(
    experiment: Callable[..., Any], tmp_path: Path
) -> None:
    options = ["--split", "fbnet-F2", "--seeds", "2"]
    done = experiment("predictors.paired", "--out", tmp_path, *options)
    assert done.status == 0, done.err
    found = {row.subject: row.spread for row in read_rows(tmp_path / "paired.jsonl")}
    assert set(found) == {"fbnet-F2 over help", "fbnet-F2 over ridge"}
    assert all(spread["least"] < spread["most"] for spread in found.values())


@pytest.mark.usefixtures("latency_tables")
@pytest.mark.slow
def test_energy_search_script_scores_each_search_by_its_energies(
    run_twice: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    options = ["--cases", "onnx_cifar100", "--seeds", "1", "--evals", "20", "--processes", "1"]
    first, second = run_twice("energy_search.run", "--out", tmp_path, *options)
    assert "onnx_cifar100 energy\n" in first
    assert "onnx_cifar100 energy\n" not in second
    found = {(row.metric, row.subject): row.value for row in read_rows(tmp_path / "results.jsonl")}
    for subject in ("onnx_cifar100", "mean"):
        for lost in ("lost_energy", "lost_latency", "lost_macs", "lost_true_latency"):
            assert 0 <= found[lost, subject] < 1


@pytest.mark.usefixtures("latency_tables")
@pytest.mark.slow
def test_zero_cost_script_scores_networks_once(
    run_twice: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    options = ["--seeds", "0", "--networks", "6"]
    first, second = run_twice("zero_cost.run", "--out", tmp_path, *options)
    assert "seed 0 recorded" in first
    assert "seed 0 recorded" not in second
    found = {row.subject for row in read_rows(tmp_path / "results.jsonl")}
    assert found == {"naswot", "synflow", "meco", "macs", "params"}
