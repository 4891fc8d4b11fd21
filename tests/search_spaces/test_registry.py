"""The list of the spaces and presets of hwnas."""

import pytest

from hwnas.search_spaces import SPACES
from hwnas.search_spaces.decoder import PRESETS as DECODER
from hwnas.search_spaces.hiera import PRESETS as HIERA
from hwnas.search_spaces.hybrid import PRESETS as HYBRID
from hwnas.search_spaces.mobilenet import PRESETS as MOBILENET
from hwnas.search_spaces.registry import SpaceEntry, spaces
from hwnas.search_spaces.resnet import PRESETS as RESNET
from hwnas.search_spaces.simplenet import PRESETS as SIMPLENET
from hwnas.search_spaces.vit import PRESETS as VIT

PRESETS = {
    "decoder": DECODER,
    "hiera": HIERA,
    "hybrid": HYBRID,
    "mobilenet": MOBILENET,
    "resnet": RESNET,
    "simplenet": SIMPLENET,
    "vit": VIT,
}


@pytest.fixture(scope="module")
def entries() -> list[SpaceEntry]:
    return spaces()


@pytest.mark.parametrize("name", PRESETS)
def test_spaces_lists_every_preset(entries: list[SpaceEntry], name: str) -> None:
    assert {entry.preset for entry in entries if entry.name == name} == set(PRESETS[name])


def test_spaces_lists_every_space_with_its_size(entries: list[SpaceEntry]) -> None:
    # The size of an elastic space depends on its model.
    assert {entry.name for entry in entries} == set(SPACES) - {"elastic"}
    cells = next(entry for entry in entries if entry.name == "nasbench201")
    assert (cells.choices, cells.size) == (6, 15_625)
    by_preset = {entry.preset: entry for entry in entries if entry.name == "mobilenet"}
    assert (by_preset["mobilenet-v3-large"].choices, by_preset["mobilenet-v3-large"].size) == (0, 1)
    assert by_preset["small"].size > by_preset["tiny"].size > 1_000_000
