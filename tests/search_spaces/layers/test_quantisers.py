"""Quantisers of weights and activations: grids, ranges and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hwnas.search_spaces.layers.quantisers import (
    ActivationQuantiser,
    LayerPrecision,
    WeightQuantiser,
    normal_step,
    quantisation_noise,
)
from hwnas.search_spaces.layers.sparsity_structure import Structure

BITS = st.integers(2, 8)
WEIGHTS = st.fixed_dictionaries(
    {
        "weight_bits": BITS,
        "granularity": st.sampled_from(["tensor", "channel"]),
        "symmetry": st.sampled_from(["symmetric", "asymmetric"]),
    }
)


def weights(seed: int) -> Tensor:
    """Return weights of a convolution whose channels have different scales."""
    torch.manual_seed(seed)
    return torch.randn(6, 4, 3, 3) * torch.rand(6, 1, 1, 1)


def quantiser(**precision: Any) -> WeightQuantiser:
    made = WeightQuantiser()
    made.precision = LayerPrecision(**precision)
    return made


@pytest.mark.parametrize(
    ("levels", "step"), [(2, 1.596), (4, 0.9957), (8, 0.5860), (16, 0.3352), (32, 0.1881)]
)
def test_normal_step_equals_the_published_optimum(levels: int, step: float) -> None:
    """Max, IRE Transactions on Information Theory 1960, table II."""
    assert normal_step(levels) == pytest.approx(step, abs=3e-4)


@given(WEIGHTS, st.integers(0, 99))
def test_rounded_weights_are_whole_steps_that_fit_the_bits(
    precision: dict[str, Any], seed: int
) -> None:
    weight = weights(seed)
    step, steps = quantiser(**precision).rounded(weight)
    assert torch.equal(steps, steps.round())
    assert -128 <= steps.min() <= steps.max() <= 127
    assert step.shape[0] == (6 if precision["granularity"] == "channel" else 1)
    for group in steps if precision["granularity"] == "channel" else [steps]:
        assert group.max() - group.min() < 2 ** precision["weight_bits"]
    assert torch.allclose(quantiser(**precision)(weight), step * steps, atol=1e-6)


@given(st.integers(2, 8), st.integers(0, 99), st.sampled_from(["tensor", "channel"]))
def test_symmetric_rounding_commutes_with_the_sign(bits: int, seed: int, granularity: str) -> None:
    weight = weights(seed)
    rounded = quantiser(weight_bits=bits, granularity=granularity)
    assert torch.allclose(rounded(-weight), -rounded(weight))


@given(st.integers(0, 99), st.sampled_from(["symmetric", "asymmetric"]))
def test_more_bits_round_weights_less(seed: int, symmetry: str) -> None:
    weight = weights(seed)
    errors = [
        (quantiser(weight_bits=bits, symmetry=symmetry)(weight) - weight).square().mean()
        for bits in (2, 3, 4, 6, 8)
    ]
    assert errors == sorted(errors, reverse=True)
    assert torch.equal(quantiser(weight_bits=32)(weight), weight)


def test_gradients_of_weights_pass_through_the_rounding() -> None:
    weight = weights(0).requires_grad_()
    quantiser(weight_bits=2)(weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones_like(weight))


@given(st.sampled_from([2, 4, 8, 32]), st.sampled_from(["1of4", "2of4"]), st.integers(0, 99))
def test_largest_weights_of_each_group_stay_and_are_rounded_as_without_zeros(
    bits: int, structure: str, seed: int
) -> None:
    weight, pattern = weights(seed), Structure.parse(structure)
    dense = quantiser(weight_bits=bits)(weight)
    sparse = quantiser(weight_bits=bits, structure=pattern)(weight)
    magnitude = weight.abs().sort(1, descending=True).values  # four channels: one group
    stays = weight.abs() >= magnitude[:, pattern.kept - 1].unsqueeze(1)
    torch.testing.assert_close(sparse, dense * stays)


@given(st.sampled_from([4, 32]), st.booleans())
def test_gradients_reach_pruned_weights(bits: int, noise: bool) -> None:
    weight = weights(0).requires_grad_()
    made = quantiser(weight_bits=bits, structure=Structure.parse("2of4"))
    with quantisation_noise(noise):
        sparse = made(weight)
    assert ((sparse != 0).sum(1) <= 2).all()
    sparse.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones_like(weight))


@pytest.mark.parametrize(
    ("shape", "density", "bits"),
    [((8, 4), 0.5, 16 * (8 + 2)), ((8, 4, 3, 3), 0.5, 9 * 16 * (8 + 2)), ((8, 6), 1.0, 48 * 8)],
)
def test_stored_bits_count_the_weights_that_stay_and_their_positions(
    shape: tuple[int, ...], density: float, bits: int
) -> None:
    precision = LayerPrecision(8, 8, structure=Structure.parse("2of4"))
    assert precision.density(shape) == density
    assert precision.stored_bits(shape) == bits
    weight = torch.randn(shape)
    made = quantiser(weight_bits=8, structure=Structure.parse("2of4"))
    assert (made.rounded(weight)[1] != 0).sum() <= density * weight.numel()


def activations(bits: int, low: float, high: float) -> ActivationQuantiser:
    made = ActivationQuantiser().eval()
    made.precision = LayerPrecision(activation_bits=bits)
    made.low.fill_(low)
    made.high.fill_(high)
    return made


@given(BITS, st.floats(-4, 0), st.floats(0.1, 4))
def test_rounded_activations_have_few_values_and_an_exact_zero(
    bits: int, low: float, high: float
) -> None:
    x = torch.linspace(-9, 9, 2001)
    rounded = activations(bits, low, high)
    found = rounded(x)
    step = (high - low) / (2**bits - 1)
    assert len(found.unique()) <= 2**bits
    assert rounded(torch.zeros(1)) == 0
    assert low - step <= found.min() <= found.max() <= high + step
    inside = (x > found.min()) & (x < found.max())
    assert (found - x)[inside].abs().max() <= 0.51 * step


def test_gradients_of_activations_pass_only_within_the_range() -> None:
    x = torch.tensor([-0.5, 0.25, 0.75, 1.5], requires_grad=True)
    activations(4, 0, 1)(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("rectified", [True, False])
def test_range_of_activations_is_the_mean_over_batches(rectified: bool) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(512) * scale for scale in (1.0, 3.0)]
    if rectified:
        batches = [batch.relu() for batch in batches]
    alone = []
    rounded = activations(4, 0, 1)
    for k, batch in enumerate(batches):
        one = activations(4, 0, 1).train()
        one.momentum = 1.0
        one(batch)
        alone.append(float(one.high))
        rounded.train()
        rounded.momentum = 1 / (k + 1)
        rounded(batch)
    assert float(rounded.high) == pytest.approx(sum(alone) / 2, rel=1e-5)
    assert alone[1] == pytest.approx(3 * alone[0], rel=0.2)
    assert (float(rounded.low) == 0) == rectified


@given(WEIGHTS, st.integers(0, 99))
def test_noise_of_weights_is_as_wide_as_a_step(precision: dict[str, Any], seed: int) -> None:
    weight = weights(seed).requires_grad_()
    module = quantiser(**precision)
    with quantisation_noise():
        noisy = module(weight)
    step, _ = module.rounded(weight.detach())
    noise = (noisy - weight).detach() / step
    assert noise.abs().max() <= 0.5 + 1e-4
    assert noise.square().mean().item() == pytest.approx(1 / 12, rel=0.4)
    (gradient,) = torch.autograd.grad(noisy.sum(), weight)
    assert gradient.equal(torch.ones_like(weight))
    assert not module(weight).equal(noisy), "outside of the context weights are rounded"
    with quantisation_noise(False):
        assert module(weight).equal(module(weight))


@given(BITS, st.integers(0, 99))
def test_noise_of_inputs_stays_within_the_range_and_half_a_step(bits: int, seed: int) -> None:
    torch.manual_seed(seed)
    module, x = ActivationQuantiser(), torch.randn(4, 3, 8, 8)
    module.precision = LayerPrecision(activation_bits=bits)
    module.train()
    with quantisation_noise():
        noisy = module(x)
    low, high = module._range(x)
    step, _, _ = module.grid(low, high)
    assert noisy.min() >= low - step / 2 - 1e-5
    assert noisy.max() <= high + step / 2 + 1e-5
    inside = (x >= low) & (x <= high)
    assert (noisy - x)[inside].abs().max() <= step / 2 + 1e-5
