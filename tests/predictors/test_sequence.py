from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.predictors.benchmarks.cost_table import CostTable
from hwnas.predictors.features.sequence import encoded_sequences, text_of
from hwnas.predictors.models.methods import KnownDevices
from hwnas.search_spaces import Assembly, OperatorSignature
from hwnas.search_spaces.tabular import CategoricalSpace, FBNetSpace, NasBench201Space

POOL = np.arange(200)


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwnas.predictors.features.sequence._STEPS", 20)


def sources(table: CostTable) -> KnownDevices:
    return KnownDevices(table.space, table.codes, POOL, table.devices, table.costs[POOL])


def test_text_lists_operators_in_order_with_one_token_each() -> None:
    a, b, c = (
        OperatorSignature("conv", macs=500),
        OperatorSignature("pool"),
        OperatorSignature("linear", macs=20),
    )
    places = [[{a: 1}, {b: 1, a: 2}], [{}, {c: 1}], [{b: 1}]]
    tokens = text_of(Assembly(places, np.array([[0, 1, 0], [1, 0, 0], [0, 1, 0]]))).tokens
    conv, linear, pool = tokens[0, :3]
    two_convs = tokens[1, 1]
    assert len({conv, pool, two_convs, linear, 0}) == 5
    assert tokens.tolist() == [
        [conv, linear, pool, 0],
        [pool, two_convs, pool, 0],
        [conv, linear, pool, 0],
    ]


def test_text_fields_distinguish_operators_of_equal_size() -> None:
    steps = (
        OperatorSignature("conv", macs=9000),
        OperatorSignature("conv", macs=9000, dead=True),
        OperatorSignature("pointwise", 9000),
    )
    text = text_of(Assembly([[{step: 1} for step in steps]], np.arange(3)[:, None]))
    assert len({tuple(text.fields[token]) for (token,) in text.tokens}) == 3


def test_encoding_distinguishes_networks_of_equal_totals(table: CostTable) -> None:
    """The same operators in another order, or not connected to the output."""
    codes = np.array([[3, 2, 1, 1, 1, 1], [2, 3, 1, 1, 1, 1], [3, 2, 0, 1, 0, 0]])
    assert len(set(NasBench201Space().steps(codes).macs)) == 1
    stacked = dataclasses.replace(table, codes=np.vstack([table.codes, codes, codes[:1]]))
    first, other, dead, same = encoded_sequences(sources(stacked))["sequence"][-4:]
    assert (first == same).all()
    assert np.abs(first - other).max() > 1e-3
    assert np.abs(first - dead).max() > 1e-3


@pytest.mark.slow
def test_encoding_is_independent_of_other_networks_in_the_table(table: CostTable) -> None:
    encoded = encoded_sequences(sources(table))["sequence"]
    again = encoded_sequences(sources(table))["sequence"]
    assert encoded.tolist() == again.tolist()
    fewer = encoded_sequences(sources(dataclasses.replace(table, codes=table.codes[:230])))
    assert fewer["sequence"] == pytest.approx(encoded[:230], abs=1e-4)


def test_text_leaves_out_skipped_layers() -> None:
    space = FBNetSpace()
    deep, shallow = np.zeros((1, 22), int), np.full((1, 22), 8)
    tokens = text_of(space.parts(np.vstack([deep, shallow]))).tokens
    assert (tokens > 0).sum(1)[0] > 3 * (tokens > 0).sum(1)[1] > 0


def test_encoding_refuses_categorical_spaces(table: CostTable) -> None:
    space = CategoricalSpace((0,) * 6, (5,) * 6)
    with pytest.raises(ConfigError, match="method sequence needs the operators of the networks"):
        encoded_sequences(sources(dataclasses.replace(table, space=space)))
