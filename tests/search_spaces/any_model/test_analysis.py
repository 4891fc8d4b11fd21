"""Elastic search spaces from plain models as users write them."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_models import MODELS, BasicBlock, PlainCNN, ResNet, seeded
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.errors import ConfigError
from hwnas.search_spaces import ElasticSpace, elastic


def example() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@cache
def space_of(name: str) -> ElasticSpace:
    return elastic(seeded(MODELS[name]), example())


def params(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


every_model = pytest.mark.parametrize("name", MODELS)


# Every model


@pytest.mark.slow
@every_model
def test_largest_network_equals_the_model_and_leaves_it_unchanged(name: str) -> None:
    model = seeded(MODELS[name]).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    space = elastic(model, example())
    supernet = space.supernet().eval()
    with torch.no_grad():
        torch.testing.assert_close(supernet(example()), model(example()), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.slow
@every_model
@settings(max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_extracted_network_equals_the_active_one_after_training(name: str, seed: int) -> None:
    space = space_of(name)
    supernet = space.supernet().train()
    architecture = space.sample(random.Random(seed))
    supernet.activate(architecture)
    optimiser = torch.optim.SGD(supernet.parameters(), lr=0.01)
    supernet(example()).square().mean().backward()
    optimiser.step()
    supernet.eval()
    extracted = supernet.extract(architecture)
    with torch.no_grad():
        expected = extracted(example())
        torch.testing.assert_close(supernet(example()), expected, rtol=1e-5, atol=1e-5)


@every_model
def test_smallest_network_has_under_three_fifths_of_the_parameters(name: str) -> None:
    space = space_of(name)
    assert params(space.build(space.smallest())) < 0.6 * params(MODELS[name]())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("dense", "unet-resizing", "convnext", "vit-torch"),
        *("plain", "resnet", "mobilenet", "unet", "vit"),
    ],
)
def test_extracted_network_is_a_plain_module_and_exports(name: str, tmp_path: Path) -> None:
    space = space_of(name)
    network = space.supernet().extract(space.sample(random.Random(1))).eval()
    assert type(network) is type(seeded(MODELS[name]))
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not any("mask" in key for key, _ in module.named_buffers())
    export = export_onnx(network, (3, 16, 16), tmp_path / "model.onnx", example())
    assert export.max_relative_error < 1e-4


@every_model
def test_only_the_output_and_small_layers_are_fixed(name: str) -> None:
    fixed = {each.name: each.reason for each in space_of(name).fixed}
    outputs = {
        key for key, why in fixed.items() if why == "its channels are outputs of the network"
    }
    assert len(outputs) == 1
    left = set(fixed) - outputs
    assert all("leave no smaller multiple of 8" in fixed[key] for key in left)


# Elastic parts


def test_widths_are_multiples_of_eight_and_keep_important_channels() -> None:
    model = seeded(PlainCNN)
    with torch.no_grad():
        strong = [3, 7, 11, 12, 20, 22, 23, 24, 25, 26, 30, 31, 40, 41, 42, 43]
        model.features[3].weight[strong] *= 100.0
    space = elastic(model, example(), widths=(0.3, 1.0))
    names = {choice.name: choice.options for choice in space.choices}
    assert names["features.3.width"] == (16, 48)
    values = {**space.largest().as_dict(), "features.3.width": 16}
    narrow = space.supernet().extract(space.architecture(values)).features[3]
    kept = {tuple(sorted(row)) for row in narrow.weight.flatten(1).tolist()}
    rows = model.features[3].weight.flatten(1).tolist()
    assert kept == {tuple(sorted(rows[i])) for i in strong}


def test_depth_skips_the_block_that_changes_its_input_least() -> None:
    model = seeded(ResNet)
    with torch.no_grad():
        model.layer2[1].norm2.weight.mul_(0.001)
        model.layer2[1].norm2.bias.zero_()
    space = elastic(model, example())
    values = {**space.largest().as_dict(), "layer2.depth": 1}
    network = space.build(space.architecture(values))
    assert isinstance(network.layer2[1], nn.Identity)
    assert isinstance(network.layer2[2], BasicBlock)
    when = {c.name: c.when for c in space.choices}["layer2.1.conv1.width"]
    assert when is not None
    assert (when.name, when.values) == ("layer2.depth", (2,))


def test_narrow_network_keeps_whole_groups_of_channels() -> None:
    space = space_of("dense")
    network = space.build(space.smallest())
    assert (network.group_norm.num_channels, network.group_norm.num_groups) == (16, 2)
    assert (network.grouped.out_channels, network.grouped.groups) == (16, 4)


def test_keep_fixes_and_lists_the_layers_of_a_module() -> None:
    space = elastic(seeded(ResNet), example(), keep=["layer2"])
    assert not any("layer2" in choice.name for choice in space.choices)
    assert {f.name for f in space.fixed if "listed in keep" in f.reason} >= {"layer2.0.conv1"}


def test_fingerprint_depends_on_the_weights_of_the_model() -> None:
    first, again = (elastic(seeded(ResNet), example()) for _ in range(2))
    other = elastic(ResNet(), example())
    assert first.fingerprint == again.fingerprint != other.fingerprint


# Models and options that are refused, and parts that stay fixed


class Branching(PlainCNN):
    def forward(this, x: Tensor) -> Tensor:  # the first argument may have any name
        if x.mean() > 0:
            x = x * 2
        return super().forward(x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.again = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1)
        self.outputs = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.outputs(self.again(self.again(self.stem(x))).mean((2, 3)))
        return outputs


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 1)
        self.hidden = nn.Linear(32, 32)
        self.b = nn.Conv2d(32, 32, 1)
        self.b.weight = self.a.weight
        self.outputs = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.outputs(
            self.hidden(self.b(self.a(self.stem(x)).relu()).mean((2, 3))).relu()
        )
        return outputs


class Written(nn.Module):
    """Model whose forward pass contains its number of channels as a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 1)
        self.outputs = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).mean((2, 3))
        outputs: Tensor = self.outputs(x.view(x.shape[0], 32))
        return outputs


class Named(PlainCNN):
    def forward(this, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": super().forward(x)}


class Pair(PlainCNN):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return x, x


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Branching(), r"reads values of tensors.*test_analysis.py line \d+.*torch.where"),
        (PlainCNN(channels=4), r"does not run on an input of \(2, 3, 16, 16\).*'features.0'"),
        (Twice(), r"'again' runs 2 times in one pass; use a separate module for each call"),
        (Pair(), r"returns a tuple; expected one tensor"),
        (Named(), r"returns a dict; expected one tensor. Wrap it in a module"),
        (nn.Sequential(weight_norm(nn.Conv2d(3, 16, 3)), nn.Conv2d(16, 4, 3)), r"is parametrised"),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), r"nothing of Sequential can be made"),
        (nn.Flatten(), r"nothing of Flatten"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_elastic_refuses_models_that_it_cannot_analyse(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        elastic(model, example())
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_elastic_refuses_a_compiled_module() -> None:
    with pytest.raises(ConfigError, match=r"is a OptimizedModule.*give the plain module"):
        elastic(torch.compile(PlainCNN()), example())


def test_layers_that_share_weights_are_fixed_with_a_reason() -> None:
    space = elastic(seeded(Tied), example())
    assert [c.name for c in space.choices] == ["hidden.width"]
    assert "'a.weight' and 'b.weight' share one parameter" in str(space.fixed)


def test_width_that_the_forward_pass_hard_codes_is_fixed() -> None:
    space = elastic(seeded(Written), example())
    assert [c.name for c in space.choices] == ["first.width"]
    (reason,) = [f.reason for f in space.fixed if f.name == "second"]
    assert "with 16 channels the network does not run" in reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": ()}, "expected parts"),
        ({"widths": (0.5, 1.5)}, "expected parts"),
        ({"step": 0}, "step is 0"),
        ({"min_depth": -0.1}, "min_depth is -0.1"),
        ({"keep": ["layer9"]}, "'layer9', but the model has no such module"),
    ],
)
def test_elastic_refuses_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        elastic(PlainCNN(), example(), **options)


def test_elastic_refuses_an_example_that_is_no_batch_of_images() -> None:
    with pytest.raises(ConfigError, match=r"\(3, 16, 16\); expected images"):
        elastic(PlainCNN(), torch.zeros(3, 16, 16))


def test_keep_lists_every_layer_of_the_channel_group() -> None:
    space = elastic(seeded(ResNet), example(), keep=["layer2.0.shortcut"])
    kept = {f.name for f in space.fixed if f.reason == "it is listed in keep"}
    made = {"layer2.0.conv2", "layer2.0.shortcut.0", "layer2.1.conv2", "layer2.2.conv2"}
    taken = {"stem.0", "layer1.0.conv2", "layer1.1.conv2"}
    assert kept == made | taken
