"""Error-compensating rounding of one layer's weights, against nearest and best rounding."""

from itertools import product

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy.quantization.gptq import compensated, output_errors


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.sampled_from([1, 7, 127]))
def test_compensated_rounding_is_never_worse_than_nearest_for_any_channel(
    seed: int, groups: int, largest: int
) -> None:
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((groups, 30, 8)) @ rng.standard_normal((groups, 8, 8))
    inputs[..., rng.integers(8)] = 0  # an input that is always zero
    weights = torch.from_numpy(rng.uniform(-largest, largest, (groups, 4, 8)))
    hessian = torch.from_numpy(np.swapaxes(inputs, 1, 2) @ inputs)
    nearest = weights.round().to(torch.int8)
    found = compensated(weights, nearest, hessian, largest)
    assert found.dtype == torch.int8
    assert found.abs().max() <= largest
    own, plain = (
        np.square(np.einsum("gni,gri->grn", inputs, (w - weights).numpy())).sum(2)
        for w in (found, nearest)
    )
    assert (own <= plain * (1 + 1e-9)).all()
    assert np.allclose(output_errors(found, weights, hessian), own, rtol=1e-6, atol=1e-6)


def test_independent_inputs_leave_rounding_to_nearest() -> None:
    weights = torch.tensor([[[0.4, -1.6, 2.2]]])
    nearest = weights.round()
    assert compensated(weights, nearest, torch.eye(3).double()[None], 127).equal(nearest)
    silent = torch.zeros(1, 3, 3).double()
    assert compensated(weights, nearest, silent, 127).equal(nearest)


def test_compensated_rounding_is_close_to_the_best_of_all_on_correlated_inputs() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((200, 1)) + 0.2 * rng.standard_normal((200, 6))
    hessian = torch.from_numpy(inputs.T @ inputs)[None]
    weights = torch.from_numpy(rng.uniform(-3, 3, (1, 20, 6)))
    down = weights.floor()
    choices = torch.tensor(list(product([0.0, 1.0], repeat=6)), dtype=torch.float64)
    best = torch.stack([output_errors(down + each, weights, hessian) for each in choices]).amin(0)
    found = output_errors(compensated(weights, weights.round(), hessian, 127), weights, hessian)
    nearest = output_errors(weights.round(), weights, hessian)
    assert best.sum() <= found.sum() < 1.5 * best.sum()
    assert nearest.sum() > 2 * found.sum()
