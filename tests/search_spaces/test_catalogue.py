"""The list of shipped spaces."""

from hwnas.search_spaces import SPACES, hybrid_config, mobilenet_config, vit_config
from hwnas.search_spaces.catalogue import spaces


def test_every_preset_is_listed_with_its_size() -> None:
    entries = spaces()
    for name, module in (
        ("hybrid", hybrid_config),
        ("mobilenet", mobilenet_config),
        ("vit", vit_config),
    ):
        assert {entry.preset for entry in entries if entry.name == name} == set(module.PRESETS)
    assert {entry.name for entry in entries} == set(SPACES)
    cells = next(entry for entry in entries if entry.name == "nasbench201")
    assert (cells.choices, cells.size) == (6, 15_625)
    by_preset = {entry.preset: entry for entry in entries if entry.name == "mobilenet"}
    assert (by_preset["mobilenet-v3-large"].choices, by_preset["mobilenet-v3-large"].size) == (0, 1)
    assert by_preset["small"].size > by_preset["tiny"].size > 1_000_000
