"""Searches whose supernet starts from that of another run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hwnas.search.training import load_weights, save_weights

Command = Callable[..., Any]


@pytest.mark.slow
def test_search_uses_the_supernet_of_another_run(
    hwnas: Command, quick_recipe: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert hwnas("search", quick_recipe, "--run", first).status == 0
    settings = ["--set", f"train.weights={first}", "--set", "train.epochs=0"]
    answer = hwnas("search", quick_recipe, "--run", second, *settings, "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["front"]
    weights = first / "supernet" / "weights.safetensors"
    before, after = (load_weights(run / "supernet/weights.safetensors") for run in (first, second))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "nothing is left to do" in hwnas("resume", second).err

    moved = tmp_path / "elsewhere.safetensors"
    moved.write_bytes(weights.read_bytes())
    same = hwnas("resume", second, "--set", f"train.weights={moved}")
    assert "train is done again" not in same.err, "the content is the same"
    save_weights(moved, {name: tensor + (tensor.dim() > 1) for name, tensor in before.items()})
    refused = hwnas("export", second, "--out", tmp_path / "model")
    assert "train (start weights changed)" in refused.err
    again = hwnas("resume", second)
    assert "train is done again: start weights changed" in again.err


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["train.weights=nowhere"], "nowhere; name a run or a safetensors file"),
        (["train.weights=."], "holds no trained supernet"),
        (["train.weights=recipe.toml"], "cannot be read as a safetensors file"),
        (
            ["train.weights=runs/other", "search.evaluator=train"],
            "evaluator 'train' trains no supernet; set search.evaluator = 'supernet'",
        ),
        (
            ["train.weights=runs/other", "train.epochs=0", "deploy.reference=true"],
            "the reference network has no training time; give it deploy.reference_minutes",
        ),
    ],
)
def test_search_refuses_weights_that_cannot_be_used(
    hwnas: Command, quick_recipe: Path, tmp_path: Path, settings: list[str], told: str
) -> None:
    options = [part for setting in settings for part in ("--set", setting)]
    hwnas("search", quick_recipe, "--run", tmp_path / "run", *options).refused(told)
    assert not (tmp_path / "run").exists()
