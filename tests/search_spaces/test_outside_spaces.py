"""Two spaces of another package: one whose networks nest, one with operators side by side."""

from __future__ import annotations

import csv
import importlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import hwnas
from hwnas import TrainConfig
from hwnas.errors import ConfigError

SPACES = '''
from functools import cached_property, partial

from torch import nn

from hwnas.search_spaces import Choice, ChoiceCondition, SearchSpace
from hwnas.search_spaces.space.space_plugin import SpacePlugin
from hwnas.search_spaces.supernet.block_space import BlockSpace, row
from hwnas.search_spaces.supernet.block_specs import BlockSpec


class Mixing(nn.Module):
    """MLP-Mixer's block: (N, T, C) -> (N, T, C)."""

    def __init__(self, tokens, width, hidden):
        super().__init__()
        self.across = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU())
        self.within = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
        return x + self.within(x)


class Mixer(nn.Module):
    def __init__(self, channels, tokens, width, hidden, depth, outputs):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 2, 2)
        self.blocks = nn.Sequential(*(Mixing(tokens, width, hidden) for _ in range(depth)))
        self.outputs = nn.Linear(width, outputs)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2).contiguous()
        return self.outputs(self.blocks(tokens).mean(1))


class MixerSpace(SearchSpace):
    """MLP-Mixer with elastic width, depth and hidden channels, which nest."""

    name = "acme-mixer"
    choices = Choice("width", (8, 16)), Choice("depth", (1, 2, 3)), Choice("ratio", (1, 2))

    def __init__(self, image_shape, outputs):
        self.image_shape, self.outputs = image_shape, outputs

    @property
    def identity(self):
        return {"image_shape": self.image_shape, "outputs": self.outputs}

    def input_shape(self, architecture):
        height, width, channels = self.image_shape
        return channels, height, width

    def build(self, architecture):
        values = self.check(architecture).as_dict()
        height, width, channels = self.image_shape
        tokens = (height // 2) * (width // 2)
        hidden = values["width"] * values["ratio"]
        return Mixer(
            channels, tokens, values["width"], hidden, values["depth"], self.outputs
        )


def operator(channels, kind):
    if kind == "pool":
        return nn.MaxPool2d(3, 1, 1)
    kernel = {"point": 1, "square": 3}[kind]
    convolution = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU())


class Chain(nn.Module):
    def __init__(self, stem, steps, outputs):
        super().__init__()
        self.stem, self.steps, self.outputs = stem, steps, outputs

    def forward(self, images):
        return self.outputs(self.steps(self.stem(images)).mean((2, 3)))


class ChainSpace(BlockSpace):
    """A chain of steps; each is one of three operators with weights of their own."""

    name = "acme-chain"
    kinds = ("pool", "point", "square")

    def __init__(self, image_shape, outputs, length=3):
        self.image_shape, self.outputs, self.length = image_shape, outputs, length

    @cached_property
    def choices(self):
        width = Choice("width", (8, 16))
        return width, *(Choice(f"step{i}", self.kinds) for i in range(self.length))

    @property
    def identity(self):
        return {"image_shape": self.image_shape, "outputs": self.outputs}

    def input_shape(self, architecture):
        height, width, channels = self.image_shape
        return channels, height, width

    @cached_property
    def block_specs(self):
        width = {"channels": "width"}
        stem = BlockSpec("stem", partial(nn.Conv2d, self.image_shape[2], kernel_size=3, padding=1),
                         {"out_channels": "width"})
        steps = (
            BlockSpec(f"steps.{i}", operator, {**width, "kind": f"step{i}"}, operator="kind",
                      operators=self.kinds)
            for i in range(self.length)
        )
        outputs = BlockSpec("outputs", partial(nn.Linear, out_features=self.outputs),
                            {"in_features": "width"})
        return stem, *steps, outputs

    def frame(self, blocks):
        steps = nn.Sequential(*row(blocks, "steps"))
        return Chain(blocks["stem"], steps, blocks["outputs"])


MIXER = SpacePlugin("space", "acme-mixer", MixerSpace, "Mixers", examples={"": (8, 8, 1)})
CHAIN = SpacePlugin("space", "acme-chain", ChainSpace, "Chains", examples={"": (8, 8, 1)})
'''

ENTRY_POINTS = """
[hwnas.spaces]
acme-mixer = acme_spaces:MIXER
acme-chain = acme_spaces:CHAIN
"""

RECIPE = """
name = "{space}"
[data]
source = "digits"
train_limit = 300
test_limit = 60
[space]
name = "{space}"
[[objective]]
metric = "accuracy"
direction = "maximize"
[[objective]]
metric = "latency_ms"
direction = "minimize"
target = "cpu-onnxruntime-fp32-b1-t1"
[train]
epochs = 1
workers = 0
[predictor]
networks = 5
[search]
trials = 4
workers = 0
{search}
[deploy]
top = 1
finetune_epochs = 0
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Install the package in a folder of its own."""
    about = tmp_path / "site" / "acme_spaces-1.0.dist-info"
    about.mkdir(parents=True)
    (tmp_path / "site" / "acme_spaces.py").write_text(SPACES)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-spaces\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path / "site"


@pytest.fixture
def package(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(site))
    yield importlib.import_module("acme_spaces")
    del sys.modules["acme_spaces"]


def command(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HWNAS_HOME": str(site.parent / "home"),
    }
    words = [sys.executable, "-m", "hwnas.cli", *arguments]
    return subprocess.run(words, env=environment, cwd=site.parent, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["MixerSpace", "ChainSpace"])
def test_networks_of_an_outside_space_equal_their_part_of_the_supernet(
    package: ModuleType, name: str
) -> None:
    space = getattr(package, name)((8, 8, 1), 10)
    supernet = space.supernet().eval()
    images = torch.randn(4, 1, 8, 8)
    networks = [space.smallest(), space.largest(), *map(space.sample, map(random.Random, range(6)))]
    for network in networks:
        supernet.activate(network)
        with torch.no_grad():
            inside, outside = supernet(images), supernet.extract(network).eval()(images)
        torch.testing.assert_close(inside, outside)


def test_space_whose_attribute_hides_a_method_is_refused(
    package: ModuleType, tmp_path: Path
) -> None:
    space = package.ChainSpace((8, 8, 1), 10)
    space.steps = 3
    with pytest.raises(ConfigError, match="its attribute 'steps' hides a method of SearchSpace"):
        hwnas.search("digits", space=space, path=tmp_path / "run", training=TrainConfig(epochs=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "search"),
    [
        ("acme-mixer", ""),
        pytest.param(
            "acme-chain",
            'strategy = "gdas"\nstrategy_options = {epochs = 1}',
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_outside_space_is_listed_searched_and_shipped(site: Path, space: str, search: str) -> None:
    listed = command(site, "spaces")
    assert "acme-mixer" in listed.stdout
    assert "acme-chain" in listed.stdout
    (site.parent / "recipe.toml").write_text(RECIPE.format(space=space, search=search))
    done = command(site, "search", "recipe.toml")
    assert done.returncode == 0, done.stderr
    run = site.parent / "runs" / space
    with (run / "front.csv").open() as front:
        assert next(csv.DictReader(front))["latency_ms@cpu-onnxruntime-fp32-b1-t1"]
    [bundle] = (run / "bundles").iterdir()
    verified = command(site, "verify", str(bundle))
    assert verified.returncode == 0, verified.stderr + verified.stdout
