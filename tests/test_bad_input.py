"""Bad input on the command line: one clear line, exit status 2, no incomplete files."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hwnas.deploy import Bundle
from hwnas.home import home
from hwnas.run_folder import RunFolder

TARGET = "cpu-onnxruntime-fp32-b1-t1"
Command = Callable[..., Any]


@pytest.fixture
def refused(hwnas: Command, quick_recipe: Path, tmp_path: Path) -> Callable[..., str]:
    """Return a check that a search with overrides fails with all parts and leaves no files."""

    def check(overrides: list[str], *parts: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        sets = [word for override in overrides for word in ("--set", override)]
        answer = hwnas("search", quick_recipe, "--run", tmp_path / "runs" / "a", *sets)
        line: str = answer.refused(*parts)
        assert sorted(tmp_path.rglob("*")) == before, "nothing is left behind"
        return line

    return check


# The recipe


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("search.trails=3", ["search.trails", "did you mean 'trials'?"]),
        ("search.trials=0", ["search.trials is 0", "at least 1"]),
        ("search.workers=-1", ["search.workers is -1", "at least 0"]),
        ("nonsense", ["'nonsense'", "expected table.key=value"]),
        ("task.name=clasification", ["unknown task", "did you mean 'classification'?"]),
        ("space.name=mobilnet", ["unknown space", "did you mean 'mobilenet'?"]),
        ("search.sampler=nsga", ["unknown sampler", "did you mean 'nsga3'?"]),
        (
            "search.options.strat=3",
            ["'strat'", "did you mean 'start'?"],
        ),
        ("search.evaluator=supernett", ["unknown evaluator", "did you mean 'supernet'?"]),
        ("train.sampling=sandwitch", ["unknown train.sampling", "did you mean 'sandwich'?"]),
        ("train.distillation_loss=alfa", ["train.distillation_loss is 'alfa'", "'kl' or 'alpha'"]),
        ("train.precision=fp16", ["train.precision is 'fp16'", "'auto', 'bf16' or 'fp32'"]),
        ("train.ema=1.5", ["train.ema is 1.5", "[0, 1)"]),
        ("train.patience=0", ["train.patience is 0", "above 0"]),
        ("train.accumulate=0", ["train.accumulate is 0", "above 0"]),
        ("train.ranking_check=2", ["train.ranking_check is 2", "at least 4"]),
        ("objective.0.metric=acuracy", ["objective.metric 'acuracy'", "'accuracy'"]),
        ("objective.0.direction=minimize", ["more of it is better", 'direction = "maximize"']),
        ("objective.1.metric=latency_ms", ["'latency_ms' needs a target", "hwnas devices"]),
        ("objective.0.target=x", ["'accuracy' takes no target"]),
        ('objective.1.targets=["a", "b"]', ["has targets, but no reduce"]),
        ("objective.1.reduce=mean", ["objective.1.reduce is 'mean'", "'worst', 'sum' or 'min'"]),
        ("task.label_smothing=0.1", ["[task] has no key", "did you mean 'label_smoothing'?"]),
        ("task.label_smoothing=2", ["label_smoothing is 2", "below 1"]),
        ("task.label_smoothing=much", ["[task] label_smoothing", "is 'much'; expected a number"]),
        ("space.widht=[1]", ["[space] has no key", "did you mean 'width'?"]),
        ("space.resolution=[4, 8, 8]", ["resolution"]),
        ("space.stages=3", ["[space] stages"]),
        ("train.batch_size=1000", ["train.batch_size is 1000", "only 300 training images"]),
        ("data.source=digit", ["unknown data.source", "did you mean 'digits'?"]),
        ("data.source=npz:none.npz", ["there is no file", "relative paths start at"]),
        ("data.source=npz:", ["expected a path after the colon"]),
        ("data.source=folder:none", ["there is no folder"]),
        ("data.size=[8]", ["data.size is [8]", "a number, or a height and a width"]),
        ("data.size=wide", ["data.size is 'wide'; expected a whole number"]),
        ("data.fit=pad", ["data.fit is 'pad'", "'stretch' or 'crop'"]),
        ("data.folds=0", ["data.folds is 0", "at least 1"]),
        ("data.folds=3", ['search.evaluator is "supernet"', 'set it to "train"']),
        ("data.source=npz:$NO_SUCH_PLACE/a.npz", ["$NO_SUCH_PLACE is not set"]),
        ("data.source=no_such_module:digits", ["'no_such_module' does not import"]),
        ("task.name=json:nothing", ["'json' has no 'nothing'"]),
    ],
)
def test_search_command_refuses_recipes_that_cannot_work(
    refused: Callable[..., str], override: str, parts: list[str]
) -> None:
    refused([override], *parts)


@pytest.mark.parametrize("table", ["compute", "search", "deploy"])
def test_search_command_names_the_key_that_asks_for_missing_gpus(
    hwnas: Command, quick_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr("hwnas.experiment.workers.device_here", lambda gpus: torch.device("cpu"))
    key = f"{table}.gpus_per_worker"
    answer = hwnas("search", quick_recipe, "--run", tmp_path / "a", "--set", f"{key}=1")
    answer.refused(f"{key} is 1, but PyTorch finds no GPU")


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("gpu-onnxruntime-fp32-b1-t1", "unknown hardware 'gpu'"),
        ("cpu-onnxruntim-fp32-b1-t1", "did you mean 'onnxruntime'?"),
        ("cpu-onnxruntime-fp31-b1-t1", "did you mean 'fp32'?"),
        ("cpu-onnxruntime-fp32-b1-t0", "threads 0"),
        ("cpu", "expected hardware-runtime-format-bBATCH-tTHREADS"),
    ],
)
def test_search_command_refuses_unknown_targets_and_names_the_closest(
    refused: Callable[..., str], target: str, part: str
) -> None:
    change = ["objective.1.metric=latency_ms", f"objective.1.target={target}"]
    refused(change, repr(target), part, "the closest target is 'cpu-onnxruntime-fp32-")


def test_search_command_refuses_a_module_that_fails_to_import(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "broken_by_user.py").write_text("1 / 0\n")
    refused(
        ["space.name=broken_by_user:Space"],
        "'broken_by_user' does not import (ZeroDivisionError: division by zero)",
    )


def test_search_command_refuses_to_grow_networks_that_share_no_weights(
    refused: Callable[..., str],
) -> None:
    members = '[{name="simplenet", label="a"}, {name="simplenet", label="b"}]'
    refused(
        ["search.evaluator=grow", f'space={{name="union", members={members}}}'],
        "networks of space 'union' cannot grow",
    )


def test_search_command_refuses_unreadable_recipes(hwnas: Command, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("name = ")
    hwnas("search", tmp_path / "a.toml").refused("is not TOML", "line 1")
    (tmp_path / "book.txt").write_text("It was the best of times.")
    hwnas("search", tmp_path / "book.txt").refused(f'data.source = "text:{tmp_path}/book.txt"')
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8\xff")
    hwnas("search", tmp_path / "cat.jpg").refused("for images, give their folder")
    hwnas("search", tmp_path / "b.toml").refused("cannot read the recipe")


# The data


def arrays(n: int = 100, side: int = 8, classes: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, side, side), np.uint8)
    labels = np.arange(n) % classes
    return {"x_train": images, "y_train": labels, "x_test": images[:20], "y_test": labels[:20]}


def test_search_command_refuses_a_damaged_data_file(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **arrays())
    path.write_bytes(path.read_bytes()[:3000])
    refused(["data.source=npz:a.npz"], "a.npz")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"x_train": None}, ["no x_train"]),
        ({"x_train": np.zeros((100, 8), np.uint8)}, ["x_train", "(100, 8)", "(N, H, W)"]),
        ({"x_train": np.zeros((100, 8, 8))}, ["x_train is float64; expected uint8"]),
        ({"y_train": np.zeros(99, int)}, ["100 images", "99 targets"]),
        ({"y_train": np.full(100, -1)}, ["is -1; classes are numbered from 0"]),
        ({"y_test": np.full(20, 7)}, ["labels go from 7 to 7"]),
        ({"class_names": np.array(["a", "b"])}, ["the 2 classes from 0 to 1"]),
        ({"x_test": np.zeros((20, 9, 8), np.uint8)}, ["(8, 8, 1)", "(9, 8, 1)"]),
    ],
)
def test_search_command_refuses_arrays_that_do_not_fit(
    refused: Callable[..., str], tmp_path: Path, change: dict[str, Any], parts: list[str]
) -> None:
    given = {name: array for name, array in {**arrays(), **change}.items() if array is not None}
    np.savez(tmp_path / "a.npz", **given)
    refused(["data.source=npz:a.npz"], *parts)


@pytest.mark.parametrize(
    ("space", "parts"),
    [
        ('name="mobilenet", stages=[]', ["stages is empty", "at least one Stage"]),
        ('name="mobilenet", width=[0.99, 1]', ["two of them round", "choose widths further apart"]),
        (
            'name="mobilenet", width=[1], stages=[{channels=16, expand_ratio=[0.5, 1]}]',
            ["no expansion layer, but", "add a larger one"],
        ),
        (
            'name="mobilenet", stages=[{channels=20, operators=["k3_e1_g3", "k3_e3"]}]',
            ["3 groups, which do not divide the channels", "leave that block out"],
        ),
        ('name="resnet", preset="resnet-50"', ["strides multiply to 32", "space.stem_stride"]),
        ('name="resnet", stages=[{channels=32, depth=[0, 1]}]', ["ResNetStage.depth is [0, 1]"]),
        ('name="vit", heads=[5], head_width=0', ["5 heads do not divide", "set head_width"]),
        ('name="vit", patch_size=[16]', ["smaller than a patch of 16", "space.patch_size"]),
        ('name="hybrid", head_width=12', ["do not divide half", "choose multiples of 24"]),
        (
            'name="hybrid", stages=[{channels=32, blocks=["convolution", "attention"]}]',
            ['the last has to be "both"'],
        ),
        ('name="simplenet", groups=[{channels=[16], width=[0.9, 1]}]', ["widths further apart"]),
        ('name="simplenet", preset="full"', ["halved 4 times", "at least 16"]),
        ('name="nasbench201", cells=0', ["cells is 0", "at least 1"]),
    ],
)
def test_search_command_refuses_spaces_that_cannot_work(
    refused: Callable[..., str], space: str, parts: list[str]
) -> None:
    refused([f"space={{{space}}}"], *parts)


def test_search_command_refuses_images_too_small_for_the_space(
    refused: Callable[..., str], quick_recipe: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays(side=2))
    text = quick_recipe.read_text()
    start, end = text.index("resolution"), text.index("[train]")
    quick_recipe.write_text(text[:start] + text[end:])
    refused(["data.source=npz:a.npz"], "pixels")


def test_search_command_removes_its_folder_after_a_failed_start(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"total": 4}))
    np.savez(tmp_path / "a.npz", **arrays())
    refused(["data.source=npz:a.npz", "data.size=16", "space.widht=[1]"], "'width'")


# Limits


@pytest.mark.slow
def test_search_command_refuses_unreachable_count_limits_before_training(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    answer = hwnas("search", quick_recipe, "--run", run, "--set", "objective.1.limit=10")
    line = answer.refused("no network of the space has params of at most 10", "lowest")
    lowest = float(line.partition("lowest that was found is ")[2].split(". ")[0].replace(",", ""))
    assert 100 < lowest < 5000
    assert not (run / "supernet").exists()


@pytest.mark.slow
def test_search_command_names_the_nearest_candidate_if_none_meets_limits(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    answer = hwnas("search", quick_recipe, "--run", run, "--set", "objective.0.limit=0.9999")
    first = answer.refused("none of 8 candidates meets", "accuracy at least 0.9999", "nearest")
    assert hwnas("resume", run).refused("none of 8 candidates meets") == first
    assert not (run / "bundles").exists()


@pytest.mark.slow
def test_search_command_refuses_unreachable_latency_before_training(
    hwnas: Command, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    answer = hwnas("search", tiny_recipe, "--run", run, "--set", "objective.1.limit=0.0001")
    answer.refused(f"latency_ms@{TARGET} of at most 0.0001", "lowest")
    assert not (run / "supernet").exists()


def test_search_command_names_a_damaged_image_and_keeps_decoded_ones(
    hwnas: Command, tiny_recipe: Path, tmp_path: Path
) -> None:
    for number in range(40):
        path = tmp_path / f"images/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(path)
    (tmp_path / "images/b/41.png").write_text("no image")
    run, data = tmp_path / "run", ("--set", f"data.source=folder:{tmp_path}/images")
    answer = hwnas("search", tiny_recipe, "--run", run, *data)
    answer.refused("b/41.png (cannot identify image file)", "data.skip_damaged = true")
    [array] = home().glob("images/*/*.npy")
    assert array.stat().st_size > 40 * 64
    written = array.stat().st_mtime_ns
    hwnas("search", tiny_recipe, "--run", run, *data).refused("1 of 41 images")
    assert array.stat().st_mtime_ns == written


# Output folders


@pytest.mark.parametrize(
    "kilobytes",
    [
        pytest.param(k, marks=pytest.mark.slow if k in (4, 120) else pytest.mark.exhaustive)
        for k in (0.5, 4, 8, 30, 120)
    ],
)
def test_search_command_reports_a_full_disk_and_can_be_resumed(
    hwnas: Command,
    hwnas_on_a_full_disk: Command,
    quick_recipe: Path,
    tmp_path: Path,
    kilobytes: float,
) -> None:
    run = tmp_path / "run"
    answer = hwnas_on_a_full_disk(int(1000 * kilobytes), "search", quick_recipe, "--run", run)
    answer.refused("cannot write")
    assert not list(tmp_path.rglob("*.tmp"))
    if kilobytes < 1:
        assert not run.exists(), "it could not even begin"
        return
    assert hwnas("resume", run).status == 0
    [bundle] = (run / "bundles").iterdir()
    Bundle.load(bundle).verify()


def test_search_command_refuses_a_file_as_run_folder(hwnas: Command, quick_recipe: Path) -> None:
    for run in (quick_recipe, quick_recipe / "run"):
        hwnas("search", quick_recipe, "--run", run).refused(str(run))


def test_search_command_refuses_a_folder_that_holds_no_run(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").touch()
    hwnas("search", quick_recipe, "--run", tmp_path).refused("exists and holds no run")


def test_export_command_refuses_places_that_cannot_be_written(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    hwnas("export", finished, "--out", tmp_path / "file").refused("exists already")
    hwnas("export", finished, "--out", tmp_path / "file" / "a").refused("cannot write")


@pytest.mark.slow
def test_resume_command_reports_a_log_that_cannot_be_written(
    hwnas_on_a_full_disk: Command, finished: Path
) -> None:
    log = finished / "log.jsonl"
    log.write_text(log.read_text() * 100)  # larger than the study, which is opened first
    hwnas_on_a_full_disk(log.stat().st_size + 10, "resume", finished).refused(
        "cannot write", "log.jsonl"
    )


# The run folder


def test_search_command_refuses_a_run_of_another_recipe(
    hwnas: Command, finished: Path, finished_recipe: Path
) -> None:
    command = ("search", finished_recipe, "--run", finished, "--set", "seed=1")
    hwnas(*command).refused("holds a run of another recipe", "--run DIR")


@pytest.mark.slow
def test_commands_refuse_a_run_that_another_process_uses(
    hwnas: Command, finished: Path, finished_recipe: Path
) -> None:
    with RunFolder.open(finished):
        for command in (
            ("resume", finished),
            ("search", finished_recipe, "--run", finished),
            ("report", finished),
        ):
            hwnas(*command).refused("another process works on")
    assert hwnas("resume", finished).status == 0


def flip(path: Path, place: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("command", ["status", "resume", "report"])
def test_commands_refuse_folders_without_a_run(
    hwnas: Command, tmp_path: Path, command: str
) -> None:
    hwnas(command, tmp_path).refused("holds no run", "hwnas search")
    hwnas(command, tmp_path / "none").refused("holds no run")


@pytest.mark.parametrize("command", ["status", "resume", "report"])
@pytest.mark.parametrize("name", ["run.json", "recipe.toml", "study.db"])
def test_commands_name_a_damaged_run_record(
    hwnas: Command, finished: Path, command: str, name: str
) -> None:
    if name == "study.db":
        (finished / name).write_bytes(b"damaged" * 1000)
    else:
        cut(finished / name)
    hwnas(command, finished).refused(str(finished / name))


def test_report_command_names_damaged_measurements(hwnas: Command, finished: Path) -> None:
    cut(finished / "measurements.parquet")
    line = hwnas("report", finished).refused("measurements.parquet is damaged", "remove it")
    assert "hwnas resume" in line


def unfinish(run: Path, *stages: str) -> None:
    """Mark the stages as running, as after a kill in the first of them."""
    about = json.loads((run / "run.json").read_text())
    for stage in stages:
        about["stages"][stage]["state"] = "running"
    (run / "run.json").write_text(json.dumps(about))


@pytest.mark.slow
def test_resume_command_names_a_damaged_checkpoint_and_works_without_it(
    hwnas: Command, finished: Path
) -> None:
    unfinish(finished, "train", "report")
    checkpoint = finished / "supernet" / "checkpoint.safetensors"
    cut(checkpoint)
    hwnas("resume", finished).refused("checkpoint.safetensors is damaged", "remove it to train")
    checkpoint.unlink()
    assert hwnas("resume", finished).status == 0


@pytest.mark.slow
def test_resume_command_names_damaged_weights_and_restores_them(
    hwnas: Command, finished: Path
) -> None:
    unfinish(finished, "search", "report")
    weights = finished / "supernet" / "weights.safetensors"
    whole = weights.read_bytes()
    cut(weights)
    hwnas("resume", finished).refused("weights.safetensors is damaged", "remove it to train")
    weights.unlink()
    assert hwnas("resume", finished).status == 0
    assert weights.read_bytes() == whole, "the checkpoint was whole, so nothing was trained"


def test_resume_command_names_the_line_of_damaged_scores(hwnas: Command, finished: Path) -> None:
    unfinish(finished, "search", "report")
    scores = finished / "scores.jsonl"
    lines = scores.read_text().splitlines()
    scores.write_text("\n".join([lines[0], lines[1][:30], *lines[2:]]) + "\n")
    hwnas("resume", finished).refused("scores.jsonl is damaged at line 2")


@pytest.mark.slow
def test_resume_command_names_a_damaged_finalist(hwnas: Command, finished: Path) -> None:
    unfinish(finished, "finalists", "report")
    shutil.rmtree(finished / "bundles")
    first = min((finished / "finalists").glob("*.safetensors"))
    cut(first)
    hwnas("resume", finished).refused(f"{first.name} is damaged", "remove it")


# Bundles and models


@pytest.mark.slow
def test_verify_command_detects_one_flipped_bit_in_any_file(hwnas: Command, finished: Path) -> None:
    bundle = min((finished / "bundles").iterdir())
    for name in sorted(os.listdir(bundle)):
        flip(bundle / name)
        hwnas("verify", bundle).refused(str(bundle))
        flip(bundle / name)
    assert hwnas("verify", bundle).status == 0


def test_export_command_refuses_a_damaged_bundle(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    for bundle in (finished / "bundles").iterdir():
        flip(bundle / "model.onnx")
    hwnas("export", finished, "--out", tmp_path / "out").refused("model.onnx")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["verify", "run"])
def test_bundle_commands_refuse_paths_that_are_not_bundles(
    hwnas: Command, tmp_path: Path, command: str
) -> None:
    image = [tmp_path / "a.png"] if command == "run" else []
    hwnas(command, tmp_path, *image).refused("is not a bundle")
    hwnas(command, tmp_path / "none", *image).refused("is not a bundle")
    (tmp_path / "model.onnx").write_bytes(b"")
    hwnas(command, tmp_path / "model.onnx", *image).refused("is not a bundle but a file")


@pytest.mark.slow
def test_serve_command_refuses_wrong_options_and_damaged_bundles(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    bundle = min((finished / "bundles").iterdir())
    hwnas("serve", tmp_path).refused("is not a bundle")
    hwnas("serve", bundle, "--host", "no.such.host.invalid").refused("cannot listen", "--host")
    hwnas("serve", bundle, "--port", 70000).refused("--port")
    hwnas("serve", bundle, "--threads", 1000).refused("1000 threads")
    hwnas("serve", bundle, "--max-body-mb", 0).refused("--max-body-mb")
    hwnas("serve", bundle, "--client-timeout", "nan").refused("client_s is nan")
    hwnas("serve", bundle, "--max-wait-ms", "inf").refused("max_wait_ms inf")
    hwnas("serve", bundle, "--name", "a/b").refused("cannot be a model's name")
    flip(bundle / "model.onnx")
    hwnas("serve", bundle).refused("model.onnx", "SHA-256")


def test_run_command_refuses_files_that_are_not_images(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    bundle = min((finished / "bundles").iterdir())
    hwnas("run", bundle, tmp_path / "none.png").refused("there is no image")
    (tmp_path / "text.png").write_text("text")
    hwnas("run", bundle, tmp_path / "text.png").refused("cannot be read as an image")
    hwnas("run", bundle, tmp_path).refused(str(tmp_path))


@pytest.mark.slow
def test_measure_command_refuses_wrong_targets_and_damaged_models(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    shutil.copy(min((finished / "bundles").iterdir()) / "model.onnx", model)
    hwnas("measure", model, "--target", "gpu").refused("target 'gpu'")
    cut(model)
    hwnas("measure", model, "--target", TARGET).refused("model.onnx")
    hwnas("measure", tmp_path / "none.onnx", "--target", TARGET).refused("none.onnx")
    hwnas("measure", tmp_path, "--target", TARGET).refused(str(tmp_path))


def test_export_and_specialise_commands_refuse_unknown_picks_and_targets(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "out")
    hwnas("export", finished, *out, "--pick", "fastst").refused("did you mean 'fastest'?")
    hwnas("export", finished, *out, "--max-latency-ms", "1e-9").refused("the fastest was measured")
    hwnas("export", finished, *out, "--target", "cpu-onnxruntime-fp32-b2-t1").refused(
        "has no results for", "hwnas specialise"
    )
    hwnas("specialise", finished, "--target", "tpu").refused("target 'tpu'")
    assert not (tmp_path / "out").exists()


def test_commands_refuse_an_unfinished_run(hwnas: Command, finished: Path, tmp_path: Path) -> None:
    unfinish(finished, "report")
    for command in (
        ("specialise", finished, "--target", "cpu-onnxruntime-fp32-b8-t1"),
        ("export", finished, "--out", tmp_path / "out"),
        ("report", finished),
    ):
        hwnas(*command).refused("is not finished", f"hwnas resume {finished}")
