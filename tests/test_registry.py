"""A package outside hwnas adds one plug-in of each kind, without a change to hwnas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hwnas.errors import ConfigError
from hwnas.registry import Plugin, Registry

PARTS = """
import numpy as np
from optuna.samplers import RandomSampler

from hwnas.deploy.file_formats.exported_program import ExportedProgramFile
from hwnas.deploy.runtimes.onnx import OnnxRuntime
from hwnas.deploy.variants import ConvertedNetwork
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.registry import Plugin
from hwnas.search import SupernetEvaluator, classification
from hwnas.search.data.raw_images import RawImages
from hwnas.search.data.sources import DataSource, SOURCES
from hwnas.search.strategies.reinforce import PolicyGradient
from hwnas.search_spaces import mobilenet, recipe_space


class Patient(PolicyGradient):
    pass


class Same:
    name, format = "same", "fp32"

    def lacks(self, material):
        return ""

    def make(self, material, to):
        return ConvertedNetwork(material.model)


class PeakMemory(type(DEVICE_METRICS["peak_memory_bytes"])):
    name, noun = "acme_bytes", "memory of Acme"


def sampler(seed):
    return RandomSampler(seed=seed)


def largest(space, rng, random_subnets):
    return [space.largest()]


SAMPLER = Plugin("sampler", "acme", sampler, "Random search of Acme")
RUNTIME = OnnxRuntime("acme", ("fp32",), ("cpu",))
VARIANT = Same()
FORMAT = Plugin("file format", "acme", ExportedProgramFile(suffix=".acme.pt2"), "Files of Acme")
METRIC = Plugin("metric", "acme_bytes", PeakMemory(), "Memory of Acme")
SOURCE = SOURCES["digits"]
MODELS = Plugin("model source", "acme", lambda *arguments: None, "Models of Acme")
space, task, evaluator, role = mobilenet, classification, SupernetEvaluator, recipe_space
"""

ENTRY_POINTS = """
[hwnas.samplers]
acme = acme_parts:SAMPLER
broken = acme_parts:missing

[hwnas.spaces]
acme = acme_parts:space

[hwnas.model_sources]
acme = acme_parts:MODELS

[hwnas.roles]
acme-role = acme_parts:role

[hwnas.tasks]
acme = acme_parts:task

[hwnas.evaluators]
acme = acme_parts:evaluator

[hwnas.sampling_rules]
acme = acme_parts:largest

[hwnas.search_strategies]
acme = acme_parts:Patient

[hwnas.data_sources]
acme = acme_parts:SOURCE

[hwnas.runtimes]
acme = acme_parts:RUNTIME

[hwnas.variants]
acme = acme_parts:VARIANT

[hwnas.file_formats]
acme = acme_parts:FORMAT

[hwnas.metrics]
acme_bytes = acme_parts:METRIC
"""

RECIPE = """
name = "outside"
[data]
source = "acme"
train_limit = 300
test_limit = 60
[task]
name = "acme"
[space]
name = "acme"
preset = "tiny"
[[objective]]
metric = "accuracy"
direction = "maximize"
[[objective]]
metric = "latency_ms"
direction = "minimize"
target = "cpu-acme-fp32-b1-t1"
[train]
epochs = 1
workers = 0
sampling = "acme"
[predictor]
networks = 5
[search]
sampler = "acme"
evaluator = "acme"
trials = 4
workers = 0
[deploy]
top = 1
finetune_epochs = 0
formats = ["acme"]
"""


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, str]:
    """Install a package with entry points, and return the environment that finds it."""
    site = tmp_path / "site"
    about = site / "acme-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "acme_parts.py").write_text(PARTS)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HWNAS_HOME": str(tmp_path / "home"),
    }


def hwnas(arguments: list[str], environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "hwnas.cli", *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_plugins_lists_those_of_installed_packages(outside: dict[str, str], tmp_path: Path) -> None:
    points = tmp_path / "site" / "acme-1.0.dist-info" / "entry_points.txt"
    points.write_text(ENTRY_POINTS.replace("broken = acme_parts:missing\n", ""))
    status, listed, _ = hwnas(["plugins", "--json"], outside, tmp_path)
    assert status == 0
    found = json.loads(listed)
    kinds = {each["kind"] for each in found if each["name"].startswith("acme")}
    assert kinds == {each["kind"] for each in found} - {"operator"}
    [sampler] = [each for each in found if (each["kind"], each["name"]) == ("sampler", "acme")]
    assert sampler["summary"] == "Random search of Acme"


@pytest.mark.slow
def test_broken_plugin_of_an_installed_package_is_named(
    outside: dict[str, str], tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace('sampler = "acme"', 'sampler = "broken"'))
    status, _, error = hwnas(["search", str(recipe)], outside, tmp_path)
    assert status == 2
    assert error.count("\n") == 1
    assert "sampler 'broken' of the installed package acme does not import" in error


@pytest.mark.slow
def test_recipe_uses_plugins_of_installed_packages(outside: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    status, _, error = hwnas(["search", "recipe.toml"], outside, tmp_path)
    assert status == 0, error
    assert "cpu-acme-fp32-b1-t1" in (tmp_path / "runs/outside/front.csv").read_text()
    [converted] = tmp_path.glob("runs/outside/bundles/*/model.acme.pt2")
    assert "model.acme.pt2" in (converted.parent / "bundle.sha256").read_text()


def test_registry_finds_the_plugins_of_a_package() -> None:
    samplers: Registry[object] = Registry("sampler", "hwnas.search.samplers")
    assert {"guided", "random", "nsga2"} <= set(samplers)
    assert len(samplers) == len([*samplers])
    assert isinstance(samplers.plugin("guided"), Plugin)
    assert samplers["guided"] is samplers.plugin("guided").value


def test_every_plugin_has_a_name_of_its_own_and_a_summary() -> None:
    from hwnas.cli.plugins import plugins

    found = plugins()
    assert all(each.summary for each in found)
    names = [(each.kind, each.name) for each in found]
    assert len(set(names)) == len(names)


def test_find_refuses_unknown_names_and_names_the_closest() -> None:
    samplers: Registry[object] = Registry("sampler", "hwnas.search.samplers")
    with pytest.raises(ConfigError, match="unknown sampler 'gided'; did you mean 'guided'"):
        samplers.find("gided")
    with pytest.raises(ConfigError, match=r"unknown search.sampler 'x'"):
        samplers.find("x", "search.sampler")
