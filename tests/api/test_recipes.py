"""Recipes that a Python program describes with objects."""

import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.samplers import BaseSampler, RandomSampler
from tests.conftest import TINY
from torch import nn

import hwnas
from hwnas.api.elastic_model import ElasticModel
from hwnas.api.recipes import SearchDescription
from hwnas.api.settings import overrides_of
from hwnas.deploy import Target
from hwnas.errors import ConfigError
from hwnas.recipe import Named, Recipe, parse_recipe
from hwnas.registry import Registry
from hwnas.search import SAMPLERS, TASKS, GrowEvaluator, TrainConfig
from hwnas.search.samplers import GuidedSampler
from hwnas.search.strategies import STRATEGIES
from hwnas.search.strategies.gdas import GDAS
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
    accuracy, _ = recipe_of(task=hwnas.tasks.MultiTask(names=["kind", "side"])).objective
    assert (accuracy.metric, accuracy.direction) == ("accuracy", "maximize")
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
        if name not in ("DenseHead", "Stage", "ResNetStage", "HybridStage", "Group", "labelled")
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


def own_space(image_shape: tuple[int, int, int], outputs: int, preset: str = "tiny") -> SearchSpace:
    return mobilenet(image_shape, outputs, preset=preset)


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


def test_given_values_that_equal_a_default_are_not_planned() -> None:
    training = TrainConfig(learning_rate=5e-3, crop=1.0, flip=False)
    settings = {
        "deploy": hwnas.DeployConfig(top=3, reference=False, reference_minutes=None),
        "search": hwnas.SearchConfig(trials=200, fidelity=hwnas.Rungs(keep=3)),
        "compute": hwnas.ComputeConfig(workers=0),
        "run": hwnas.RunConfig(max_loss_points=None),
    }
    found = SearchDescription("digits", minutes=10, training=training, settings=settings)
    written = tomllib.loads(found.experiment(None).text)
    assert written["train"] == {"learning_rate": 5e-3, "crop": 1.0, "flip": False}
    assert written["deploy"] == {"top": 3, "reference": False}
    assert written["search"] == {"trials": 200, "fidelity": {"keep": 3}}
    assert written["compute"] == {"workers": 0}
    assert written["run"] == {"minutes": 10}


@pytest.mark.parametrize(
    ("targets", "task", "metric"),
    [
        (np.arange(12) % 2, "classification", "accuracy"),
        (np.linspace(0, 1, 12, dtype=np.float32)[:, None], "regression", "root_mean_squared_error"),
        (np.eye(12, 3, dtype=np.float32), "multilabel", "average_precision"),
        (np.ones((12, 8, 8), np.uint8), "segmentation", "mean_iou"),
        (np.tile(np.float32([0, 0, 0.5, 0.5, 1]), (12, 2, 1)), "detection", "map"),
        (np.ones((12, 16, 16, 1), np.uint8), "super-resolution", "psnr_db"),
    ],
)
def test_task_follows_from_the_targets(
    targets: np.ndarray, task: str, metric: str, tmp_path: Path
) -> None:
    images = np.zeros((12, 8, 8, 1), np.uint8)
    arrays = {f"{what}_{part}": each for part in ("train", "test") for what, each in
              (("x", images), ("y", targets))}  # fmt: skip
    np.savez(tmp_path / "file.npz", **arrays)
    for data in (arrays, tmp_path / "file.npz", f"npz:{tmp_path / 'file.npz'}"):
        recipe = recipe_of(data=data)
        assert (recipe.task.name, recipe.objective[0].metric) == (task, metric)
    assert recipe_of(data=arrays, task="classification").task.name == "classification"


def test_functions_of_parts_stand_for_their_defaults() -> None:
    """The brackets of `hwnas.samplers.Guided()` may be left out."""
    recipe = recipe_of(
        space=hwnas.spaces.MobileNet,
        task=hwnas.tasks.Classification,
        sampler=hwnas.samplers.NSGA2,
    )
    assert (recipe.space.name, recipe.task.name) == ("mobilenet", "classification")
    assert recipe.search.sampler == "nsga2"
    assert recipe_of(strategy=hwnas.strategies.GDAS).search.strategy == "gdas"


def test_strategy_may_be_a_class_and_evaluator_an_object() -> None:
    assert recipe_of(strategy=GDAS).search.strategy == "gdas"
    assert recipe_of(strategy=OwnStrategy).search.strategy == f"{__name__}:OwnStrategy"
    evaluator = OwnEvaluator()
    found = SearchDescription("digits", training=EPOCH, evaluator=evaluator).experiment(None)
    assert found.objects.evaluator is not None
    assert found.objects.evaluator() is evaluator


class OwnStrategy(GDAS):
    pass


class OwnEvaluator:
    key = "own"

    def evaluate(self, candidate: object, fidelity: float) -> None:
        raise NotImplementedError


def test_partial_of_a_function_is_a_name_with_options() -> None:
    recipe = recipe_of(
        space=partial(own_space, preset="tiny"), sampler=partial(GuidedSampler, start=4)
    )
    assert recipe.space.name == f"{__name__}:own_space"
    assert recipe.space.options == {"preset": "tiny"}
    assert (recipe.search.sampler, recipe.search.options) == ("guided", {"start": 4})


def test_space_within_a_space_may_be_a_name_or_a_model_by_its_name() -> None:
    union = hwnas.spaces.Union(
        "mobilenet",
        hwnas.spaces.labelled("small", hwnas.spaces.MobileNet(preset="tiny")),
        hwnas.spaces.Elastic("timm:resnet18"),
    )
    members = recipe_of(space=union).space.options["members"]
    assert members[:2] == [
        {"name": "mobilenet"}, {"name": "mobilenet", "preset": "tiny", "label": "small"}
    ]  # fmt: skip
    assert members[2]["model"] == "timm:resnet18"
    quantised = hwnas.spaces.Quantised(hwnas.spaces.Elastic("timm:resnet18"))
    assert quantised.options["network"]["name"] == "elastic"
    within = hwnas.spaces.Elastic(nn.Linear(3, 2))
    with pytest.raises(ConfigError, match=r"EarlyExit has the space .* cannot import by a name"):
        hwnas.spaces.EarlyExit(within)  # type: ignore[arg-type]


def test_networks_within_a_model_without_a_name_may_be_quantised() -> None:
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.ReLU(), nn.Flatten()),
        nn.Linear(128, 10),
    )
    within = hwnas.spaces.Elastic(model)
    assert isinstance(within, ElasticModel)
    space = hwnas.spaces.Quantised(within, weight_bits=(4, 8), sparsity=("2of4", "dense"))
    assert recipe_of(space=space).space.names == ("python:space",)
    made = space((8, 8, 1), 10)
    assert {choice.name for choice in made.choices} >= {"2.weight_bits", "2.sparsity"}


def test_objects_of_targets_stand_for_their_names() -> None:
    target = Target.parse(TARGET)
    assert hwnas.minimize("latency_ms", target=[target]).target == TARGET
    assert hwnas.minimize("latency_ms", target=target, limit=3.0).target == TARGET


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hwnas.TrainConfig(epoch=3), "TrainConfig has no field 'epoch'; did you mean 'ep"),
        (lambda: hwnas.DeployConfig(top="3"), "DeployConfig: top is '3'; expected a valid integer"),
        (
            lambda: hwnas.maximize("accuracy", limit="5"),
            "Objective: limit is '5'; expected a valid",
        ),
        (
            lambda: hwnas.minimize("macs", limit=-5.0),
            "limit of macs is -5; expected a number above",
        ),
        (
            lambda: hwnas.minimize("latency_ms", target=TARGET, reduce="sum"),
            "needs several targets",
        ),
        (
            lambda: hwnas.minimize("latency_ms", target=[TARGET, "a"], reduce="mean"),
            "'latency_ms' has reduce 'mean'",
        ),
        (lambda: hwnas.maximize("accuracy", limit=0.5, limit_on="x"), "has limit_on 'x'"),
    ],
)
def test_wrong_config_is_a_config_error(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_changes_of_a_recipe_keep_what_a_config_object_does_not_give() -> None:
    changes = {
        "deploy": hwnas.DeployConfig(top=2),
        "objective": [hwnas.maximize("accuracy"), hwnas.minimize("macs", limit=5e6)],
        "search.timeout_s": None,
    }
    recipe, _ = parse_recipe(TINY, overrides_of(changes))
    assert (recipe.deploy.top, recipe.deploy.finetune_epochs) == (2, 1)
    assert [each.metric for each in recipe.objective] == ["accuracy", "macs"]
    assert recipe.objective[1].limit == 5e6


def test_planned_search_leaves_the_training_to_the_plan() -> None:
    experiment = SearchDescription("digits", minutes=10, settings={"train.flip": True})
    written = tomllib.loads(experiment.experiment(None).text)
    assert written["train"] == {"flip": True}
    assert "space" not in written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"training": TrainConfig(learning_rate=0.1)}, "[train] needs epochs or budget_minutes"),
        ({"training": {"epochs": 1}}, "training is {'epochs': 1}; expected hwnas.TrainConfig(...)"),
        ({"objectives": hwnas.maximize("accuracy")}, "objectives is Objective"),
        ({"task": "clasification"}, "unknown task 'clasification'; did you mean 'classification'"),
        ({"evaluator": Named("train", {"x": 1})}, "evaluator 'train' has no options"),
        ({"space": 5}, "space is 5; expected a name, an object of hwnas.spaces"),
        ({"sampler": 5}, "sampler is 5; expected a name"),
        ({"strategy": 5}, "strategy is 5, which other processes cannot import by a name"),
        ({"space": []}, "space is an empty list"),
        ({"settings": [1]}, "settings is [1]; expected a mapping"),
        ({"settings": {"name.x": 1}}, "settings has 'name.x', but 'name' is not a table"),
        ({"data": "digit"}, 'a data.source of a recipe, such as "digits"'),
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
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
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
