"""The conformance suite of tabular spaces, which describe published tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError, DataError
from hwnas.search_spaces.tabular import (
    TABULAR_SPACES,
    CategoricalSpace,
    Codes,
    HwGptSpace,
    TabularSpace,
    tabular_space,
)

SPACES: list[TabularSpace] = [*TABULAR_SPACES.values(), CategoricalSpace((1, 0), (4, 2))]


def drawn(space: TabularSpace, seed: int, count: int = 8) -> Codes:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, space.options, (count, len(space.options)))
    if space.name == "ofa-mobilenet":  # the first two blocks of a stage always exist
        arrays = ofa_arrays(rng, count)
        return space.encode(arrays)
    return codes


def hwgpt_arrays(
    rng: np.random.Generator, count: int, space: HwGptSpace
) -> dict[str, npt.NDArray[np.int64]]:
    layers, most = rng.choice(space.layers, count), max(space.layers)
    there = np.arange(most) < layers[:, None]
    return {
        "embed_dim": rng.choice(space.widths, count),
        "n_layer": layers,
        "bias": rng.choice([0, 1], count),
        "mlp_ratio": np.where(there, rng.choice([2, 3, 4], (count, most)), -1),
        "n_head": np.where(there, rng.choice(space.heads, (count, most)), -1),
    }


def ofa_arrays(rng: np.random.Generator, count: int) -> dict[str, npt.NDArray[np.int64]]:
    return {
        "ks": rng.choice([3, 5, 7], (count, 20)),
        "e": rng.choice([3, 4, 6], (count, 20)),
        "d": rng.choice([2, 3, 4], (count, 5)),
        "r": rng.choice([128, 160, 224], count),
    }


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
class TestTabularSpace:
    def test_positions_have_options_and_groups(self, space: TabularSpace) -> None:
        assert len(space.groups) == len(space.options)
        assert min(space.options) >= 2

    @pytest.mark.slow
    @given(seed=st.integers(0, 1000))
    def test_cost_of_a_row_does_not_depend_on_other_rows(
        self, space: TabularSpace, seed: int
    ) -> None:
        codes = drawn(space, seed)
        together = space.steps(codes)
        if together is None:
            assert space.name == "categorical"
            return
        assert len(together) == len(codes)
        alone = space.steps(codes[3:4])
        assert alone is not None
        assert alone.macs[0] == together.macs[3] > 0

    def test_parts_have_a_valid_choice_for_each_place(self, space: TabularSpace) -> None:
        codes = drawn(space, 0)
        assembly = space.parts(codes)
        if assembly is None:
            assert space.steps(codes) is None
            return
        assert assembly.chosen.shape == (len(codes), len(assembly.parts))
        assert (assembly.chosen < [len(place) for place in assembly.parts]).all()

    def test_connected_gives_a_bool_for_each_row(self, space: TabularSpace) -> None:
        connected = space.connected(drawn(space, 0))
        assert connected.shape == (8,)
        assert connected.dtype == bool

    def test_encode_refuses_a_table_without_networks(self, space: TabularSpace) -> None:
        with pytest.raises(DataError, match="it has"):
            space.encode({"lat_ms": np.ones((3, 2))})


@pytest.mark.parametrize("name", ["nasbench201", "fbnet"])
def test_encode_refuses_integers_out_of_range_and_names_their_row(name: str) -> None:
    space = TABULAR_SPACES[name]
    codes = np.zeros((4, len(space.options)), dtype=np.int64)
    codes[2, 1] = space.options[1]
    with pytest.raises(DataError, match=rf"row 2 has {space.options[1]} at position 1"):
        space.encode({"archs": codes})


@pytest.mark.parametrize(
    ("arrays", "name"),
    [
        ({"archs": np.zeros((2, 6), np.int8)}, "nasbench201"),
        ({"choice": np.full((2, 22), 8, np.uint8)}, "fbnet"),
        ({"choice": np.full((2, 7), 3)}, "categorical"),
        ({"ops": np.array(["a", "b"]), "archs": np.full((2, 6), 9)}, "categorical"),
        (ofa_arrays(np.random.default_rng(0), 3), "ofa-mobilenet"),
        *(
            (hwgpt_arrays(np.random.default_rng(0), 3, space), space.name)
            for space in TABULAR_SPACES.values()
            if isinstance(space, HwGptSpace)
        ),
    ],
)
def test_tabular_space_recognises_a_space_by_its_encoding(
    arrays: Mapping[str, npt.NDArray], name: str
) -> None:
    assert tabular_space(arrays).name == name


def test_tabular_space_takes_a_named_space_or_refuses_the_table() -> None:
    arrays = {"archs": np.zeros((2, 6), np.int8)}
    assert tabular_space(arrays, "categorical").options == (1,) * 6
    with pytest.raises(DataError, match="22 positions"):
        tabular_space(arrays, "fbnet")
    with pytest.raises(ConfigError, match="did you mean 'fbnet'"):
        tabular_space(arrays, "fbnets")


@pytest.mark.parametrize("scale", ["hwgpt-s", "hwgpt-m", "hwgpt-l"])
def test_layers_of_decoders_have_the_counted_weights(scale: str) -> None:
    """Without biases a layer has 4 d^2 + 2 r d^2 weights, besides those of its normalisations."""
    space = TABULAR_SPACES[scale]
    assert isinstance(space, HwGptSpace)
    arrays = hwgpt_arrays(np.random.default_rng(1), 6, space)
    arrays["bias"][:] = 0
    codes = space.encode(arrays)
    assert (space.canonical(codes) == codes).all()
    width, ratio = arrays["embed_dim"], arrays["mlp_ratio"]
    layers = (ratio > 0).sum(1)
    wanted = layers * 4 * width**2 + 2 * np.maximum(ratio, 0).sum(1) * width**2
    steps = space.steps(codes)
    norms = 4 * width * layers
    weights = steps.total(np.array([step.weight_bytes for step in steps.steps], np.float64)) / 4
    np.testing.assert_allclose(weights, wanted + norms)
    assert (space.depth(codes) == arrays["n_layer"]).all()
    with pytest.raises(DataError, match="embed_dim is 5 in row 2; expected one of"):
        space.encode({**arrays, "embed_dim": np.array([*width[:2], 5, *width[3:]])})
