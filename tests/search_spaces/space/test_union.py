"""Union spaces, which search several spaces without shared weights as one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import UnionSpace, mobilenet, resnet, union

MEMBERS = {"residual": resnet((8, 8, 1), 10), "mobile": mobilenet((8, 8, 1), 10)}
SPACE = UnionSpace(MEMBERS)


def test_union_space_builds_the_networks_of_its_members() -> None:
    for label, member in MEMBERS.items():
        own = member.sample(random.Random(3))
        network = SPACE.of_member(label, own)
        assert SPACE.member(network) == (member, own)
        assert str(SPACE.build(network)) == str(member.build(own))
        assert SPACE.input_shape(network) == member.input_shape(own)
        assert SPACE.outline(network) == member.outline(own)


def test_union_space_samples_all_members_and_counts_in_order() -> None:
    drawn = [SPACE.sample(random.Random(seed)) for seed in range(20)]
    families = [network.as_dict()["family"] for network in drawn]
    assert set(families) == set(MEMBERS)
    codes = np.array([SPACE.encode(network) for network in drawn])
    macs = [SPACE.workload(network).macs for network in drawn]
    assert SPACE.counted(codes)["macs"].tolist() == macs


def test_union_space_has_no_supernet() -> None:
    assert not SPACE.nests
    with pytest.raises(ConfigError, match="residual, mobile share no weights"):
        SPACE.supernet()


@pytest.mark.parametrize("side", [8, 28, 64])
def test_union_preset_cpu_orders_members_by_their_smallest_network(side: int) -> None:
    made = union((side, side, 3), 10, "cpu")
    assert list(made.members) == ["inverted", "compact"]
    smallest = [member.workload(member.smallest()).macs for member in made.members.values()]
    assert smallest == sorted(set(smallest))


def test_union_makes_its_members_from_tables_of_a_recipe() -> None:
    tables: list[dict[str, Any]] = [
        {"name": "resnet", "preset": "tiny", "width": [0.5]},
        {"name": "resnet", "preset": "tiny", "label": "wide", "width": [2.0], "resolution": [12]},
    ]
    made = union((8, 8, 1), 10, members=tables, resolution=(8,))
    assert made.choices[0].options == ("tiny", "wide")
    assert made.input_shape(made.smallest())[1:] == (8, 8)
    assert made.input_shape(made.largest())[1:] == (12, 12)
    assert made.fingerprint != union((8, 8, 1), 10, members=tables[:1]).fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "space.preset is None; expected one of cpu"),
        ({"preset": "gpu"}, "space.preset is 'gpu'; expected one of cpu"),
        ({"members": []}, "no members"),
        ({"members": [{"preset": "tiny"}]}, "unknown space.members ''"),
        ({"members": [{"name": "resnet", "depht": 1}]}, "no key 'depht'"),
        ({"members": [{"name": "resnet"}, {"name": "resnet"}]}, "two called 'resnet'"),
    ],
)
def test_union_refuses_wrong_members_and_presets(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        union((8, 8, 1), 10, **options)
