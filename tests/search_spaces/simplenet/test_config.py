"""Configurations of the simplenet space."""

from __future__ import annotations

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import Group, SimpleNetConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"channels": ()}, r"Group.channels is \[\]"),
        ({"channels": (8, 0)}, r"Group.channels is \[8, 0\]"),
        ({"kernel_size": (3, 2)}, r"Group.kernel_size is \[3, 2\]; expected one odd number"),
        ({"kernel_size": (3, 3, 3)}, "one for each of the 2 layers"),
        ({"depth": (1,)}, r"Group.depth is \[1\]; the largest has to be 2"),
        ({"depth": (1, 2, 3)}, "the largest has to be 2"),
        ({"width": (0.5, 1.5)}, r"Group.width has 1.5; expected shares in \(0, 1\]"),
        ({"width": (0, 1)}, r"Group.width is \[0, 1\]; expected positive options"),
        ({"width": (1, 0.5)}, "increasing"),
        ({"width": (0.9, 1)}, r"gives \[16, 16\] channels of 16; .* choose widths further apart"),
        (
            {"channels": (32, 16), "depth": (1, 2)},
            "ends the group at 32 channels, more than the 16",
        ),
    ],
)
def test_group_refuses_wrong_fields(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Group(**{"channels": (16, 16), **wrong})  # type: ignore[arg-type]


def test_simplenet_config_refuses_images_too_small_for_its_halvings() -> None:
    groups = (Group((8,)),) * 4
    assert SimpleNetConfig(groups, (8,)).resolution == (8,)
    with pytest.raises(ConfigError, match=r"images of 7 pixels .* halved 3 times .* at least 8"):
        SimpleNetConfig(groups, (7, 32))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"groups": ()}, "groups is empty"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"outputs": 0}, "outputs is 0"),
        ({"resolution": (32.5,)}, r"resolution is \[32\.5\]; expected whole numbers"),
        ({"resolution": (32, 16)}, r"resolution is \[32, 16\]"),
    ],
)
def test_simplenet_config_refuses_wrong_fields(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SimpleNetConfig(**{"groups": (Group((8,)),), **wrong})  # type: ignore[arg-type]


def test_group_equals_one_with_defaults_written_out() -> None:
    assert Group((16, 16), (3, 3), (2,), (0.5, 1.0)) == Group((16, 16), width=(0.5, 1))
