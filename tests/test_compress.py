"""Compression of a trained model: a search within it, compared with the model as it was given."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import hwnas
from hwnas.deploy import Bundle, export_onnx
from hwnas.errors import ConfigError
from hwnas.experiment.from_model import cost_objectives, recipe_for_model
from hwnas.recipe import parse_recipe
from hwnas.search import TASKS
from hwnas.search.data.image_data import DataConfig
from hwnas.search.data.loading import load_data
from hwnas.search.evaluation.scoring import score
from hwnas.search.training import NetworkStep, TrainConfig, fit, save_weights
from hwnas.search_spaces.any_model.sources import named_elastic

Command = Callable[..., Any]
SOURCE = """
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Conv2d(24, 24, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(24), nn.BatchNorm2d(24)

    def forward(self, x):
        return (x + self.last(self.second(self.norm(self.first(x)).relu()))).relu()


def build_model(outputs):
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), Block(), nn.MaxPool2d(2),
        Block(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, outputs),
    )
"""
MODEL = "trained:build_model"
SHORT = [
    "train.epochs=2", "train.workers=0", "search.workers=0", "search.trials=6", "deploy.top=2",
    "deploy.finetune_epochs=2", "predictor.networks=4", "predictor.reuse=false",
]  # fmt: skip
SETTINGS = [part for each in SHORT for part in ("--set", each)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with the code of a model, and its trained weights."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "trained.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import trained  # type: ignore[import-not-found]

        torch.manual_seed(0)
        model: nn.Module = trained.build_model(10)
        data = load_data(DataConfig("digits"), folder, 0)
        task = TASKS["classification"](data=data)
        config = TrainConfig(epochs=6, learning_rate=0.01, workers=0)
        fit(model, NetworkStep(model, task, (1, 8, 8)), data.train, config, 0)
        found = score(model, task, data.validation, (1, 8, 8), "validation")
        assert found.values["accuracy"] > 0.9
        save_weights(folder / "weights.safetensors", model.state_dict())
        yield folder
    sys.modules.pop("trained", None)


@pytest.mark.slow
def test_compress_searches_within_a_model_and_compares_with_it(
    hwnas: Command, folder: Path, short_timings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    answer = hwnas(
        *("compress", MODEL, "--data", "digits", "--weights", "weights.safetensors"),
        *("--target", "cpu-onnxruntime-b1-t1", "--minutes", "3", "--max-loss", "5"),
        *("--run", "run", "--json", *SETTINGS),
    )
    assert answer.status == 0, answer
    found = json.loads(answer.out)
    given = found["reference"]
    [limit] = [o["limit"] for o in found["objectives"] if o["metric"] == "accuracy"]
    assert limit == pytest.approx(given["values"]["accuracy"] - 0.05, abs=1e-4)
    assert found["reference_name"] == "the given model"
    assert "the given model has accuracy" in answer.err
    assert "the recipe sets, instead of what was planned: " in answer.err
    finalists = [row for row in found["front"] if row["bundle"]]
    assert len(finalists) in (2, 3, 4)  # two, and spare ones that were made and not needed
    assert given["limit_state"] == "kept"
    assert {check["split"] for row in finalists for check in row["limits"]} == {"validation"}
    kept = [row for row in finalists if row["limit_state"] == "kept"]
    assert kept
    assert min(row["macs"] for row in kept) < given["macs"]
    best = min(kept, key=lambda row: row["measured_latency_ms"])
    assert found["verdict"].startswith(f"{best['id']} takes ")

    recipe = tomllib.loads((folder / "run/recipe.toml").read_text())
    assert recipe["objective"][0]["limit_on"] == "validation"
    assert set(recipe["objective"][1]["targets"]) == {
        "cpu-onnxruntime-fp32-b1-t1",
        "cpu-onnxruntime-int8-b1-t1",
    }
    reference = Bundle.load(folder / "run/reference")
    reference.verify()
    [quantised] = found["conversions"]
    assert quantised["id"] == "reference-int8"
    assert quantised["file_bytes"] < given["file_bytes"]
    assert "of that model's in int8; accuracy on test images" in found["verdict"]
    Bundle.load(folder / "run" / quantised["bundle"]).verify()
    assert hwnas("export", "run", "--pick", "reference-int8", "--out", "quantised").status == 0
    assert "nothing is left to do" in hwnas("resume", "run").err
    report = (folder / "run/report.html").read_text()
    assert "the given model" in report
    assert "reference-int8" in report


@pytest.mark.exhaustive
def test_compress_searches_within_the_network_of_an_onnx_file(
    hwnas: Command, folder: Path, short_timings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.chdir(folder)
    import trained

    model = trained.build_model(10)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    export_onnx(model.eval(), (1, 8, 8), folder / "model.onnx")
    answer = hwnas(
        *("compress", "model.onnx", "--data", "digits", "--minutes", "3", "--max-loss", "50"),
        *("--run", "from-onnx", "--json", *SETTINGS),
    )
    assert answer.status == 0, answer
    found = json.loads(answer.out)
    assert found["reference"]["values"]["accuracy"] > 0.9  # the weights of the file
    finalists = [row for row in found["front"] if row["bundle"]]
    assert min(row["macs"] for row in finalists) < found["reference"]["macs"]
    Bundle.load(folder / "from-onnx" / finalists[0]["bundle"]).verify()

    (folder / "model.onnx").rename(folder / "moved.onnx")
    hwnas("resume", "from-onnx", "--set", "deploy.top=3").refused("there is no ONNX file")


@pytest.mark.slow
def test_compress_from_python_takes_a_model_object_and_searches_its_sparsity(
    folder: Path, short_timings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.chdir(folder)
    import trained

    model = trained.build_model(10)
    model.load_state_dict(load_file(folder / "weights.safetensors"))
    settings = dict(each.split("=") for each in SHORT)
    run = hwnas.compress(
        model,
        "digits",
        minutes=3,
        max_loss_points=50,
        sparsity="2of4",
        path=folder / "from-python",
        settings={key: json.loads(value) for key, value in settings.items()},
        reporter=hwnas.SilentReporter(),
    )
    given = run.reference
    assert given is not None
    assert given.test is not None
    assert given.test > 0.9  # in int8, as it was given
    zeros = []
    for row in run.finalists:
        assert row.bundle is not None
        tensors = onnx.load(Bundle.load(run.path / row.bundle).file_in("int8")).graph.initializer
        weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
        for name, option in row.architecture.items():
            if option == "2of4":
                layer = weights[f"{name.removesuffix('.sparsity')}.weight_quantized"]
                zeros.append((layer == 0).mean())
    assert min(zeros) >= 0.5  # all widths are multiples of four
    smallest = min(run.finalists, key=lambda row: row.weight_bytes)
    assert smallest.weight_bytes < given.weight_bytes / 2
    bundle = run.best(smallest.id).export(folder / "exported")
    bundle.verify()
    assert bundle.artifacts[0].variant == "int8"


@pytest.mark.slow
def test_recipe_for_a_bundle_has_its_size_and_normalisation(finished: Path) -> None:
    bundle = Bundle.load(next((finished / "bundles").iterdir()))
    recipe, _ = parse_recipe(recipe_for_model(str(bundle.folder), "digits"))
    how = bundle.preprocessing
    assert (recipe.data.size, recipe.data.mean) == ((how.height, how.width), how.mean)
    assert (recipe.data.std, recipe.data.fit) == (how.std, how.fit)
    space = named_elastic((how.height, how.width, how.channels), 10, **recipe.space.options)
    assert len(space.choices) > 1


def test_recipe_for_model_searches_width_depth_and_number_format() -> None:
    recipe, _ = parse_recipe(recipe_for_model(MODEL, "digits", 20, max_loss_points=0.5))
    assert recipe.name == "digits-compressed"
    assert (recipe.run.minutes, recipe.run.max_loss_points) == (20, 0.5)
    assert recipe.space.options["model"] == MODEL
    assert recipe.space.options["pretrained"] is True
    latency = recipe.objective[1]
    assert latency.reduce == "min"
    assert {target.split("-")[2] for target in latency.targets} == {"fp32", "int8"}


def test_latency_objective_has_the_number_formats_of_devices_only() -> None:
    target = "cpu-onnxruntime-int8-b1-t1"
    [one] = cost_objectives([target])
    assert one.all_targets == (target,)
    [both] = cost_objectives(["cpu-openvino-b1-t1", target])
    assert both.all_targets == (
        "cpu-openvino-fp32-b1-t1",
        "cpu-openvino-int8-b1-t1",
        target,
    )
    [other] = cost_objectives(["cpu-pytorch-b1-t1"])
    assert other.target == "cpu-pytorch-fp32-b1-t1"
    with pytest.raises(ConfigError, match="closest target"):
        cost_objectives(["cpu-onnxruntim-b1-t1"])


def test_recipe_with_sparsity_searches_sizes_in_int8() -> None:
    text = recipe_for_model(MODEL, "digits", sparsity=["2of4", "1of4"])
    recipe, _ = parse_recipe(text)
    assert recipe.space.names == ("quantised",)
    options = recipe.space.options
    assert options["sparsity"] == ["1of4", "2of4", "dense"]
    assert options["weight_bits"] == options["activation_bits"] == [8]
    assert options["network"]["model"] == MODEL
    _, latency, size = recipe.objective
    assert latency.target == "cpu-onnxruntime-int8-b1-t1"
    assert (size.metric, size.direction) == ("weight_bytes", "minimize")


@pytest.mark.parametrize(
    ("target", "sparsity", "told"),
    [
        ("cpu-onnxruntime-fp32-b1-t1", "2of4", "has no int8, in which networks with zeros"),
        ("cpu-pytorch-b1-t1", "2of4", "has no int8"),
        ("cpu-onnxruntime-b1-t1", "half", "space.sparsity has 'half'; expected N of M weights"),
        ("cpu-onnxruntime-b1-t1", "block4x4", "expected N of M weights"),
    ],
)
def test_recipe_refuses_sparsity_that_cannot_ship(target: str, sparsity: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        recipe_for_model(MODEL, "digits", targets=[target], sparsity=[sparsity])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-loss", "-1"], "run.max_loss_points is -1; expected at least 0"),
        (
            ["--max-loss", "100"],
            "run.max_loss_points is 100; expected at least",
        ),
        (["--max-loss", "nan"], "run.max_loss_points is nan"),
        (["--minutes", "1"], "run.minutes is 1; expected at least 3"),
        (["--target", "cpu-onnxruntim-b1-t1"], "closest target"),
        (["--weights", "none.safetensors"], "there is no file"),
        (["--size", "0"], "data.size is 0; expected at least 1"),
        (["--set", "data.mean=[0.5]"], "data has mean, but no std; give both"),
        (["--set", "data.mean=[0.5]", "--set", "data.std=[0.0]"], "expected numbers above 0"),
        (["--set", "search.trial=5"], "did you mean 'trials'"),
        ([], "no better than constant outputs"),
    ],
)
def test_compress_refuses_wrong_options(
    hwnas: Command,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    run = tmp_path / "run"
    hwnas("compress", MODEL, "--data", "digits", "--run", run, *options).refused(message)
    assert not run.exists()


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("weights.safetensors", "digits", "is not an ONNX file; give one, a bundle, 'package.modu"),
        (".", "digits", "bundle.json"),
        ("onnx:none.onnx", "digits", "there is no ONNX file"),
        ("none.onnx", "digits", "there is no ONNX file none.onnx"),
        ("trained:no_model", "digits", "no_model"),
        ("trained", "digits", "expected 'package.module:function'"),
        (MODEL, "no_images", "data.source"),
    ],
)
def test_compress_refuses_wrong_models_and_data(
    hwnas: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    data: str,
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    hwnas("compress", model, "--data", data, "--run", "refused").refused(message)
    assert not (folder / "refused").exists()


def test_largest_loss_needs_a_trained_model_and_minutes(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    loss, run = ("--set", "run.max_loss_points=1"), tmp_path / "run"
    answer = hwnas("search", quick_recipe, "--run", run, *loss)
    answer.refused("run.max_loss_points is for jobs with run.minutes")
    answer = hwnas("search", quick_recipe, "--run", run, "--minutes", "3", *loss)
    answer.refused("starts with random weights")
