"""Settings of recorded rows are compared by value: keys that were added later have defaults."""

from pathlib import Path
from typing import Any

import pytest

from experiments.configuration import Configuration, Configurations, differences, recipe_values
from experiments.record import Results, Row, read_rows
from hwnas.errors import RunError
from hwnas.recipe import read_recipe

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart" / "recipe.toml"


def settings(*overrides: str) -> dict[str, Any]:
    return {"recipe": recipe_values(read_recipe(QUICKSTART, overrides)[0]), "rounds": 3}


def without(values: dict[str, Any], table: str, key: str) -> dict[str, Any]:
    recipe = values["recipe"]
    kept = {name: value for name, value in recipe[table].items() if name != key}
    return {**values, "recipe": {**recipe, table: kept}}


def test_differences_give_new_keys_their_default() -> None:
    old = without(settings(), "train", "cutout")
    assert not list(differences(old, settings()))
    assert list(differences(old, settings("train.cutout=0.5"))) == [
        "recipe.train.cutout: 0.0 -> 0.5"
    ]


def test_differences_include_changed_defaults() -> None:
    [line] = differences(settings("train.sampling=uniform"), settings())
    assert line.startswith("recipe.train.sampling: 'uniform' -> ")


def test_differences_ignore_explicit_defaults() -> None:
    old = settings("deploy.finetune_epochs=1.0", "train.shift_pixels=1")
    now = settings()
    now["recipe"]["deploy"]["finetune_epochs"] = None
    now["recipe"]["train"]["shift_pixels"] = None
    assert not list(differences(old, now))


def test_differences_include_removed_keys() -> None:
    old = settings()
    old["recipe"]["train"]["steam"] = 3
    assert list(differences(old, settings())) == ["recipe.train.steam: 3 -> not there"]


def test_differences_include_new_script_options() -> None:
    assert list(differences(settings(), {**settings(), "sides": 2})) == ["sides: not there -> 2"]


def test_results_find_rows_recorded_before_a_key_existed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Results(path, without(settings(), "train", "cutout")).put([Row("a", "b", 0, 1.0, "", 1)])
    today = Results(path, settings())
    assert today.find("a", "b", 0) is not None
    today.put([Row("a", "b", 1, 2.0, "", 1)])
    assert len({row.provenance.config for row in read_rows(path) if row.provenance}) == 1
    assert Results(path, settings("train.cutout=0.5")).find("a", "b", 0) is None


def test_results_save_the_settings_beside_the_rows(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl", {"networks": 20})
    results.put([Row("a", "b", 0, 1.0, "", 1)])
    assert Configurations(tmp_path)[results.config] == Configuration({"networks": 20})


def test_configurations_name_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "configurations.json").write_text('{"a": 1}')
    with pytest.raises(RunError, match=r"configurations\.json"):
        Configurations(tmp_path).get("a")
