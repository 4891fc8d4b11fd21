"""File formats of the bundles that runs make and export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hwnas as api
from hwnas.deploy import Bundle
from hwnas.errors import ConfigError

Command = Callable[..., Any]


@pytest.mark.slow
def test_run_converts_all_of_its_finalists(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    answer = hwnas(
        *("search", quick_recipe, "--run", tmp_path / "run"),
        *("--set", 'deploy.formats=["torch", "openvino"]'),
    )
    assert answer.status == 0, answer.err
    bundles = [Bundle.load(each.parent) for each in tmp_path.glob("run/bundles/*/bundle.json")]
    assert bundles
    for bundle in bundles:
        assert [each.format for each in bundle.converted] == ["torch", "openvino"]
        assert all(check.ok for check in bundle.verify())


@pytest.mark.slow
def test_export_converts_the_exported_bundle_only(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = hwnas("export", finished, "--out", out, "--format", "torch")
    assert answer.status == 0, answer.err
    assert f"{out / 'model.pt2'}: runs here" in answer.out
    assert not list(finished.glob("bundles/*/model.pt2"))
    network = api.open(finished).best()
    (made,) = network.export(tmp_path / "other", formats=["torch"]).converted
    assert made.format == "torch"
    (again,) = api.convert(tmp_path / "other", "torch", batch=2).converted
    assert again.batch == 2


def test_export_that_does_not_fit_leaves_nothing(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    small = ("--format", "c", "--arena", "16B")
    hwnas("export", finished, "--out", out, *small).refused("more than the arena of 16")
    hwnas("export", finished, "--out", out, "--arena", "16B").refused("only the format c")
    assert not out.exists()


@pytest.mark.slow
def test_export_names_c_code_and_lets_it_take_rows(
    hwnas: Command, finished: Path, tmp_path: Path
) -> None:
    options = ("--format", "c", "--name", "door", "--by-rows")
    answer = hwnas("export", finished, "--out", tmp_path / "a", *options)
    assert answer.status == 0, answer.err
    network = api.open(finished).best()
    network.export(tmp_path / "b", formats=["c"], name="gate", by_rows=True)
    for folder, name in (("a", "door"), ("b", "gate")):
        assert f"*{name}_row(const uint8_t *" in (tmp_path / folder / f"{name}.h").read_text()
    hwnas("export", finished, "--out", tmp_path / "c", "--name", "x").refused("only the format c")
    assert not (tmp_path / "c").exists()


def test_unknown_formats_are_refused_before_the_work(
    hwnas: Command, quick_recipe: Path, finished: Path, tmp_path: Path
) -> None:
    answer = hwnas("search", quick_recipe, "--run", tmp_path / "r", "--set", "deploy.formats=['x']")
    answer.refused("unknown deploy.formats 'x'")
    assert not (tmp_path / "r").exists()
    out = tmp_path / "out"
    hwnas("export", finished, "--out", out, "--format", "x").refused("unknown file format 'x'")
    with pytest.raises(ConfigError, match="unknown file format 'x'"):
        api.open(finished).best().export(out, formats=["x"])
    assert not out.exists()
