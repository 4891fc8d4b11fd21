"""Weights and inputs of one bit: values, scales and gradients of each method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.search_spaces.layers.binarisers import BINARISATIONS
from hwnas.search_spaces.layers.quantisers import (
    ActivationQuantiser,
    LayerPrecision,
    WeightQuantiser,
    quantisation_noise,
)
from hwnas.search_spaces.quantised.attached import attach, set_precision


def weights(**precision: Any) -> tuple[Tensor, Tensor]:
    """Return random weights (6, 4, 3, 3) with gradients, and what the quantiser makes of them."""
    torch.manual_seed(0)
    weight = (2 * torch.randn(6, 4, 3, 3)).requires_grad_()
    quantiser = WeightQuantiser()
    quantiser.precision = LayerPrecision(weight_bits=1, **precision)
    return weight, quantiser(weight)


def of_inputs(method: Any, threshold: tuple[int, ...] | None = None) -> ActivationQuantiser:
    quantiser = ActivationQuantiser(threshold)
    quantiser.precision = LayerPrecision(activation_bits=1, binarisation=method)
    return quantiser


@pytest.mark.parametrize("method", BINARISATIONS)
def test_weights_of_one_bit_are_signs_times_the_scale_of_the_method(method: Any) -> None:
    weight, rounded = weights(binarisation=method)
    mean = weight.abs().mean((1, 2, 3), keepdim=True)
    expected = torch.where(weight > 0, 1.0, -1.0) * (1 if method == "bnn" else mean)
    torch.testing.assert_close(rounded, expected)
    rounded.sum().backward()
    inner = weight.abs() <= 1
    assert weight.grad is not None
    assert bool((weight.grad[inner] == 1).all())
    assert bool((weight.grad[~inner] == (0 if method == "bnn" else 1)).all())


def test_one_scale_serves_all_weights_if_the_granularity_is_a_tensor() -> None:
    weight, rounded = weights(granularity="tensor")
    torch.testing.assert_close(rounded.abs(), weight.abs().mean().expand(weight.shape))


def test_noise_leaves_tensors_of_one_bit_as_they_are() -> None:
    with quantisation_noise():
        _, rounded = weights(binarisation="bnn")
        inputs = of_inputs("bnn")(torch.randn(100))
    assert set(rounded.unique().tolist()) == set(inputs.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(("method", "scale"), [("bnn", 1.0), ("xnor", 1.25), ("react", 1.0)])
def test_inputs_of_one_bit_have_the_scale_of_the_method(method: Any, scale: float) -> None:
    x = torch.tensor([0.0, 0.5, 1.5, 3.0, 0.0, 2.5])
    quantiser = of_inputs(method).train()
    quantiser.momentum = 1.0
    signs = torch.tensor([-1.0, 1, 1, 1, -1, 1])  # zero, as after a ReLU, has a sign of its own
    torch.testing.assert_close(quantiser(x), scale * signs)
    torch.testing.assert_close(quantiser.eval()(2 * x), scale * signs)


def test_gradients_of_inputs_are_those_of_the_papers() -> None:
    x = torch.tensor([-1.5, -0.5, 0.25, 2.0], requires_grad=True)
    for method, expected in {"bnn": [0, 1, 1, 0], "react": [0, 1.0, 1.5, 0]}.items():
        (grad,) = torch.autograd.grad(of_inputs(method)(x).sum(), x)
        assert grad.tolist() == expected, method


def test_thresholds_of_channels_move_signs_and_learn() -> None:
    quantiser = of_inputs("react", (2, 1, 1))
    assert quantiser.threshold is not None
    quantiser.threshold.data[1] = 0.5
    x = torch.full((1, 2, 2, 2), 0.25)
    out = quantiser(x)
    assert out[0, 0].tolist() == [[1, 1], [1, 1]]
    assert out[0, 1].tolist() == [[-1, -1], [-1, -1]]
    out.sum().backward()
    assert quantiser.threshold.grad is not None
    assert quantiser.threshold.grad.flatten().tolist() == [-4 * 1.5, -4 * 1.5]


def test_a_layer_of_one_bit_learns() -> None:
    """Thirty steps teach a network with a layer of one bit more than guessing."""
    torch.manual_seed(0)
    inputs = torch.randn(256, 16)
    targets = (inputs[:, :4].sum(1) > 0).long()
    network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 2))
    attach(network)
    set_precision(network, lambda layer: LayerPrecision(1, 1) if layer == "2" else LayerPrecision())
    optimiser = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(30):
        optimiser.zero_grad()
        functional.cross_entropy(network(inputs), targets).backward()
        optimiser.step()
    assert (network.eval()(inputs).argmax(1) == targets).float().mean() > 0.75
