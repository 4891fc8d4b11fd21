"""The list of shipped spaces."""

from hwnas.search_spaces import SPACES, resnet_config
from hwnas.search_spaces.catalogue import spaces
from hwnas.search_spaces.mobilenet_config import PRESETS
from hwnas.search_spaces.simplenet_config import PRESETS as SIMPLENET
from hwnas.search_spaces.mobilenet_presets import PRESETS


def test_every_preset_is_listed_with_its_size() -> None:
    entries = spaces()
    assert {entry.preset for entry in entries if entry.name == "mobilenet"} == set(PRESETS)
    # How large the space of a model is depends on the model.
    assert {entry.name for entry in entries} == set(SPACES) - {"elastic"}
    cells = next(entry for entry in entries if entry.name == "nasbench201")
    assert (cells.choices, cells.size) == (6, 15_625)
    assert {entry.preset for entry in entries if entry.name == "simplenet"} == set(SIMPLENET)
    resnets = {entry.preset for entry in entries if entry.name == "resnet"}
    assert resnets == set(resnet_config.PRESETS)
    assert {entry.name for entry in entries} == set(SPACES)
    cells = next(entry for entry in entries if entry.name == "nasbench201")
    assert (cells.choices, cells.size) == (6, 15_625)
    by_preset = {entry.preset: entry for entry in entries if entry.name == "mobilenet"}
    assert (by_preset["mobilenet-v3-large"].choices, by_preset["mobilenet-v3-large"].size) == (0, 1)
    assert by_preset["small"].size > by_preset["tiny"].size > 1_000_000
