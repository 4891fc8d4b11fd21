"""Int8 linear layers, compared with results by hand and with float layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.operators.int8_pointwise import int8_pointwise
from hwnas.kernels.primitives.activations import ACTIVATIONS
from hwnas.kernels.primitives.requantisation import folded


def test_int8_pointwise_equals_results_computed_by_hand() -> None:
    x = torch.tensor([[10, -3]], dtype=torch.int8)
    weight = torch.tensor([[3, 100]], dtype=torch.int8)
    layer = x, weight, torch.tensor([20], dtype=torch.int32), torch.tensor([0.1]), 0.5, 3
    # 30 - 300 + 20 = -250 is -25 steps; (9 - 5) * 2 = 8 is 16 steps.
    assert int8_pointwise(*layer).item() == -22
    assert int8_pointwise(*layer, activation="relu").item() == 3
    assert int8_pointwise(*layer, torch.tensor([[9]], dtype=torch.int8), 2.0, 5).item() == -6


def test_int8_pointwise_reads_a_table_at_rounded_steps() -> None:
    x = torch.tensor([[10, -3], [100, 100], [-100, -100]], dtype=torch.int8)
    weight = torch.tensor([[3, 100]], dtype=torch.int8)
    layer = x, weight, torch.tensor([20], dtype=torch.int32), torch.tensor([0.1]), 0.5, 3
    table = torch.arange(-128.0, 128.0).square() / 100
    # The sums are -250, 10320 and -10280: steps -25, 1032 and -1028, read at -20, 127 and -128.
    y = int8_pointwise(*layer, table=table, table_zero=5)
    assert y.flatten().tolist() == [4 + 3, 127, 127]
    residual = torch.tensor([[9], [-100], [-100]], dtype=torch.int8)
    y = int8_pointwise(*layer, residual, 0.1, 5, table=table, table_zero=5)
    # 4.0 + 0.8, 161.29 - 21 and 163.84 - 21 are rounded once, and then three is added.
    assert y.flatten().tolist() == [5 + 3, 127, 127]


def test_int8_pointwise_reads_the_first_table_value_for_nan() -> None:
    zeros, infinite = torch.zeros(2, 2, dtype=torch.int8), torch.full((2,), torch.inf)
    layer = zeros, zeros, torch.zeros(2, dtype=torch.int32), infinite, 1.0, 0
    table = torch.arange(256.0) - 100
    for compute in (int8_pointwise, int8_pointwise.reference):
        assert (compute(*layer, table=table) == -100).all()


def test_int8_pointwise_refuses_a_short_table_or_one_with_activation() -> None:
    zeros = torch.zeros(1, 1, dtype=torch.int8)
    layer = zeros, zeros, torch.zeros(1, dtype=torch.int32), torch.ones(1), 1.0, 0
    with pytest.raises(KernelError, match=r"a table \(256,\).*given \(255,\)"):
        int8_pointwise(*layer, table=torch.zeros(255))
    with pytest.raises(KernelError, match=r"instead of an activation; .* and 'relu'"):
        int8_pointwise(*layer, table=torch.zeros(256), activation="relu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_int8_pointwise_equals_the_float_layer_within_half_a_step(activation: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def steps(*shape: int) -> torch.Tensor:
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)

    x, weight, residual, scale = (
        steps(2, 3, 20),
        steps(11, 20),
        steps(2, 3, 11),
        torch.full((11,), 1e-3),
    )
    bias = steps(11).int() * 50
    inside, multiplier = folded(weight, scale, bias, 0, 0.05, -4, 0.03)
    y = int8_pointwise(x, weight, inside, multiplier, 0.03, 20, residual, 0.01, 7, activation)
    real = 0.05 * 1e-3 * ((x.double() + 4) @ weight.double().T + bias)
    real = ACTIVATIONS[activation](real) + 0.01 * (residual.double() - 7)
    inside_of_int8 = (y > -128) & (y < 127)
    assert inside_of_int8.float().mean() > 0.5
    torch.testing.assert_close(
        (0.03 * (y.double() - 20))[inside_of_int8], real[inside_of_int8], atol=0.01501, rtol=0
    )


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 40))
def test_int8_pointwise_handles_rows_of_any_length(rows: int, inner: int, outer: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randint(-128, 128, (rows, inner), generator=generator, dtype=torch.int8)
    weight = torch.randint(-1, 2, (outer, inner), generator=generator, dtype=torch.int8)
    zeros, factors = torch.zeros(outer, dtype=torch.int32), torch.full((outer,), 0.125)
    truth = (x.long() @ weight.T.long() / 8).round().clamp(-128, 127)
    assert torch.equal(int8_pointwise(x, weight, zeros, factors, 1.0, 0).double(), truth.double())


def test_int8_pointwise_solutions_have_steps_of_32_values_at_least() -> None:
    sizes = {"rows": 49, "inputs": 16, "outputs": 16, "residual": 0, "table": 0}
    for gpu in ACCELERATORS.values():
        problem = int8_pointwise.problem(sizes, torch.int8, gpu)
        assert all(config["BLOCK_K"] >= 32 for config in problem.solutions())
