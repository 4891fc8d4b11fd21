"""Objects that a recipe names: data, task, spaces, sampler and evaluator, checked together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from optuna.samplers import BaseSampler
from torch import nn

from hwnas.deploy.file_formats.registry import file_format
from hwnas.errors import ConfigError
from hwnas.given_objects import GivenObjects, given_object
from hwnas.hashing import content_hash
from hwnas.plugin import build
from hwnas.progress import Reporter, SilentReporter
from hwnas.recipe import Recipe, SpaceConfig
from hwnas.search import EVALUATORS, TASKS
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.lineage import check_growable
from hwnas.search.evaluation.own_identity import check_identity
from hwnas.search.objectives.objective import check_objectives
from hwnas.search.samplers import SAMPLERS, make_sampler
from hwnas.search.strategies import Strategy, make_strategy
from hwnas.search.tasks.task import JointTask, Task, UpscalingTask, smoothed
from hwnas.search.training import TrainConfig, teacher_of
from hwnas.search.training.distillation import distillation_loss
from hwnas.search.training.optimizers import check_layer_rates, make_optimizer
from hwnas.search.training.rand_augment import CHANNELS
from hwnas.search.training.sampling import SAMPLING, check_sampling
from hwnas.search.training.start import StartWeights
from hwnas.search_spaces import ChoiceSpace, SearchSpace, TrainingSpace
from hwnas.search_spaces.quantised import QuantisedSpace
from hwnas.search_spaces.registry import joint_space
from hwnas.stages.exits import check_exit_targets, check_exit_task
from hwnas.stages.goal import SearchGoal
from hwnas.stages.start_weights import start_weights

__all__ = ["RunInputs", "data_of", "evaluator_of", "needs_weights", "space_of_recipe", "task_of"]

_NONE = GivenObjects()


@dataclass(frozen=True)
class RunInputs:
    """Data, task and search space of a recipe.

    Attributes:
        recipe: Recipe that the others are made from.
        data: Images of the recipe.
        task: Task that networks learn from the images.
        searched: Space of candidates: the space of networks, and further roles.
        sampler: Factory of the sampler.
        evaluator: Factory of the evaluator.
        start: Trained weights that the supernet starts from; None for the space's own.
        strategy: Strategy that learns which networks to propose; None for the sampler.
    """

    recipe: Recipe
    data: ImageData
    task: Task
    searched: SearchSpace
    sampler: Callable[..., BaseSampler]
    evaluator: Callable[..., Evaluator]
    start: StartWeights | None = None
    strategy: Strategy | None = None

    @classmethod
    def prepare(
        cls,
        recipe: Recipe,
        recipe_folder: Path,
        objects: GivenObjects = _NONE,
        data: ImageData | None = None,
        reporter: Reporter | None = None,
    ) -> RunInputs:
        """Make the objects that a recipe names; raise if it cannot work.

        Args:
            recipe: Recipe to prepare.
            recipe_folder: Folder that relative paths start from.
            objects: Objects that the recipe has no names for.
            data: Images of the recipe, if they are loaded already.
            reporter: Reporter of the progress of loading; none if None.

        Raises:
            ConfigError: A name, an option or an objective of the recipe is wrong.
            DataError: The images are missing, damaged or too few.
        """
        sampler = given_object("sampler", recipe.search.sampler, objects.sampler)
        if sampler is None:
            sampler = SAMPLERS.find(recipe.search.sampler)
        make_sampler(sampler, recipe.seed, recipe.search.options)
        evaluator = evaluator_of(recipe, objects)
        SAMPLING.find(recipe.train.sampling, "train.sampling")
        data = data or data_of(recipe, recipe_folder, objects, reporter)
        task = task_of(recipe, data, objects)
        names = recipe.space.names
        space = space_of_recipe(recipe.space, data, task, recipe_folder, objects)
        _check_methods(names[0], space.network)
        check_identity(
            f"space {names[0]!r}",
            space.network,
            "fingerprint",
            hint="let its identity contain only values that are the same in every process",
        )
        check_exit_task(space.network, task)
        _check_outputs(names[0], space.network, task)
        if recipe.search.evaluator == "grow":
            check_growable(space.network)
        _check_folds(recipe, data)
        if needs_weights(evaluator) and not space.network.nests:
            raise ConfigError(
                f"space {names[0]!r}: its networks share no weights, so they have no supernet; "
                'set search.evaluator = "train"'
            )
        _check_roles(space.roles, evaluator, recipe, task, len(data.train))
        check_objectives(recipe.objective, {m.name: m.direction for m in task.metrics})
        goal = SearchGoal(recipe.objective)
        goal.check()
        _check_formats(goal, evaluator, recipe)
        strategy = _strategy(recipe, space, evaluator, len(data.train))
        _check_weights(space.network, recipe.train)
        _check_bits(space.network, goal)
        check_exit_targets(space.network, goal)
        _check_training(recipe.train, task, len(data.train))
        _check_teacher(recipe.train, data)
        if recipe.deploy.reference and task.meaning.is_map:
            raise ConfigError(
                "deploy.reference is true, but the reference network, MobileNetV3-Small, gives "
                "one vector per image and no maps; set it to false"
            )
        for name in recipe.deploy.formats:
            file_format(name, "deploy.formats")
        _check_augmentation(recipe.train, space.network, data)
        check_layer_rates(recipe.train, space.network)
        check_sampling(recipe.train.sampling, space.network)
        teacher_of(space.network, recipe.train)
        start = start_weights(
            *(recipe, recipe_folder, space.network, task.outputs),
            needs_weights(evaluator) or strategy is not None,
        )
        return cls(recipe, data, task, space, sampler, evaluator, start, strategy)

    @property
    def space(self) -> SearchSpace:
        """Space of the networks."""
        return self.searched.network

    def check_goal(self, goal: SearchGoal) -> None:
        """Check that the networks can ship for a further goal.

        Raises:
            ConfigError: A target is in a number format that they cannot ship in.
        """
        _check_bits(self.space, goal)
        check_exit_targets(self.space, goal)

    @property
    def recipe_space(self) -> TrainingSpace | None:
        """Space of training settings, if they differ between candidates; otherwise None."""
        found = self.searched.roles.get("recipe")
        return found if isinstance(found, TrainingSpace) else None

    @property
    def hash(self) -> str:
        """Hash of all that a trained network depends on, except its training settings."""
        return content_hash(self.space.fingerprint, self.task, self.data.fingerprint)


def task_of(recipe: Recipe, data: ImageData, objects: GivenObjects) -> Task:
    """Return the task of a recipe for its images.

    Raises:
        ConfigError: The name or an option is unknown, or an option is wrong.
        DataError: The task does not suit the targets.
    """
    name = recipe.task.name
    given = given_object("task", name, objects.task)
    if given is not None and not callable(given):
        return given
    factory = TASKS.find(name) if given is None else given

    def made() -> Task:
        task: Task = build("task", factory, recipe.task.options, data=data)
        return task

    task = made()
    check_identity(f"task {name!r}", task, again=made)
    return task


def space_of_recipe(
    config: SpaceConfig,
    data: ImageData,
    task: Task,
    recipe_folder: Path,
    objects: GivenObjects,
) -> SearchSpace:
    """Return the space of the candidates: the space of networks, and further roles.

    Args:
        config: Names and options of the spaces.
        data: Images, which give the networks their input shape.
        task: Task, which gives the networks their outputs.
        recipe_folder: Folder that relative paths start from.
        objects: Objects that the recipe has no names for.

    Raises:
        ConfigError: A name or an option is unknown, or the names cannot be combined.
    """
    name = config.names[0]
    network = given_object("space", name, objects.space)
    upscale = task.upscale if isinstance(task, UpscalingTask) else None
    return joint_space(
        config.names,
        data.image_shape,
        task.outputs,
        config.options,
        recipe_folder,
        network,
        task.meaning.is_map,
        upscale,
        task.task_outputs if isinstance(task, JointTask) else None,
    )


def _check_methods(name: str, space: SearchSpace) -> None:
    """Raise if an attribute of a user's space hides a method that hwnas calls."""
    for method in dir(SearchSpace):
        if callable(getattr(SearchSpace, method)) and not callable(getattr(space, method)):
            raise ConfigError(
                f"space {name!r}: its attribute {method!r} hides a method of SearchSpace; give the "
                "attribute another name"
            )


def _check_outputs(name: str, space: SearchSpace, task: Task) -> None:
    """Raise if the networks of a space do not have the task's output: a vector, or a map."""
    smallest = space.smallest()
    workload = space.workload(smallest)
    shape = workload.tensors[workload.outputs[0]].shape
    meaning = task.meaning
    upscale = task.upscale if isinstance(task, UpscalingTask) else 0
    wanted = tuple(side * upscale for side in space.input_shape(smallest)[1:])
    if (
        shape[1:2] == (task.outputs,)
        and meaning.fits(shape)
        and (shape[2:] == wanted or not upscale)
    ):
        return
    hint = "one vector per image; choose a space of such networks"
    if meaning.is_map:
        hint = (
            f"{task.outputs} maps; choose space mobilenet, resnet or hybrid, or give such a "
            'network with [space] name = "elastic" and model = "package.module:function"'
        )
    if meaning.kind == "next_byte_scores":
        hint = f"{task.outputs} scores after each byte of a window; choose space decoder"
    if upscale:
        hint = (
            f"pictures of {task.outputs} channels that are {upscale} times as large as their "
            "images; choose space edsr"
        )
    raise ConfigError(
        f"space {name!r} builds networks with outputs of shape {shape}, but task {task.name} "
        f"needs {hint}"
    )


def _check_roles(
    roles: Mapping[str, ChoiceSpace],
    evaluator: Callable[..., Evaluator],
    recipe: Recipe,
    task: Task,
    images: int,
) -> None:
    """Raise if the evaluator does not know a role, or if a training setting is impossible."""
    taken = inspect.signature(evaluator).parameters
    for role, space in roles.items():
        if role not in taken:
            raise ConfigError(
                f"space.name has the role {role!r}, which evaluator {recipe.search.evaluator!r} "
                f'does not use; set search.evaluator = "train", or leave {role!r} out'
            )
        if not isinstance(space, TrainingSpace):
            continue
        for name, choice in space.settings.items():
            for option in choice.options:
                _check_training(recipe.train.adjusted({name: option}), task, images)


def _check_augmentation(train: TrainConfig, space: SearchSpace, data: ImageData) -> None:
    """Raise if augmentation does not suit the images, their targets or the networks."""
    if data.kind in ("pictures", "tokens"):
        _check_pixel_changes(train, data.kind)
    if train.cutmix and data.kind in ("values", "boxes"):
        raise ConfigError(
            "train.cutmix pastes parts of other images, which is not defined for targets that are "
            f"{data.kind}; set it to 0"
        )
    if train.balanced and data.kind != "classes":
        raise ConfigError(
            f"train.balanced draws all classes equally often, but the targets are {data.kind}; set "
            "it to false"
        )
    channels = data.image_shape[2]
    if train.rand_augment and channels not in CHANNELS:
        raise ConfigError(
            f"train.rand_augment is for grey and colour images, but these have {channels} "
            "channels; set it to 0"
        )
    if train.augment is not None:
        _try_augmentation(train, data)
    _check_resolution(train, space)


def _check_pixel_changes(train: TrainConfig, kind: Literal["pictures", "tokens"]) -> None:
    """Raise if augmentation would change images, but not the pictures or tokens of them."""
    plain = TrainConfig(epochs=1)
    names = ["crop", "first_resolution", "cutout", "rand_augment", "erasing", "cutmix"]
    told = (
        "changes the pixels of images, but not of the pictures that networks make of them; leave "
        "it out (train.flip and train.shift_pixels suit pictures)"
    )
    if kind == "tokens":
        names += ["flip", "shift_pixels"]
        told = "is for images, not for text; leave it out"
    for name in names:
        if getattr(train, name) != getattr(plain, name):
            raise ConfigError(f"train.{name} {told}")


def _try_augmentation(train: TrainConfig, data: ImageData) -> None:
    """Raise if the user's augmentation fails for the first training images."""
    images, targets = data.train.take(np.arange(min(2, len(data.train))))
    augmentation = train.augmentation(data.kind)
    try:
        augmentation(images, targets, np.random.default_rng(0))
    except ConfigError:
        raise
    except Exception as error:  # a user's function may raise any exception; name it
        raise ConfigError(
            f"train.augment {train.augment!r} failed on the first training images "
            f"({type(error).__name__}: {error})"
        ) from error


def _check_resolution(train: TrainConfig, space: SearchSpace) -> None:
    """Raise if networks do not accept the smaller images at the start of the training."""
    if train.resolution(0) == 1:
        return
    largest = space.largest()
    channels, height, width = space.input_shape(largest)
    sides = [max(1, round(side * train.resolution(0))) for side in (height, width)]
    try:
        with torch.no_grad():
            space.build(largest).eval()(torch.zeros(1, channels, *sides))
    except RuntimeError as error:
        raise ConfigError(
            f"train.first_resolution is {train.first_resolution}, but the largest network does not "
            f"accept images of {sides[0]} x {sides[1]} pixels; set it to 1"
        ) from error


def _check_formats(goal: SearchGoal, evaluator: Callable[..., Evaluator], recipe: Recipe) -> None:
    """Raise if the evaluator does not know candidates in several number formats."""
    if goal.number_format is not None:
        return
    name = recipe.search.evaluator
    if name == "grow" or "number_format" not in inspect.signature(evaluator).parameters:
        raise ConfigError(
            f"the targets have the number formats {', '.join(goal.number_formats)}, but evaluator "
            f"{name!r} scores all networks in one; name targets in one format, or use another "
            "evaluator"
        )


def _strategy(
    recipe: Recipe, space: SearchSpace, evaluator: Callable[..., Evaluator], images: int
) -> Strategy | None:
    """Return the strategy of a recipe, if it has one.

    Raises:
        ConfigError: It does not suit the space, the evaluator, the plan or the images.
    """
    search = recipe.search
    if search.strategy is None:
        return None
    strategy = make_strategy(search.strategy, search.strategy_options)
    name = f'search.strategy is "{search.strategy}"'
    if recipe.run.minutes is not None:
        raise ConfigError(
            f"{name}, but the plan of run.minutes does not count with a strategy; leave one of "
            "them out"
        )
    if not space.network.nests:
        raise ConfigError(
            f"{name}, but the networks of space {space.network.name!r} share no weights; use "
            "another space"
        )
    if needs_weights(evaluator) and not strategy.trains_networks:
        raise ConfigError(
            f"{name}, whose weights belong to mixtures of operators, so the supernet does not "
            'score single networks; set search.evaluator = "train"'
        )
    strategy.check(space.network)
    strategy.held_out_images(images, recipe.train.batch_size)
    return strategy


def _check_weights(space: SearchSpace, train: TrainConfig) -> None:
    """Raise if a training for few bits has networks that are not quantised."""
    if isinstance(space, QuantisedSpace):
        return
    for name, plain in (("weight_distribution", 0.0), ("quantisation", "round")):
        if (value := getattr(train, name)) != plain:
            raise ConfigError(
                f"train.{name} is {value}, but the networks of space {space.name!r} are not "
                f'quantised; set it to {plain}, or use space.name = "quantised"'
            )


def _check_bits(space: SearchSpace, goal: SearchGoal) -> None:
    """Raise if networks with bit widths of their own do not ship in int8."""
    if not isinstance(space, QuantisedSpace):
        return
    if goal.number_formats != ("int8",):
        raise ConfigError(
            f"networks of space {space.name!r} ship in int8; let an objective name a target in it, "
            "such as cpu-onnxruntime-int8-b1-t1, and no target in another format"
        )
    if space.config.has_float:
        raise ConfigError(
            "space.weight_bits or space.activation_bits has 32, but costs are predicted for "
            "networks with all layers in int8; leave 32 out"
        )


def _check_folds(recipe: Recipe, data: ImageData) -> None:
    """Raise if there are folds that the evaluator does not use, or that no plan counts with.

    Raises:
        ConfigError: There are such folds.
        DataError: The images outside of a fold lack a class.
    """
    if not data.folds:
        return
    if recipe.run.minutes is not None:
        raise ConfigError(
            f"data.folds is {len(data.folds)}, but the plan of run.minutes does not count with "
            "folds; leave one of them out"
        )
    if recipe.search.evaluator != "train":
        raise ConfigError(
            f"data.folds is {len(data.folds)}, but search.evaluator is "
            f'"{recipe.search.evaluator}", which trains no network in each fold; set it to "train"'
        )
    assert data.rounds  # made here, so that unsuitable ones are refused before the run


def _check_training(train: TrainConfig, task: Task, images: int) -> None:
    smoothed(task, train.label_smoothing)
    distillation_loss(task, train.distillation_loss)
    make_optimizer(nn.Linear(1, 1), replace(train, layer_rates={}))
    if images < train.batch_size:
        raise ConfigError(
            f"train.batch_size is {train.batch_size}, but there are only {images} training images; "
            "lower it"
        )


def _check_teacher(train: TrainConfig, data: ImageData) -> None:
    if train.teacher_sees == "plain" and data.kind in ("masks", "boxes", "pictures"):
        raise ConfigError(
            f"train.teacher_sees is 'plain', but {data.kind} are shifted and mirrored with their "
            "images, so the teacher's outputs for the plain image do not match them; set it to "
            "'augmented'"
        )


def data_of(
    recipe: Recipe,
    recipe_folder: Path,
    objects: GivenObjects,
    reporter: Reporter | None = None,
) -> ImageData:
    """Return the images of a recipe; arguments as in `RunInputs.prepare`."""
    given = given_object("data", recipe.data.source, objects.data)
    if given is not None:
        return given
    counter = (reporter or SilentReporter()).counter("decoded images")
    return load_data(recipe.data, recipe_folder, recipe.seed, on_decoded=counter)


def evaluator_of(recipe: Recipe, objects: GivenObjects) -> Callable[..., Evaluator]:
    """Return the evaluator factory of a recipe.

    Raises:
        ConfigError: There is no such evaluator.
    """
    name = recipe.search.evaluator
    given = given_object("evaluator", name, objects.evaluator)
    return EVALUATORS.find(name) if given is None else given


def needs_weights(evaluator: Callable[..., Evaluator]) -> bool:
    """Return whether an evaluator takes the weights of a trained supernet."""
    return "weights" in inspect.signature(evaluator).parameters
