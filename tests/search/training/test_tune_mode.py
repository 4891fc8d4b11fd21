"""Tune mode equals Eval mode in outputs and all gradients, up to the rounding of float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hwnas.search.training.tune_mode import fixed_statistics
from hwnas.search_spaces import mobilenet
from hwnas.search_spaces.layers import DepthwiseConv2d


def settled(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """Give a batch normalisation statistics like those of a trained one."""
    nn.init.normal_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def gradients(network: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of the input and of all parameters, by name."""
    x = x.clone().requires_grad_()
    (network(x) ** 3).sum().backward()
    assert x.grad is not None
    named = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {"input": x.grad, **named}


def kept_bytes(network: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes of activations that a forward pass saves for the backward pass."""
    own = {p.untyped_storage().data_ptr() for p in (*network.parameters(), *network.buffers())}
    kept = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(x).square().sum()
    return sum(storage.nbytes() for storage in kept.values())


def assert_like_eval_mode(network: nn.Module, x: torch.Tensor) -> None:
    """Assert that a network in Tune mode computes as it does in Eval mode."""
    tuned = copy.deepcopy(network)
    with fixed_statistics(tuned):
        outputs, mine = tuned.train()(x), gradients(tuned, x)
    network.eval()
    assert (outputs - network(x)).abs().max() < 1e-10
    others = gradients(network, x)
    assert list(mine) == list(others)
    for name, gradient in others.items():
        assert (mine[name] - gradient).abs().max() < 1e-8 * max(1, gradient.abs().max()), name


@pytest.mark.slow
@settings(deadline=None)
@given(
    bias=st.booleans(),
    affine=st.booleans(),
    stride=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_tune_mode_gives_the_outputs_and_gradients_of_eval_mode(
    bias: bool, affine: bool, stride: int, groups: int, seed: int
) -> None:
    torch.manual_seed(seed)
    conv = nn.Conv2d(4, 6, 3, stride, 1, groups=groups, bias=bias)
    network = nn.Sequential(conv, settled(nn.BatchNorm2d(6, affine=affine))).double()
    assert_like_eval_mode(network, torch.randn(2, 4, 5, 5, dtype=torch.float64))


@pytest.mark.parametrize("kernel_size", [3, 7])
def test_tune_mode_gives_eval_gradients_of_the_depthwise_convolution(kernel_size: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(DepthwiseConv2d(4, kernel_size), settled(nn.BatchNorm2d(4))).double()
    assert_like_eval_mode(network, torch.randn(2, 4, 8, 8, dtype=torch.float64))


class _Residual(nn.Module):
    """Block as people write it: layers as attributes, called one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norm_of_first, self.norm_of_second = (settled(nn.BatchNorm2d(4)) for _ in range(2))
        self.before = settled(nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output; the first norm is alone, and has no convolution before it."""
        y = self.norm_of_first(self.first(self.before(x))).relu()
        return x + self.norm_of_second(self.second(y))


class _ReadsTwice(_Residual):
    """Block of which the second convolution's output is read by two operators."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the convolution's output before and after its normalisation."""
        y = self.second(self.norm_of_first(self.first(x)).relu())
        return y + self.norm_of_second(y)


class _CallsTwice(_Residual):
    """Block of which one convolution is called twice, once without a normalisation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of one convolution after itself."""
        return self.norm_of_first(self.first(self.first(x).relu()))


class _LooksAtValues(_Residual):
    """Block that cannot be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output, or that without the residual for negative images."""
        y = super().forward(x)
        return y if x.sum() > 0 else y - x


@pytest.mark.parametrize("block", [_Residual, _ReadsTwice, _CallsTwice, _LooksAtValues])
def test_tune_mode_is_exact_in_any_network(block: type[nn.Module]) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    assert_like_eval_mode(block().double(), images)


def test_tune_mode_saves_memory_where_layers_are_attributes() -> None:
    torch.manual_seed(0)
    network, images = _Residual(), torch.randn(8, 4, 16, 16)
    plain = kept_bytes(network.eval(), images)
    with fixed_statistics(network):
        tuned = kept_bytes(network.train(), images)
    assert tuned < 0.8 * plain


def test_tune_mode_leaves_a_network_with_its_trained_weights() -> None:
    torch.manual_seed(0)
    space = mobilenet((8, 8, 1), 10)
    network = space.build(space.smallest())
    state = {name: t.clone() for name, t in network.state_dict().items()}
    images = torch.randn(4, 1, 8, 8)
    with fixed_statistics(network):
        assert list(network.state_dict()) == list(state)
        optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
        network.train()(images).square().sum().backward()
        optimiser.step()
        expected = network.eval()(images)
    torch.testing.assert_close(network.eval()(images), expected, atol=1e-4, rtol=1e-4)
    changed = {name for name, t in network.state_dict().items() if not t.equal(state[name])}
    assert changed <= {name for name, _ in network.named_parameters()}
    assert {"stem.conv.weight", "stem.norm.weight", "stem.norm.bias"} <= changed
    network.train()(images)
    assert not network.state_dict()["stem.norm.running_mean"].equal(state["stem.norm.running_mean"])


def test_tune_mode_shows_the_weights_again_after_an_error() -> None:
    network = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))
    with fixed_statistics(network), pytest.raises(RuntimeError):
        network(torch.randn(1, 3, 5, 5))
    assert network[0].weight is dict(network.named_parameters())["0.weight"]
