"""Operators of a stage: their names, and which are valid."""

from __future__ import annotations

import re

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import Stage
from hwnas.search_spaces.mobilenet.operators import BlockShape, block_shape, check_fit


def test_block_shape_reads_kernel_expansion_and_groups_from_a_name() -> None:
    assert block_shape("k5_e6") == BlockShape(5, 6, 1)
    assert block_shape("k3_e1_g2") == BlockShape(3, 1, 2)
    assert block_shape("skip") is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("k3_e1", "k4_e6"), "Stage.operators has 'k4_e6'; expected 'skip' or an odd kernel"),
        (("identity",), "Stage.operators has 'identity'"),
        (("k3_e1", "k3_e1"), "a block appears twice"),
        (("k5_e3", "k3_e6"), "the last has to be the largest"),
        (("k3_e6", "skip"), "the last has to be the largest"),
        (("k3_e1", "k3_e1_g2"), "the last has to be the largest"),
    ],
)
def test_stage_refuses_operators_that_do_not_nest(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Stage(16, operators=names)


def test_check_fit_refuses_groups_that_do_not_divide_the_channels() -> None:
    with pytest.raises(ConfigError, match=r"stages\[2\]\.operators has 3 groups, which do not"):
        check_fit("stages[2]", ("k3_e1_g3", "k3_e6"), 24, 32, 1)
    check_fit("stages[2]", ("k3_e1_g2", "k3_e6"), 24, 32, 1)
