"""Heads for maps: strides, shapes, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search_spaces import SearchSpace, UnionSpace
from hwnas.search_spaces.dense_head import DenseHead, pyramid_stages
from hwnas.search_spaces.registry import named_space

FAMILIES = ("mobilenet", "resnet", "hybrid")


def output_shape(space: SearchSpace) -> tuple[int, ...]:
    largest = space.largest()
    network = space.build(largest).eval()
    with torch.no_grad():
        return tuple(network(torch.zeros(2, *space.input_shape(largest))).shape)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("side", "stride"), [(112, 8), (112, 4), (97, 8), (64, 16), (8, 8)])
def test_outputs_have_the_stride_of_the_head(family: str, side: int, stride: int) -> None:
    options = {"dense_head": {"stride": stride, "channels": [8, 16]}, "resolution": [side]}
    space = named_space(family, (side, side, 3), 6, options, maps=True)
    n, outputs, height, width = output_shape(space)
    assert (n, outputs) == (2, 6)
    assert height == width
    assert height >= -(-side // stride)
    if len(space.config.pyramid) > 1:  # otherwise no stage has so coarse a map
        assert height < 2 * -(-side // stride)


@pytest.mark.parametrize("family", FAMILIES)
def test_task_with_maps_gets_a_dense_head_without_being_asked(family: str) -> None:
    space = named_space(family, (32, 32, 3), 4, {}, maps=True)
    assert space.config.dense_head == DenseHead()
    assert "dense_head.channels" in [choice.name for choice in space.choices]
    plain = named_space(family, (32, 32, 3), 4, {})
    assert plain.config.dense_head is None
    assert plain.fingerprint != space.fingerprint


def test_members_of_a_union_get_dense_heads() -> None:
    space = named_space("union", (32, 32, 3), 4, {"preset": "cpu"}, maps=True)
    assert isinstance(space, UnionSpace)
    for architecture in (space.smallest(), space.largest()):
        network = space.build(architecture).eval()
        with torch.no_grad():
            assert network(torch.zeros(1, *space.input_shape(architecture))).dim() == 4


@given(strides=st.lists(st.sampled_from([1, 2]), min_size=2, max_size=7), finest=st.integers(1, 64))
def test_pyramid_uses_the_last_stage_of_each_stride(strides: list[int], finest: int) -> None:
    totals = [torch.tensor(strides[: s + 1]).prod().item() for s in range(1, len(strides))]
    head = DenseHead(stride=finest)
    if totals[0] > finest:
        with pytest.raises(ConfigError, match=r"dense_head\.stride is"):
            pyramid_stages(head, strides)
        return
    stages = pyramid_stages(head, strides)
    used = [totals[stage] for stage in stages]
    assert stages[-1] == len(totals) - 1
    assert used == sorted(set(used))
    assert used[0] == max(total for total in totals if total <= finest)
    for stage, total in zip(stages, used, strict=True):
        assert total not in totals[stage + 1 :]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"stride": 0}, "dense_head.stride is 0"),
        ({"layers": 0}, "dense_head.layers is 0"),
        ({"channels": []}, "dense_head.channels"),
        ({"channels": [64, 32]}, "dense_head.channels"),
        ({"strid": 8}, "strid"),
        ({"stride": 1}, "the finest map of a stage has a stride of 2"),
    ],
)
def test_wrong_heads_are_refused(head: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        named_space("mobilenet", (112, 112, 3), 4, {"dense_head": head}, maps=True)
