"""Sparsity structures: names, reach and masks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers.sparsity_structure import Structure, matrix_of


@given(
    name=st.sampled_from(["unstructured", "2of4", "1of4", "4of8", "block4x2", "block2x8"]),
    rows=st.integers(1, 3),
    columns=st.integers(2, 4),
    density=st.floats(0.05, 1),
    seed=st.integers(0, 99),
)
def test_mask_has_the_exact_count_of_whole_units_with_the_highest_scores(
    name: str, rows: int, columns: int, density: float, seed: int
) -> None:
    structure = Structure.parse(name)
    shape = rows * 8, columns * 8
    density = density if structure.free else structure.density(None)
    scores = structure.per_unit(
        torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )
    mask = structure.mask(scores, density)
    size = structure.inputs * structure.outputs
    assert mask.shape == shape
    assert int(mask.sum()) == size * structure.count(*shape, density)
    off = abs(float(mask.double().mean()) - density)
    assert off <= 0.5 * size / mask.numel() + 1e-12 or int(mask.sum()) == size
    units = structure.per_unit(mask.double())
    assert set(units.unique().tolist()) <= {0.0, float(size)}
    grouped = scores.reshape(-1, structure.group or scores.numel())
    stays = (units > 0).reshape(grouped.shape)
    for values, kept in zip(grouped, stays, strict=True):
        if structure.group:
            assert int(kept.sum()) == structure.kept
        if kept.any() and not kept.all():
            assert values[kept].min() >= values[~kept].max()


def test_groups_are_neighbouring_channels_of_one_position_of_a_kernel() -> None:
    weight = torch.arange(2 * 4 * 9.0).reshape(2, 4, 3, 3)
    assert matrix_of(weight)[0, :4].tolist() == weight[0, :, 0, 0].tolist()


@pytest.mark.parametrize(
    ("name", "shape", "fits"),
    [
        ("2of4", (3, 8, 3, 3), True),
        ("2of4", (3, 6), False),
        ("2of4", (8, 1, 3, 3), False),
        ("block4x2", (2, 8), True),
        ("block4x2", (3, 8), False),
        ("unstructured", (3, 5, 3, 3), True),
    ],
)
def test_weights_of_whole_groups_and_units_fit(
    name: str, shape: tuple[int, ...], fits: bool
) -> None:
    assert Structure.parse(name).fits_weight(shape) == fits


@pytest.mark.parametrize(
    ("name", "bits"),
    [("2of4", 2 * 64), ("1of8", 3 * 64), ("block4x4", 32 * 4), ("unstructured", 128)],
)
def test_positions_of_weights_take_bits(name: str, bits: int) -> None:
    assert Structure.parse(name).place_bits(weights=128, kept=64) == bits


@pytest.mark.parametrize(
    ("name", "density", "message"),
    [
        ("2of4", 0.6, r"density is 0.6, but structure 2of4 keeps exactly 0.5"),
        ("unstructured", 0.0, "density is 0; expected more than 0 and at most 1"),
        ("block8x8", 1.5, "density is 1.5; expected more than 0 and at most 1"),
        ("unstructured", float("nan"), "density is nan"),
        ("5of4", None, "structure 5of4 is impossible"),
        ("0of4", None, "keeps no weight"),
        ("block0x8", None, "structure block0x8 is impossible"),
        ("blocks", None, "unknown sparsity structure 'blocks'; expected unstructured, N of M"),
    ],
)
def test_structure_refuses_densities_beyond_its_reach(
    name: str, density: float | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Structure.parse(name).density(density)
