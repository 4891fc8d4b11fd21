"""Runs with a strategy: from a recipe to bundles, resumed, and refused where they make no sense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hwnas
from hwnas.search.strategies.learning import DISTRIBUTIONS
from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.mobilenet.config import MobileNetConfig, Stage

Command = Callable[..., Any]

RECIPE = """
name = "strategy"

[data]
source = "digits"
train_limit = 300
test_limit = 60

[space]
name = "mobilenet"
resolution = [8]
width = [1.0]
stem_channels = 8
stem_stride = 1
head_channels = 8
feature_channels = 0
operator_weights = "own"
stages = [
    { channels = 8, depth = [1, 2], operators = ["skip", "k3_e1", "k3_e2"] },
    { channels = 8, stride = 2, operators = ["k3_e1", "k5_e3"] },
]

[train]
epochs = 1
batch_size = 16
learning_rate = 0.01
workers = 0

[[objective]]
metric = "accuracy"
direction = "maximize"

[[objective]]
metric = "macs"
direction = "minimize"

[search]
strategy = "proxyless"
strategy_options = { epochs = 2, cost_weights = [0.0, 1.0] }
trials = 4
workers = 0

[deploy]
top = 1
finetune_epochs = 0
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def stages(run: Path, since: int = 0) -> list[str]:
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()[since:]]
    return [row["stage"] for row in rows if row["event"] == "stage"]


@pytest.mark.slow
def test_strategy_leads_from_a_recipe_to_a_bundle_and_resumes(
    hwnas: Command, recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    answer = hwnas("search", recipe, "--run", run)
    assert answer.status == 0, answer.err
    assert stages(run) == ["train", "strategy", "search", "finalists", "report"]
    found = json.loads((run / "strategy" / DISTRIBUTIONS).read_text())["distributions"]
    assert [row["cost_weight"] for row in found] == [0.0, 1.0]
    assert found[1]["expected_cost"] < found[0]["expected_cost"]
    assert "specialise" not in answer.out
    report = (run / "report.html").read_text()
    assert "What the strategy learned" in report
    assert f"The most probable network is {found[1]['network']}" in report
    [bundle] = (run / "bundles").iterdir()
    assert hwnas("verify", bundle).status == 0

    before = len((run / "log.jsonl").read_text().splitlines())
    assert hwnas("resume", run).status == 0
    assert stages(run, before) == []
    assert hwnas("resume", run, "--set", "search.strategy=gdas").status == 0
    assert stages(run, before)[:2] == ["strategy", "search"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [hwnas.strategies.PolicyGradient(epochs=1), "reinforce"])
def test_search_takes_a_strategy(strategy: Any, tmp_path: Path) -> None:
    stage = Stage(8, 2, (1, 2), (3, 5), (2, 3))
    config = MobileNetConfig((stage,), (8,), in_channels=1, outputs=10, head_channels=8)
    run = hwnas.search(
        hwnas.DataConfig("digits", train_limit=300, test_limit=60),
        space=MobileNetSpace(config),
        objectives=[hwnas.maximize("accuracy"), hwnas.minimize("macs")],
        training=hwnas.TrainConfig(epochs=1, batch_size=16, workers=0),
        strategy=strategy,
        trials=3,
        settings={"search.workers": 0, "deploy": hwnas.DeployConfig(top=1)},
        path=tmp_path / "run",
    )
    assert len(run.front)
    assert (tmp_path / "run" / "strategy" / DISTRIBUTIONS).exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["search.strategy=darts"], "darts"),
        (["search.strategy_options={temperature=3}"], "temperature"),
        (['space.operator_weights="shared"'], "operator_weights"),
        (['search.strategy="pc-darts"', 'search.evaluator="train"'], "part of the channels"),
        (['search.strategy="pc-darts"'], 'search.evaluator = "train"'),
        (["run.minutes=5"], "run.minutes"),
        (["search.strategy_options={held_out=0.01}"], "held_out"),
        (["search.strategy_options={epochs=-1}"], "epochs"),
        (['space.operator_weights="each"'], "operator_weights"),
        (['space={name="union",preset="cpu"}', 'search.evaluator="train"'], "share no weights"),
        (['space={name="vit"}'], "operators with weights of their own"),
    ],
)
def test_search_refuses_strategies_that_make_no_sense(
    hwnas: Command, recipe: Path, tmp_path: Path, changes: list[str], told: str
) -> None:
    options = [part for change in changes for part in ("--set", change)]
    hwnas("search", recipe, "--run", tmp_path / "run", *options).refused(told)
    assert not (tmp_path / "run" / "supernet").exists()
