"""Least-squares fit and block coordinate descent of one pruned layer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.sparsity.layers import correlated_inputs, hessian_of

from hwnas.deploy.sparsity import CRITERIA, Structure
from hwnas.deploy.sparsity.criteria import Magnitude
from hwnas.deploy.sparsity.reconstruction import reconstructed
from hwnas.deploy.sparsity.refinement import refine


def test_reconstruction_is_the_least_squares_fit_under_the_mask() -> None:
    inputs = correlated_inputs(300, 12, 0)
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 12, generator=generator) < 0.5
    found = reconstructed(dense, dense, mask, hessian_of(inputs))
    for row, kept, fitted in zip(dense, mask, found, strict=True):
        best = torch.linalg.lstsq(inputs[:, kept], inputs @ row).solution
        torch.testing.assert_close(fitted[kept], best, rtol=1e-3, atol=1e-3)
        assert (fitted[~kept] == 0).all()


@pytest.mark.parametrize("criterion", CRITERIA)
@given(
    name=st.sampled_from(["unstructured", "2of4", "block4x2", "block2x8"]),
    density=st.floats(0.15, 0.85),
    samples=st.sampled_from([6, 300]),
    seed=st.integers(0, 999),
)
@settings(max_examples=15)
def test_refinement_never_raises_the_error_and_keeps_the_structure(
    criterion: str, name: str, density: float, samples: int, seed: int
) -> None:
    structure = Structure.parse(name)
    density = density if structure.free else structure.density(None)
    dense = torch.randn(16, 24, generator=torch.Generator().manual_seed(seed)).double()
    hessian = hessian_of(correlated_inputs(samples, 24, seed))
    pruned = CRITERIA[criterion].prune(dense, hessian, structure, density)
    found = refine(dense, pruned, hessian, structure, sweeps=2, seed=seed)
    slack = 1e-9 * hessian.error(dense)
    assert found.errors[0] == pytest.approx(hessian.error(dense - pruned.matrix), abs=slack)
    assert all(b <= a + slack for a, b in zip(found.errors, found.errors[1:], strict=False))
    assert found.errors[-1] == pytest.approx(hessian.error(dense - found.pruned.matrix), abs=slack)
    assert (found.pruned.matrix[~found.pruned.mask] == 0).all()
    assert int(found.pruned.mask.sum()) == int(pruned.mask.sum())
    again = structure.mask(structure.per_unit(found.pruned.mask.double()), density)
    assert torch.equal(again, found.pruned.mask)


@pytest.mark.parametrize("name", ["unstructured", "2of4", "block4x2"])
def test_refinement_finds_better_masks_than_magnitudes(name: str) -> None:
    structure = Structure.parse(name)
    dense = torch.randn(16, 24, generator=torch.Generator().manual_seed(0)).double()
    hessian = hessian_of(correlated_inputs(300, 24, 0))
    pruned = Magnitude().prune(dense, hessian, structure, 0.5)
    fitted = reconstructed(dense, pruned.matrix, pruned.mask, hessian)
    refined = refine(dense, pruned, hessian, structure)
    assert refined.errors[-1] < 0.99 * hessian.error(dense - fitted)
    assert not torch.equal(refined.pruned.mask, pruned.mask)
