"""Tune mode equals Eval mode in outputs and all gradients, up to the rounding of float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hwnas.deploy.variants.tune_mode import TunedConv, TuneMode
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


def gradients(network: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of the input and of all parameters, in parameter order."""
    x = x.clone().requires_grad_()
    (network(x) ** 3).sum().backward()
    assert x.grad is not None
    return [x.grad, *(p.grad for p in network.parameters() if p.grad is not None)]


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
    conv = nn.Conv2d(4, 6, 3, stride, 1, groups=groups, bias=bias).double()
    norm = settled(nn.BatchNorm2d(6, affine=affine)).double().eval()
    plain, x = nn.Sequential(conv, norm), torch.randn(2, 4, 5, 5, dtype=torch.float64)
    tuned = copy.deepcopy(plain)
    TuneMode().begin(tuned)
    assert isinstance(tuned[0], TunedConv)
    assert (tuned.train()(x) - plain(x)).abs().max() < 1e-10
    for mine, other in zip(gradients(tuned, x), gradients(plain, x), strict=True):
        assert (mine - other).abs().max() < 1e-10


@pytest.mark.parametrize("kernel_size", [3, 7])
def test_tune_mode_gives_eval_gradients_of_the_depthwise_convolution(kernel_size: int) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(DepthwiseConv2d(4, kernel_size), settled(nn.BatchNorm2d(4))).double()
    tuned, x = copy.deepcopy(plain), torch.randn(2, 4, 8, 8, dtype=torch.float64)
    plain[1].eval()
    TuneMode().begin(tuned)
    for mine, other in zip(gradients(tuned.train(), x), gradients(plain, x), strict=True):
        assert (mine - other).abs().max() < 1e-10


def test_tune_mode_restores_the_network_with_its_trained_weights() -> None:
    torch.manual_seed(0)
    space = mobilenet((8, 8, 1), 10)
    network = space.build(space.smallest())
    names = [name for name, _ in network.named_parameters()]
    statistics = {name: b.clone() for name, b in network.named_buffers() if "running" in name}
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    conversion = TuneMode()
    conversion.begin(network)
    assert not any(
        isinstance(module, nn.Sequential)
        and any(isinstance(child, nn.BatchNorm2d) for child in module)
        for module in network.modules()
    )
    images = torch.randn(4, 1, 8, 8)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
    network.train()(images).square().sum().backward()
    optimiser.step()
    expected = network.eval()(images)
    conversion.end(network)
    assert [name for name, _ in network.named_parameters()] == names
    assert any(not p.equal(before[name]) for name, p in network.named_parameters())
    for name, buffer in network.named_buffers():
        if "running" in name:
            torch.testing.assert_close(buffer, statistics[name])
    torch.testing.assert_close(network.eval()(images), expected, atol=1e-4, rtol=1e-4)
