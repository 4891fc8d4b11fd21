"""Conformance of all pruning criteria, and what each promises."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.sparsity.layers import correlated_inputs, hessian_of

from hwnas.deploy.sparsity import CRITERIA, Structure
from hwnas.deploy.sparsity.criteria import Magnitude, SecondOrder, Wanda
from hwnas.deploy.sparsity.hessian import damped_inverse

STRUCTURES = ("unstructured", "2of4", "1of4", "block4x2", "block8x8")


@pytest.mark.parametrize("criterion", CRITERIA)
@given(
    name=st.sampled_from(STRUCTURES),
    rows=st.integers(1, 2),
    columns=st.integers(2, 4),
    density=st.floats(0.1, 1),
    samples=st.sampled_from([3, 200]),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_criterion_keeps_the_exact_density_and_structure(
    criterion: str, name: str, rows: int, columns: int, density: float, samples: int, seed: int
) -> None:
    structure = Structure.parse(name)
    density = density if structure.free else structure.density(None)
    matrix = torch.randn(rows * 8, columns * 8, generator=torch.Generator().manual_seed(seed))
    hessian = hessian_of(correlated_inputs(samples, columns * 8, seed))
    found = CRITERIA[criterion].prune(matrix, hessian, structure, density)
    assert found.matrix.shape == found.mask.shape == matrix.shape
    assert found.matrix.dtype == matrix.dtype
    assert found.matrix.isfinite().all()
    assert (found.matrix[~found.mask] == 0).all()
    size = structure.inputs * structure.outputs
    assert int(found.mask.sum()) == size * structure.count(*matrix.shape, density)
    again = structure.mask(structure.per_unit(found.mask.double()), density)
    assert torch.equal(again, found.mask)  # whole units, and the right number in each group
    if density == 1:
        torch.testing.assert_close(found.matrix, matrix)
    repeated = CRITERIA[criterion].prune(matrix, hessian, structure, density)
    assert torch.equal(repeated.matrix, found.matrix)


@given(
    name=st.sampled_from(STRUCTURES),
    density=st.floats(0.1, 0.9),
    samples=st.sampled_from([5, 300]),
    seed=st.integers(0, 999),
)
@settings(max_examples=40)
def test_second_order_error_is_at_most_that_of_magnitudes(
    name: str, density: float, samples: int, seed: int
) -> None:
    structure = Structure.parse(name)
    density = density if structure.free else structure.density(None)
    matrix = torch.randn(16, 24, generator=torch.Generator().manual_seed(seed)).double()
    inputs = correlated_inputs(samples, 24, seed)
    ours, theirs = (
        each.prune(matrix, hessian_of(inputs), structure, density)
        for each in (SecondOrder(), Magnitude())
    )
    errors = [float((inputs @ (matrix - each.matrix).T).square().mean()) for each in (ours, theirs)]
    assert errors[0] <= errors[1] * (1 + 1e-9)


def test_second_order_criterion_removes_a_repeated_input_at_no_cost() -> None:
    """Of two equal inputs, one can take the weight of the other, which magnitudes do not show."""
    inputs = correlated_inputs(100, 4, 0)
    inputs[:, 1] = inputs[:, 0]
    matrix = torch.tensor([[3.0, 4.0, 2.5, 5.0]], dtype=torch.float64)
    found = SecondOrder().prune(matrix, hessian_of(inputs), Structure(), 0.75)
    torch.testing.assert_close(inputs @ found.matrix.T, inputs @ matrix.T, rtol=1e-4, atol=1e-4)
    plain = Magnitude().prune(matrix, hessian_of(inputs), Structure(), 0.75)
    assert plain.mask.tolist() == [[True, True, False, True]]


def test_wanda_weighs_by_inputs_and_keeps_equally_many_in_each_row() -> None:
    inputs = torch.tensor([[10.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    matrix = torch.tensor([[0.2, 1.0, 0.9, 0.1], [9.0, 8.0, 7.0, 6.0]])
    found = Wanda().prune(matrix, hessian_of(inputs), Structure(), 0.5)
    assert found.mask.tolist() == [[True, True, False, False]] * 2
    plain = Magnitude().prune(matrix, hessian_of(inputs), Structure(), 0.5)
    assert plain.mask.sum(1).tolist() == [0, 4]


def test_damped_inverse_exists_without_any_inputs() -> None:
    moments = torch.zeros(3, 3, dtype=torch.float64)
    assert damped_inverse(moments).isfinite().all()
