"""Recipes that a Python program describes with objects."""

import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.samplers import BaseSampler, RandomSampler
from tests.conftest import TINY
from torch import nn

import hwnas
from hwnas.api.recipes import SearchDescription
from hwnas.errors import ConfigError
from hwnas.recipe import Named, Recipe, parse_recipe
from hwnas.registry import Registry
from hwnas.search import SAMPLERS, TASKS, GrowEvaluator, TrainConfig
from hwnas.search.samplers import GuidedSampler
from hwnas.search.strategies import STRATEGIES
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.mobilenet.space import mobilenet
from hwnas.search_spaces.registry import ROLES, SPACES

TARGET = "cpu-onnxruntime-fp32-b1-t1"
EPOCH = TrainConfig(epochs=1)


def recipe_of(**arguments: Any) -> Recipe:
    given: dict[str, Any] = {"data": "digits", "training": EPOCH, **arguments}
    return SearchDescription(**given).experiment(None).recipe


def test_description_with_objects_is_the_same_recipe_as_the_file() -> None:
    stages = (
        hwnas.spaces.Stage(
            channels=8, depth=(1, 2), kernel_size=(3, 5), expand_ratio=(1, 2), stride=1
        ),
        hwnas.spaces.Stage(channels=16, stride=2, kernel_size=(3, 5), expand_ratio=(2, 4)),
    )
    space = hwnas.spaces.MobileNet(
        resolution=(8,),
        width=(1.0,),
        stem_channels=8,
        stem_stride=1,
        head_channels=16,
        feature_channels=16,
        stages=stages,
    )
    described = recipe_of(
        data=hwnas.DataConfig("digits", validation_fraction=0.25, train_limit=400, test_limit=200),
        name="tiny",
        task=hwnas.tasks.Classification(),
        space=space,
        training=TrainConfig(epochs=3, learning_rate=0.01, workers=0),
        objectives=[hwnas.maximize("accuracy"), hwnas.minimize("latency_ms", target=TARGET)],
        trials=12,
        settings={
            "search.workers": 0,
            "predictor": hwnas.PredictorConfig(networks=5),
            "deploy": hwnas.DeployConfig(top=3, finetune_epochs=1),
        },
    )
    written, _ = parse_recipe(TINY)
    ours, theirs = dict(described.values), dict(written.values)
    built = [
        SPACES["mobilenet"](image_shape=(8, 8, 1), outputs=10, **options)
        for options in (space.options, _as_python(theirs["space.options"]))
    ]
    assert built[0].fingerprint == built[1].fingerprint
    ours.pop("space.options"), theirs.pop("space.options")
    assert ours == theirs


def _as_python(options: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return tuple(map(plain, value)) if isinstance(value, list) else value

    made = {name: plain(value) for name, value in options.items()}
    stages = [{k: plain(v) for k, v in stage.items()} for stage in options["stages"]]
    return made | {"stages": tuple(hwnas.spaces.Stage(**stage) for stage in stages)}


def test_default_objectives_are_the_task_metric_and_latency_on_this_machine() -> None:
    accuracy, latency = recipe_of().objective
    assert (accuracy.metric, latency.metric, latency.target) == ("accuracy", "latency_ms", TARGET)
    iou, _ = recipe_of(task=hwnas.tasks.Segmentation()).objective
    assert iou.metric == "mean_iou"
    error, _ = recipe_of(task=hwnas.tasks.Regression(names=["age"])).objective
    assert (error.metric, error.direction) == ("root_mean_squared_error", "minimize")
    precision, _ = recipe_of(task="multilabel").objective
    assert (precision.metric, precision.direction) == ("average_precision", "maximize")
    perplexity, _ = recipe_of(task=hwnas.tasks.LanguageModel()).objective
    assert (perplexity.metric, perplexity.direction) == ("perplexity", "minimize")


def test_minimize_takes_several_targets() -> None:
    other = "cpu-onnxruntime-fp32-b8-t1"
    objective = hwnas.minimize("latency_ms", target=[TARGET, other], limit=5.0, reduce="sum")
    recipe = recipe_of(objectives=[hwnas.maximize("accuracy"), objective])
    assert recipe.objective[1] == objective


@pytest.mark.parametrize(
    ("registry", "functions"),
    [
        (SAMPLERS, hwnas.samplers),
        (SPACES, hwnas.spaces),
        (STRATEGIES, hwnas.strategies),
        (TASKS, hwnas.tasks),
        (ROLES, hwnas.spaces),
    ],
    ids=lambda each: each.kind if isinstance(each, Registry) else "",
)
def test_each_plugin_has_a_function_with_its_options(
    registry: Registry[Any], functions: Any
) -> None:
    made = {"Elastic": hwnas.spaces.Elastic("timm:resnet18"), "Union": hwnas.spaces.Union()}
    offered = {
        (made.get(name) or getattr(functions, name)()).name
        for name in functions.__all__
        if name not in ("DenseHead", "Stage", "ResNetStage", "HybridStage", "Group")
    }
    assert set(registry) <= offered


def test_option_that_a_plugin_does_not_have_is_refused_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="mobilenet has no option 'widht'; did you mean 'width'"):
        hwnas.spaces.MobileNet(widht=(1.0,))  # type: ignore[call-arg]


def test_training_settings_are_a_further_role() -> None:
    settings = hwnas.spaces.TrainingSettings(learning_rate=(0.01, 0.02))
    recipe = recipe_of(space=[hwnas.spaces.MobileNet(preset="tiny"), settings], evaluator="train")
    assert recipe.space.names == ("mobilenet", "recipe")
    assert recipe.space.options == {"preset": "tiny", "recipe": {"learning_rate": [0.01, 0.02]}}


def test_union_has_the_tables_of_its_members() -> None:
    union = hwnas.spaces.Union(
        hwnas.spaces.MobileNet(preset="tiny"), hwnas.spaces.ResNet(preset="tiny", width=(0.5,))
    )
    assert recipe_of(space=union).space.options["members"] == [
        {"name": "mobilenet", "preset": "tiny"},
        {"name": "resnet", "preset": "tiny", "width": [0.5]},
    ]


def test_classes_have_their_names_in_the_recipe() -> None:
    recipe = recipe_of(space=mobilenet, sampler=GuidedSampler, evaluator=GrowEvaluator)
    assert recipe.space.name == "mobilenet"
    assert (recipe.search.sampler, recipe.search.evaluator) == ("guided", "grow")


def own_space(image_shape: tuple[int, int, int], outputs: int) -> SearchSpace:
    return mobilenet(image_shape, outputs, preset="tiny")


def test_function_of_a_module_is_named_by_it() -> None:
    assert sys.modules[__name__].own_space is own_space
    assert recipe_of(space=own_space).space.name == f"{__name__}:own_space"


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("space", lambda image_shape, outputs: own_space(image_shape, outputs)),
        ("space", nn.Linear(3, 2)),
        ("sampler", RandomSampler(seed=1)),
        ("evaluator", lambda space, task, data: None),
        ("task", lambda data: None),
    ],
)
def test_object_without_a_name_travels_beside_the_recipe(kind: str, given: Any) -> None:
    objectives = [hwnas.maximize("accuracy"), hwnas.minimize("params")]
    arguments: dict[str, Any] = {"data": "digits", "training": EPOCH, "objectives": objectives}
    experiment = SearchDescription(**arguments, **{kind: given}).experiment(None)
    written = tomllib.loads(experiment.text)
    tables = {"sampler": "search", "evaluator": "search"}
    assert written[tables.get(kind, kind)]["name" if kind in ("space", "task") else kind] == (
        f"python:{kind}"
    )
    assert experiment.objects.kinds == [kind]


def test_sampler_of_optuna_is_used_itself() -> None:
    sampler = RandomSampler(seed=1)
    experiment = SearchDescription("digits", training=EPOCH, sampler=sampler).experiment(None)
    factory: Callable[[], BaseSampler] | None = experiment.objects.sampler
    assert factory is not None
    assert factory() is sampler


def test_settings_hold_tables_numbers_of_numpy_and_paths() -> None:
    recipe = recipe_of(
        settings={
            "search": {"batch": np.int64(3)},
            "deploy.finetune_learning_rate": np.float64(0.5),
            "search.storage": "sqlite:///x.db",
        }
    )
    assert (recipe.search.batch, recipe.deploy.finetune_learning_rate) == (3, 0.5)


def test_planned_search_leaves_the_training_to_the_plan() -> None:
    experiment = SearchDescription("digits", minutes=10, settings={"train.flip": True})
    written = tomllib.loads(experiment.experiment(None).text)
    assert written["train"] == {"flip": True}
    assert "space" not in written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"training": None}, "neither minutes, the budget of the whole job, nor training"),
        ({"trials": 0}, "search.trials is 0; expected at least 1"),
        ({"minutes": 1}, "run.minutes is 1; expected at least 3"),
        ({"objectives": ["accuracy"]}, "objectives has 'accuracy'; expected hwnas.maximize"),
        ({"task": lambda data: None}, "objectives are needed for a task of your own"),
        ({"name": "a b"}, "name is 'a b'; expected letters"),
        ({"settings": {"search.trails": 3}}, "search.trails is not a key of a recipe; did you"),
        ({"settings": {"trials": 3}}, "settings has 'trials'; expected a dotted key"),
        ({"settings": {"search.trials": 3}, "trials": 4}, "another argument sets it as well"),
        ({"settings": {"deploy.top": object()}}, "deploy.top is <object"),
        ({"data": "missing/"}, "missing does not exist"),
        ({"data": __file__}, "neither a folder of images nor an .npz file"),
        ({"data": 3}, "data is a int; expected a path, arrays"),
    ],
)
def test_wrong_argument_is_refused_in_one_line(arguments: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")) as raised:
        recipe_of(**arguments)
    assert "\n" not in str(raised.value)


def test_relative_folder_of_images_is_named_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "small.npz", x_train=np.zeros(1))
    monkeypatch.chdir(tmp_path)
    recipe = recipe_of(data="small.npz")
    assert (recipe.name, recipe.data.source) == ("small", f"npz:{tmp_path / 'small.npz'}")


def test_named_object_is_a_name_with_options() -> None:
    assert recipe_of(sampler=Named("guided", {"start": 4})).search.options == {"start": 4}
