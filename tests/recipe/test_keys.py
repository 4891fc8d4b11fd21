"""Effects of each recipe key on stages, in code and in the guide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.recipe import read_recipe
from hwnas.recipe.keys import (
    AFTER,
    DECIDES,
    code_of,
    continues,
    decides,
    recipe_keys,
    redone_by,
    settings_of,
)
from hwnas.search.training.config import CONTINUABLE, NO_EFFECT

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "resume.md"


def test_recipe_keys_and_table_rows_match() -> None:
    keys = list(recipe_keys())
    found = {key: decides(key) for key in keys}
    unused = [pattern for pattern, row in DECIDES.items() if row not in found.values()]
    assert not unused


def test_recipe_key_rows_agree_with_training_settings() -> None:
    for key in recipe_keys():
        table, _, name = key.partition(".")
        if table != "train" or name.startswith("ranking_"):
            continue
        assert (decides(key).how == "kept") == (name in NO_EFFECT), key
        if continues(key):
            assert name in CONTINUABLE, key


def table() -> str:
    """Make the table of the guide from the code."""
    lines = ["| key | stages that depend on it | effect | what is reused |", "|---|---|---|---|"]
    rows: dict[tuple[str, str, str], list[str]] = {}
    for pattern, row in DECIDES.items():
        key = next(key for key in recipe_keys() if decides(key) is row)
        stages = ", ".join(redone_by(key)) or "nothing"
        rows.setdefault((stages, row.how, row.note), []).append(f"`{pattern}`")
    for (stages, how, note), patterns in rows.items():
        lines.append(f"| {', '.join(patterns)} | {stages} | {how} | {note} |")
    return "\n".join(lines)


def test_resume_guide_contains_the_table_from_the_code() -> None:
    assert table() in GUIDE.read_text(encoding="utf-8"), f"expected in {GUIDE.name}:\n{table()}"


def test_redone_by_includes_all_later_stages() -> None:
    order = list(AFTER)
    assert redone_by("train.learning_rate") == order[1:]
    assert redone_by("deploy.top") == ["finalists", "report"]
    assert redone_by("search.workers") == []
    for key in recipe_keys():
        stages = redone_by(key)
        assert not stages or stages[-1] == "report"


def test_settings_of_leaves_out_defaults(tiny_recipe: Path) -> None:
    recipe, _ = read_recipe(tiny_recipe)
    same = replace(recipe, train=replace(recipe.train, cutout=0.0))
    assert settings_of(recipe, "train") == settings_of(same, "train")
    assert settings_of(recipe, "train") == {"train.epochs": 3.0, "train.learning_rate": 0.01}
    assert settings_of(recipe, "finalists") == {"deploy.finetune_epochs": 1.0}
    other = replace(recipe, train=replace(recipe.train, workers=5, checkpoint_seconds=1.0))
    assert settings_of(other, "train") == settings_of(recipe, "train")


def test_code_of_changes_with_the_file_of_own_code(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_rules.py").write_text("def rule(): ...\n")
    recipe, _ = read_recipe(tiny_recipe, ["train.sampling=my_rules:rule"])
    before = code_of(recipe, "train")
    assert list(before) == ["code of my_rules"]
    assert code_of(recipe, "finalists") == {}
    (tmp_path / "my_rules.py").write_text("def rule(): return 1\n")
    assert code_of(recipe, "train") != before
