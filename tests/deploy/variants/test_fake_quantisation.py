"""Fake quantisation in training: rounding errors, exact zeros, and the restored network."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hwnas.deploy.variants.fake_quantisation import (
    FakeQuantisation,
    FakeQuantisedInput,
    FakeQuantisedWeight,
)


@given(st.integers(0, 99), st.floats(1e-3, 1e3))
def test_fake_quantised_weights_change_by_half_a_step_at_most(seed: int, size: float) -> None:
    weight = size * torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(seed))
    rounded = FakeQuantisedWeight()(weight)
    step = weight.flatten(1).abs().amax(1) / 127
    assert ((rounded - weight).flatten(1).abs().amax(1) <= 0.5001 * step).all()


@given(st.integers(0, 99), st.floats(-2, 2))
def test_fake_quantised_input_changes_by_a_step_at_most_and_keeps_zero(
    seed: int, mean: float
) -> None:
    x = mean + torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    x[0, 0, 0, 0] = 0
    rounded = FakeQuantisedInput()(x)
    step = (x.amax().clamp_min(0) - x.amin().clamp_max(0)) / 255
    # The zero point is rounded, too, so the ends may be cut off by another half step.
    assert (rounded - x).abs().amax() <= 1.0001 * step
    assert rounded[0, 0, 0, 0] == 0


def test_fake_quantised_input_passes_gradients_and_adapts_its_range() -> None:
    layer = FakeQuantisedInput()
    layer(torch.linspace(-1, 1, 64))
    x = torch.linspace(-4, 4, 64, requires_grad=True)
    layer.eval()(x).sum().backward()
    assert layer.largest == 1
    assert x.grad is not None
    assert x.grad.unique().tolist() == [0, 1]  # zero outside the range
    layer.train()(x.detach())
    assert 1 < layer.largest < 4


def test_networks_that_train_in_bf16_are_rounded() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    FakeQuantisation().begin(network)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = network(torch.randn(2, 3, 7, 7))
        outputs.float().sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_fake_quantisation_rounds_in_training_and_restores_the_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)
    )
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    images = torch.randn(4, 3, 5, 5)
    network.eval()
    plain = network(images)
    conversion = FakeQuantisation()
    conversion.begin(network)
    rounded = network(images)
    assert 0 < (rounded - plain).abs().max() < 0.1 * plain.abs().max()
    network.train()(images).square().mean().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    conversion.end(network)
    network.load_state_dict(before)  # fails if a parameter name has changed
    torch.testing.assert_close(network.eval()(images), plain)


def test_fake_quantised_weight_commutes_with_channel_scales() -> None:
    """Batch normalisation scales output channels, so it can be folded before or after rounding."""
    torch.manual_seed(0)
    weight, factor = torch.randn(6, 4, 3, 3), torch.rand(6) + 0.5
    folded = FakeQuantisedWeight()(weight * factor[:, None, None, None])
    after = FakeQuantisedWeight()(weight) * factor[:, None, None, None]
    torch.testing.assert_close(folded, after)
