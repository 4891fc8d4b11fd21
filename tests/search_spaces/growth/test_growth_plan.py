"""Growth between plain modules: which transformations keep the outputs, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import Group, SimpleNetConfig, SimpleNetSpace, elastic, resnet
from hwnas.search_spaces.growth import NetworkGrowth, plan_growth

ACTIVATIONS = {"relu": nn.ReLU, "relu6": nn.ReLU6, "gelu": nn.GELU, "silu": nn.SiLU}
IMAGES = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(5))


class Layer(nn.Sequential):
    """Convolution, normalisation and activation; depthwise if asked, perhaps with a residual."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, activation: str, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups)
        self.norm = nn.BatchNorm2d(outputs)
        self.activation = ACTIVATIONS[activation]()


class Block(nn.Module):
    """Residual block of a depthwise layer and a pointwise one."""

    def __init__(self, channels: int, hidden: int, activation: str, behind: bool) -> None:
        super().__init__()
        self.expand = Layer(channels, hidden, 1, activation)
        self.depthwise = Layer(hidden, hidden, 3, activation, groups=hidden)
        self.project = nn.Sequential(nn.Conv2d(hidden, channels, 1), nn.BatchNorm2d(channels))
        self.behind = ACTIVATIONS[activation]() if behind else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.behind(x + self.project(self.depthwise(self.expand(x))))
        return y


class Plain(nn.Module):
    """Chain of layers, residual blocks, and a linear layer over a flattened map."""

    def __init__(
        self,
        widths: Sequence[int],
        hidden: Sequence[int] = (),
        activation: str = "relu",
        kernel: int = 3,
        behind: bool = True,
    ) -> None:
        super().__init__()
        inputs = [3, *widths]
        pairs = zip(inputs, widths, strict=False)
        self.chain = nn.ModuleList(Layer(a, b, kernel, activation) for a, b in pairs)
        blocks = (Block(widths[-1], size, activation, behind) for size in hidden)
        self.blocks = nn.ModuleList(blocks)
        self.outputs = nn.Linear(widths[-1] * 9, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in [*self.chain, *self.blocks]:
            x = layer(x)
        found: Tensor = self.outputs(nn.functional.max_pool2d(x, 3).flatten(1))
        return found


def trained(network: nn.Module, seed: int = 0) -> nn.Module:
    """Return a network whose normalisations differ from their initial values, as after training."""
    torch.manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return network.eval()


def grown(parent: nn.Module, child: nn.Module, seed: int = 0) -> nn.Module:
    """Give the child the function of the parent, and check this in evaluation mode."""
    plan = plan_growth(parent, child, IMAGES[:2])
    plan.apply(child, trained(parent, seed).state_dict(), seed, IMAGES)
    with torch.no_grad():
        torch.testing.assert_close(child.eval()(IMAGES), parent(IMAGES), atol=1e-5, rtol=1e-4)
    return child


@pytest.mark.slow
@settings(max_examples=25)
@given(
    sizes=st.lists(st.tuples(st.integers(2, 6), st.integers(0, 9)), min_size=1, max_size=3),
    hidden=st.lists(st.tuples(st.integers(2, 6), st.integers(0, 9)), max_size=2),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    kernels=st.sampled_from([(1, 3), (3, 3), (3, 5)]),
    seed=st.integers(0, 1000),
)
def test_wider_layers_keep_the_outputs_with_any_activation(
    sizes: list[tuple[int, int]],
    hidden: list[tuple[int, int]],
    activation: str,
    kernels: tuple[int, int],
    seed: int,
) -> None:
    old, inner = [a for a, _ in sizes], [a for a, _ in hidden]
    new, wider = [a + b for a, b in sizes], [a + b for a, b in hidden]
    parent, child = (
        Plain(old, inner, activation, kernels[0]),
        Plain(new, wider, activation, kernels[1]),
    )
    grown(parent, child, seed)
    if kernels[0] == kernels[1]:
        with torch.no_grad():
            found, expected = child.train()(IMAGES), parent.train()(IMAGES)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    widths=st.lists(st.integers(2, 5), min_size=1, max_size=2),
    new=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    activation=st.sampled_from(["relu", "relu6"]),
    seed=st.integers(0, 1000),
)
def test_new_layers_after_an_idempotent_activation_keep_the_outputs(
    widths: list[int], new: list[int], activation: str, seed: int
) -> None:
    wider = [widths[-1] + more for more in new]
    parent, child = Plain(widths, (), activation), Plain([*widths, *wider], (), activation)
    grown(parent, child, seed)


@pytest.mark.parametrize("behind", [False, True])
def test_new_residual_blocks_keep_the_outputs(behind: bool) -> None:
    parent, child = Plain([4], [3], behind=behind), Plain([6], [5, 8, 4], behind=behind)
    with torch.no_grad():
        found = grown(parent, child).train()(IMAGES)
        torch.testing.assert_close(found, parent.train()(IMAGES), atol=1e-4, rtol=1e-3)
    child.train()(IMAGES).square().sum().backward()
    for block in (child.blocks[1], child.blocks[2]):
        gradient = block.get_parameter("project.1.weight").grad
        assert gradient is not None
        assert gradient.abs().max() > 0


def test_new_residual_blocks_without_an_activation_behind_them_suit_any_activation() -> None:
    grown(Plain([4], [3], "gelu", behind=False), Plain([4], [3, 3], "gelu", behind=False))


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_new_layers_after_other_activations_are_refused(activation: str) -> None:
    with pytest.raises(ConfigError, match=r"new layers chain\.1\.conv, .* cannot start without"):
        plan_growth(Plain([4], (), activation), Plain([4, 4], (), activation), IMAGES)
    with pytest.raises(ConfigError, match="cannot start without an effect"):
        plan_growth(Plain([4], [3], activation), Plain([4], [3, 3], activation), IMAGES)


def test_new_layers_narrower_than_what_they_pass_on_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"its outputs\.weight .* smaller"):
        plan_growth(Plain([6]), Plain([6, 4]), IMAGES)


def test_new_layers_keep_the_function_for_batches() -> None:
    """Batch normalisations of new layers undo the statistics that the images have."""
    torch.manual_seed(0)
    images = torch.randn(256, 3, 9, 9)
    parent, child = Plain([6]), Plain([6, 6])
    plan = plan_growth(parent, child, IMAGES)
    for network in (parent, child):
        network.train()
    with torch.no_grad():
        for _ in range(100):
            parent(images)  # so that running statistics are those of the images
        plan.apply(child, parent.state_dict(), 0, images)
        expected, found = parent.train()(images), child.train()(images)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


class Normalised(nn.Module):
    """Network with a layer normalisation over its channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inputs, self.norm = nn.Linear(27, channels), nn.LayerNorm(channels)
        self.outputs = nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.outputs(self.norm(self.inputs(x[:, :, :3, :3].flatten(1))).relu())
        return found


def test_layer_normalisation_grows_to_multiples_only() -> None:
    grown(Normalised(4), Normalised(8))
    with pytest.raises(ConfigError, match="unless their number is a multiple"):
        plan_growth(Normalised(4), Normalised(6), IMAGES)


def test_replicas_get_different_gradients() -> None:
    child = grown(Plain([3]), Plain([7])).train()
    child(IMAGES).square().sum().backward()
    gradient = child.get_parameter("chain.0.conv.weight").grad
    assert gradient is not None
    assert len(torch.unique(gradient, dim=0)) == len(gradient)


CHAINS = SimpleNetConfig(
    (Group((16, 16), width=(0.5, 1), depth=(1, 2)), Group((16,), width=(0.5, 1))), (9,), 3, 5
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simplenet", "resnet", "elastic"])
def test_networks_of_every_family_keep_their_outputs(name: str) -> None:
    blocks = Plain([8], [8, 8])
    space = {
        "simplenet": lambda: SimpleNetSpace(CHAINS),
        "resnet": lambda: resnet((9, 9, 3), 5, "tiny"),
        "elastic": lambda: elastic(blocks, IMAGES[:2], step=2, widths=(0.5, 0.75, 1)),
    }[name]()
    growth, parent = NetworkGrowth(space), space.smallest()
    network = trained(space.build(parent))
    moves = growth.moves(parent)
    assert {choice.split(".")[-1] for choice in moves} >= {"depth"}
    images = torch.randn(4, *space.input_shape(parent))
    with torch.no_grad():
        expected = network(images)
        for child in moves.values():
            larger = growth.grow(parent, network.state_dict(), child, 0, images).eval()
            torch.testing.assert_close(larger(images), expected, atol=1e-4, rtol=1e-4)
