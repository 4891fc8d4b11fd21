import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.recipe import DeployConfig, read_recipe

ISSUE = """
name = "fashion-mnist-cpu"
seed = 0
[data]
source = "npz:$HWNAS_DATA/images/fashion_mnist.npz"
[task]
name = "classification"
[space]
name = "mobilenet"
[train]
budget_minutes = 15
sampling = "sandwich"
workers = 1
[[objective]]
metric = "accuracy"
direction = "maximize"
[[objective]]
metric = "latency_ms"
direction = "minimize"
target = "cpu-onnxruntime-fp32-b1-t1"
[search]
sampler = "nsga2"
evaluator = "supernet"
trials = 200
workers = 2
[deploy]
top = 3
"""


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_recipe(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_change(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def test_read_recipe_reads_a_documented_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(ISSUE)
    recipe, text = read_recipe(path)
    assert recipe.name == "fashion-mnist-cpu"
    assert recipe.train.budget_minutes == 15
    assert [o.label for o in recipe.objective] == [
        "accuracy",
        "latency_ms@cpu-onnxruntime-fp32-b1-t1",
    ]
    assert (recipe.search.trials, recipe.search.workers, recipe.deploy.top) == (200, 2, 3)
    assert text == ISSUE


def test_read_recipe_keeps_options_of_the_space(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(
        ISSUE.replace('name = "mobilenet"', 'name = "a:b"\nwidth = [0.5, 1]\ndeep.er = 3')
    )
    space = read_recipe(path)[0].space
    assert space.name == "a:b"
    assert space.options == {"width": [0.5, 1], "deep": {"er": 3}}


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("seed = 0", "sead = 0", ["sead is not a key", "did you mean 'seed'?"]),
        ("trials = 12", "trails = 12", ["search.trails", "did you mean 'trials'?"]),
        ("epochs = 3", "epochs = 3\nepochz = 1", ["train.epochz", "'epochs'"]),
        ('"maximize"\n', '"maximize"\nlimt = 1\n', ["objective[0].limt", "'limit'"]),
    ],
)
def test_read_recipe_names_unknown_keys_and_the_closest(
    tiny_recipe: Path, old: str, new: str, parts: list[str]
) -> None:
    message = refused(with_change(tiny_recipe, old, new))
    assert str(tiny_recipe) in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 3", 'epochs = "3"', "train.epochs is '3'; expected a number"),
        ("trials = 12", "trials = true", "search.trials is True; expected a whole number"),
        ("trials = 12", "trials = 12.5", "search.trials is 12.5; expected a whole number"),
        ("trials = 12", "trials = 0", "search.trials is 0; expected at least 1"),
        ("workers = 0\n\n[[", "workers = -1\n\n[[", "train.workers is -1; expected at least 0"),
        ("top = 3", "top = 0", "deploy.top is 0; expected at least 1"),
        ("top = 3", "spare = -1", "deploy.spare is -1; expected at least 0"),
        ("top = 3", "replacements = 0\nspare = 2", "raise deploy.top instead"),
        ("top = 3", "finetune_seeds = 0", "deploy.finetune_seeds is 0; expected at least 1"),
        (
            "top = 3",
            'finetune_norm_statistics = "moving"',
            "deploy.finetune_norm_statistics is 'moving'; expected 'batch' or 'fixed'",
        ),
        (
            "finetune_epochs = 1",
            "finetune_epochs = 0\nfinetune_seeds = 2",
            "deploy.finetune_seeds is 2, but there is no fine-tuning that could differ",
        ),
        ("networks = 5", "networks = 3", "predictor.networks is 3; expected at least 4"),
        ("seed = 0", "seed = -1", "seed is -1; expected at least 0"),
        ("epochs = 3", "epochs = nan", "train.epochs is nan; expected a number above 0"),
        ("epochs = 3\n", "", "needs epochs or budget_minutes"),
        ('"maximize"', '"maximise"', "objective.0.direction is 'maximise'; expected 'maximize' or"),
        ('metric = "accuracy"\n', "", "objective.0.metric is missing"),
        ('[space]\nname = "mobilenet"', "[space]", "space.name is missing"),
        ('[data]\nsource = "digits"', "[data]", "data.source is missing"),
        ('name = "tiny"\n', "", "name is missing"),
        ('name = "tiny"', 'name = "../tiny"', "name is '../tiny'; expected letters"),
        ('name = "tiny"', "name = 3", "name is 3; expected text in quotes"),
        ("train_limit = 400", "train_limit = 0", "data.train_limit is 0; expected at least 1"),
    ],
)
def test_read_recipe_says_which_value_was_expected(
    tiny_recipe: Path, old: str, new: str, message: str
) -> None:
    assert message in refused(with_change(tiny_recipe, old, new))


def test_read_recipe_refuses_a_number_in_place_of_a_table(tiny_recipe: Path) -> None:
    table = "[predictor]\nnetworks = 5\n"
    with_change(tiny_recipe, table, "")
    with_change(tiny_recipe, "seed = 0", "seed = 0\npredictor = 5")
    assert "predictor is 5; expected a table" in refused(tiny_recipe)


def test_read_recipe_explains_double_brackets_of_objectives(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    head, _, rest = ISSUE.partition("[[objective]]")
    path.write_text(head + "[objective]" + rest.partition("[[objective]]")[0])
    assert "[[objective]]" in refused(path)


@pytest.mark.parametrize("table", ["data", "train", "[objective]"])
def test_read_recipe_names_a_missing_table(tmp_path: Path, table: str) -> None:
    lines: list[str] = []
    wanted = True
    for line in ISSUE.splitlines():
        if line.startswith("["):
            wanted = line != f"[{table}]"
        lines += [line] if wanted else []
    path = tmp_path / "recipe.toml"
    path.write_text("\n".join(lines))
    assert f"{table.strip('[]')} is missing" in refused(path)


def test_read_recipe_names_the_line_that_is_not_toml(tiny_recipe: Path) -> None:
    line = tiny_recipe.read_text().splitlines().index("epochs = 3") + 1
    message = refused(with_change(tiny_recipe, "epochs = 3", "epochs = "))
    assert "is not TOML" in message
    assert f"line {line}" in message


def test_read_recipe_refuses_missing_and_binary_files(tmp_path: Path) -> None:
    assert "cannot read the recipe" in refused(tmp_path / "none.toml")
    assert "cannot read the recipe" in refused(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot read the recipe" in refused(tmp_path / "binary.toml")


def test_read_recipe_applies_overrides_of_every_type(tiny_recipe: Path) -> None:
    recipe, text = read_recipe(
        tiny_recipe,
        [
            "search.trials=500",
            "train.learning_rate = 1e-3",
            "name=another",
            'search.sampler="tpe"',
            "search.random_baseline=true",
            "search.options.n_startup_trials=4",
            "objective.1.limit=5",
            "space.width=[0.5, 1.0]",
        ],
    )
    assert recipe.search.trials == 500
    assert recipe.train.learning_rate == 1e-3
    assert recipe.name == "another"
    assert recipe.search.sampler == "tpe"
    assert recipe.search.random_baseline
    assert recipe.search.options == {"n_startup_trials": 4}
    assert recipe.objective[1].limit == 5
    assert recipe.space.options["width"] == [0.5, 1.0]
    tiny_recipe.write_text(text)
    assert read_recipe(tiny_recipe)[0] == recipe, "the text kept is the recipe that ran"


def test_read_recipe_adds_a_missing_table_for_an_override(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(ISSUE)
    recipe, text = read_recipe(path, ["predictor.networks=8"])
    assert recipe.predictor.networks == 8
    assert tomllib.loads(text)["predictor"] == {"networks": 8}
    assert "# a comment" in read_recipe_text(path, "# a comment\n" + ISSUE)


def read_recipe_text(path: Path, text: str) -> str:
    path.write_text(text)
    return read_recipe(path, ["search.trials=7"])[1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nonsense", "expected table.key=value"),
        ("=3", "expected table.key=value"),
        ("search.=3", "expected table.key=value"),
        ("search.trials=", "search.trials is ''; expected a whole number"),
        ("search.trials=many", "search.trials is 'many'; expected a whole number"),
        ("search.trials=2 3", "search.trials is '2 3'; expected a whole number"),
        ("search.trails=3", "did you mean 'trials'?"),
        ("objective.2.limit=1", "'2' is not an index of a list of 2"),
        ("objective.x.limit=1", "'x' is not an index of a list of 2"),
        ("objective.0=1", "give an index and a key"),
        ("name.key=1", "'name' is not a table"),
        ("train=3", "train is 3; expected a table"),
    ],
)
def test_read_recipe_refuses_wrong_overrides(
    tiny_recipe: Path, override: str, message: str
) -> None:
    before = tiny_recipe.read_text()
    assert message in refused(tiny_recipe, override)
    assert tiny_recipe.read_text() == before


def test_recipe_hash_is_equal_for_equivalent_recipes(tiny_recipe: Path) -> None:
    recipe, text = read_recipe(tiny_recipe)
    table = tomllib.loads(text)
    same = [
        "# a comment\n" + text,
        text.replace("seed = 0\n", ""),  # the default
        text.replace("epochs = 3", "epochs = 3.0"),
        text.replace("width = [1.0]\nstem_channels = 8", "stem_channels = 8\nwidth = [1.0]"),
        text + "finetune_learning_rate = 0.001\n",
    ]
    assert table["space"]["width"] == [1.0]
    for other in same:
        tiny_recipe.write_text(other)
        assert read_recipe(tiny_recipe)[0].hash == recipe.hash, other


CHANGES = {
    "seed": st.integers(1, 99),
    "data.validation_fraction": st.sampled_from([0.1, 0.3]),
    "space.stem_channels": st.sampled_from([16, 24]),
    "train.epochs": st.integers(4, 9),
    "train.workers": st.integers(1, 3),
    "objective.0.limit": st.floats(0.1, 0.9),
    "search.options.population_size": st.integers(2, 9),
    "search.trials": st.integers(13, 99),
    "deploy.top": st.integers(4, 9),
}


@pytest.mark.slow
@given(change=st.sampled_from(sorted(CHANGES)), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
def test_recipe_hash_differs_for_different_recipes(
    tiny_recipe: Path, change: str, data: st.DataObject
) -> None:
    value = data.draw(CHANGES[change])
    other = read_recipe(tiny_recipe, [f"{change}={json.dumps(value)}"])[0]
    assert other.hash != read_recipe(tiny_recipe)[0].hash
    assert other.hash == read_recipe(tiny_recipe, [f"{change} = {json.dumps(value)}"])[0].hash


def test_recipe_fine_tuning_is_the_training_with_its_own_epochs(tiny_recipe: Path) -> None:
    recipe = read_recipe(tiny_recipe, ["deploy.finetune_epochs=2"])[0]
    assert recipe.fine_tuning is not None
    assert recipe.fine_tuning.epochs == 2
    assert recipe.fine_tuning.learning_rate == recipe.deploy.finetune_learning_rate
    assert recipe.fine_tuning.batch_size == recipe.train.batch_size
    assert read_recipe(tiny_recipe, ["deploy.finetune_epochs=0"])[0].fine_tuning is None
    assert "deploy.finetune_epochs is -1" in refused(tiny_recipe, "deploy.finetune_epochs=-1")


def test_recipe_fine_tuning_can_have_minutes_instead_of_epochs(tiny_recipe: Path) -> None:
    assert "both finetune_epochs and" in refused(tiny_recipe, "deploy.finetune_minutes=2")
    recipe = replace(read_recipe(tiny_recipe)[0], deploy=DeployConfig(finetune_minutes=2))
    assert recipe.fine_tuning is not None
    assert (recipe.fine_tuning.epochs, recipe.fine_tuning.budget_minutes) == (None, 2)
    unsaid = replace(recipe, deploy=DeployConfig()).fine_tuning
    assert unsaid is not None
    assert unsaid.epochs == 1
