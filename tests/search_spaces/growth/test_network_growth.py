"""Growth of networks, which must keep the outputs of the parent."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, Choice, MobileNetConfig, MobileNetSpace, Option, Stage
from hwnas.search_spaces.growth import NetworkGrowth

SPACE = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, 1, (1, 2, 3), (3, 5, 7), (1, 2, 3, 6), activation="relu"),
            Stage(16, 2, (1, 3), (3, 7), (2, 4, 6), squeeze_excite=True),
            Stage(16, 1, (2, 3), (3, 5), (3, 4), squeeze_excite=True, activation="relu"),
        ),
        resolution=(8, 12),
        width=(0.5, 1.0),
        in_channels=1,
        outputs=10,
        stem_channels=8,
        stem_stride=1,
        head_channels=24,
        feature_channels=32,
    )
)

GROWTH = NetworkGrowth(SPACE)


def trained(architecture: Architecture, seed: int) -> nn.Module:
    """Return a network whose normalisations differ from their initial values, as after training."""
    torch.manual_seed(seed)
    network = SPACE.build(architecture)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return network.eval()


def grown(parent: Architecture, network: nn.Module, child: Architecture, seed: int) -> nn.Module:
    return GROWTH.grow(parent, network.state_dict(), child, seed)


def images(architecture: Architecture, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, *SPACE.input_shape(architecture), generator=generator)


def walked(parent: Architecture, steps: int, rng: random.Random) -> Architecture:
    """Return a network after random steps that enlarge one choice each."""
    first = {choice.name: choice.options[0] for choice in SPACE.choices}
    for _ in range(steps):
        values = parent.as_dict()
        choice = rng.choice([c for c in SPACE.choices if growable(c, values)])
        index = min(choice.index(values[choice.name]) + 1, len(choice.options) - 1)
        parent = SPACE.architecture({**first, **values, choice.name: choice.options[index]})
    return parent


def growable(choice: Choice, values: Mapping[str, Option]) -> bool:
    """Return whether a choice is there; not the resolution, or a ratio of 1 without expansion."""
    ratio = choice.name.endswith("expand_ratio") and values.get(choice.name) == 1
    return choice.name in values and choice.name != "resolution" and not ratio


@pytest.mark.slow
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 8))
def test_grown_network_has_the_outputs_of_its_parent(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    parent = SPACE.sample(rng)
    child = walked(parent, steps, rng)
    network = trained(parent, seed)
    larger = grown(parent, network, child, seed)
    seen = images(parent, seed)
    with torch.no_grad():
        expected = network(seen)
        torch.testing.assert_close(larger.eval()(seen), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@settings(max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_grown_network_has_the_outputs_of_its_parent_in_training_mode(seed: int) -> None:
    rng = random.Random(seed)
    parent = SPACE.sample(rng)
    network = trained(parent, seed)
    larger = grown(parent, network, walked(parent, 4, rng), seed).train()
    seen = images(parent, seed)
    with torch.no_grad():
        torch.testing.assert_close(larger(seen), network.train()(seen), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["depth", "kernel_size", "expand_ratio"])
def test_moves_include_each_kind_and_add_parameters(kind: str) -> None:
    parent = SPACE.architecture({**SPACE.smallest().as_dict(), "stage0.block0.expand_ratio": 2})
    found = {name: child for name, child in GROWTH.moves(parent).items() if name.endswith(kind)}
    assert len(found) >= 3 if kind != "depth" else len(found) == 3
    before = SPACE.workload(parent).params
    assert all(SPACE.workload(child).params > before for child in found.values())


@pytest.mark.slow
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6))
def test_moves_change_one_choice_and_add_choices_of_its_stage_only(seed: int) -> None:
    parent = SPACE.sample(random.Random(seed))
    before = parent.as_dict()
    for name, child in GROWTH.moves(parent).items():
        after = child.as_dict()
        assert [k for k in before if after[k] != before[k]] == [name]
        assert all(k.startswith(name.split(".")[0]) for k in after.keys() - before.keys())


def test_replicated_channels_get_different_gradients() -> None:
    parent = SPACE.architecture({**SPACE.smallest().as_dict(), "stage0.block0.expand_ratio": 2})
    child = GROWTH.moves(parent)["stage0.block0.expand_ratio"]
    network = grown(parent, trained(parent, 0), child, 0).train()
    network(images(parent, 0)).square().sum().backward()
    gradient = network.get_parameter("stages.0.0.layers.expand.conv.weight").grad
    assert gradient is not None
    assert len(torch.unique(gradient, dim=0)) == len(gradient)


def test_added_block_gets_gradients() -> None:
    parent = SPACE.smallest()
    child = GROWTH.moves(parent)["stage0.depth"]
    network = grown(parent, trained(parent, 0), child, 0).train()
    network(images(parent, 0)).square().sum().backward()
    gradient = network.get_parameter("stages.0.1.layers.project.norm.weight").grad
    assert gradient is not None
    assert gradient.abs().min() > 0


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("resolution", 8, 12),
        ("stage0.depth", 2, 1),
        ("stage0.block0.kernel_size", 5, 3),
        ("stage1.block0.expand_ratio", 4, 2),
        ("stage0.block0.expand_ratio", 1, 2),  # there is no expansion layer to widen
    ],
)
def test_grow_refuses_smaller_networks_and_unsupported_choices(
    name: str, old: float, new: float
) -> None:
    values = {choice.name: choice.options[0] for choice in SPACE.choices}
    parent = SPACE.architecture({**values, name: old})
    child = SPACE.architecture({**values, name: new})
    assert not GROWTH.can_grow(parent, child)
    with pytest.raises(ConfigError, match=f"{child.id} cannot start from {parent.id}"):
        GROWTH.grow(parent, SPACE.build(parent).state_dict(), child, 0)


def test_grow_repeats_by_seed_and_leaves_the_global_generator_alone() -> None:
    parent, child = SPACE.smallest(), walked(SPACE.smallest(), 5, random.Random(0))
    network = trained(parent, 0)
    torch.manual_seed(7)
    first = grown(parent, network, child, 1).state_dict()
    drawn = torch.rand(1)
    second = grown(parent, network, child, 1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(1), drawn)
