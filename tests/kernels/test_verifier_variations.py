"""Similar inputs, which a caching kernel may confuse, and large sizes, where a kernel may fail."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.kernels.verifier.variations import (
    large_sizes,
    on_a_grid,
    similar_inputs,
)

SEEDS = st.integers(0, 2**30)
DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32])


def drawn(seed: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


@given(SEEDS, DTYPES)
def test_on_a_grid_makes_sums_independent_of_their_order(seed: int, dtype: torch.dtype) -> None:
    value = on_a_grid({"x": drawn(seed, dtype, 300)})["x"]
    assert value.dtype == dtype
    assert torch.equal(value.float().sum(), value.flip(0).float().sum())
    assert torch.equal(value.float().sum().double(), value.double().sum())


@given(SEEDS, DTYPES)
def test_on_a_grid_keeps_signs_and_zeros_and_changes_values_little(
    seed: int, dtype: torch.dtype
) -> None:
    before = drawn(seed, dtype, 50)
    before[seed % 50] = 0
    after = on_a_grid({"x": before})["x"]
    assert torch.equal(before.sign(), after.sign())
    assert (after.double() - before.double()).abs().max() <= before.abs().max() / 4


@given(SEEDS, DTYPES)
def test_similar_inputs_have_the_sums_that_they_name(seed: int, dtype: torch.dtype) -> None:
    base = on_a_grid({"x": drawn(seed, dtype, 4, 5)})
    found = dict(similar_inputs(base, Random(seed)))
    exact = base["x"].double()
    for axis in (0, 1):
        changed = found[f"two values with the same sum along axis {axis} of x"]["x"].double()
        assert torch.equal(changed.sum(axis), exact.sum(axis))
        assert not torch.equal(changed, exact)
    asked = [
        inputs["x"].double()
        for about, inputs in similar_inputs(base, Random(seed))
        if about.startswith("four values")
    ]
    before, now = asked
    assert not torch.equal(before, now)
    for axis in (0, 1):
        assert torch.equal(before.sort(axis).values, now.sort(axis).values)


@pytest.mark.parametrize("seed", range(5))
def test_large_sizes_include_multiples_of_256_and_odd_lengths(seed: int) -> None:
    listed = [{"rows": 8, "columns": 8}, {"rows": 16, "columns": 16}]
    lengths = [
        sizes["columns"]
        for _, tried in large_sizes(listed, Random(seed))
        for sizes in tried[:1]
        if sizes["rows"] <= 16
    ]
    assert any(length % 256 == 0 for length in lengths)
    assert any(length % 2 for length in lengths)
