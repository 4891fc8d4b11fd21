"""Objects that all stages of a run share: data, task, space, goals, stages and the job itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from optuna.samplers import BaseSampler
from torch import Tensor

from hwnas.content import content_hash
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.given_objects import GivenObjects, given_object
from hwnas.identity import Identity
from hwnas.plugin import build
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS
from hwnas.progress import ProgressCallback, Reporter, make_reporter
from hwnas.recipe import Recipe, SpaceConfig
from hwnas.recipe_keys import (
    RecipeStage,
    code_of,
    continues,
    later_than,
    parts_of,
    settings_of,
)
from hwnas.run_folder import RunFolder
from hwnas.search import EVALUATORS, TASKS
from hwnas.search.data.image_data import ImageData, load_data
from hwnas.search.evaluation.evaluate import Evaluator, Fidelity, KeepsWeights
from hwnas.search.evaluation.lineage import GrowEvaluator, Lineage, check_growable
from hwnas.search.evaluation.own_identity import check_identity, check_key
from hwnas.search.evaluation.registry import OwnCodeEvaluator
from hwnas.search.objectives.objective import Objective, check_objectives
from hwnas.search.samplers import SAMPLERS, make_sampler
from hwnas.search.tasks.task import Task, smoothed
from hwnas.search.training import TrainConfig, teacher_of
from hwnas.search.training.distillation import distillation_loss
from hwnas.search.training.sampling import SAMPLING, check_sampling
from hwnas.search_spaces import Candidate, ChoiceSpace, SearchSpace, TrainingSpace
from hwnas.search_spaces.registry import joint_space

__all__ = [
    "Job",
    "RunInputs",
    "RunStage",
    "SearchGoal",
    "data_of",
    "evaluator_of",
    "goals_of",
    "needs_weights",
    "serves",
    "space_of_recipe",
]


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
    """

    recipe: Recipe
    data: ImageData
    task: Task
    searched: SearchSpace
    sampler: Callable[..., BaseSampler]
    evaluator: Callable[..., Evaluator]

    @classmethod
    def prepare(
        cls,
        recipe: Recipe,
        recipe_folder: Path,
        cache: Path,
        objects: GivenObjects = _NONE,
        data: ImageData | None = None,
    ) -> RunInputs:
        """Make the objects that a recipe names; raise if it cannot work.

        Args:
            recipe: Recipe to prepare.
            recipe_folder: Folder that relative paths start from.
            cache: Folder for decoded images of large data sets.
            objects: Objects that the recipe has no names for.
            data: Images of the recipe, if they are loaded already.

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
        data = data or data_of(recipe, recipe_folder, cache, objects)
        task = _task(recipe, data, objects)
        names = recipe.space.names
        space = space_of_recipe(recipe.space, data, task.outputs, recipe_folder, objects)
        check_identity(
            f"space {names[0]!r}",
            space.network,
            "fingerprint",
            hint="let its identity contain only values that are the same in every process",
        )
        _check_outputs(names[0], space.network, task)
        if recipe.search.evaluator == "grow":
            check_growable(space.network)
        if needs_weights(evaluator) and not space.network.nests:
            raise ConfigError(
                f"space {names[0]!r}: its networks share no weights, so they have no supernet; "
                'set search.evaluator = "train"'
            )
        _check_roles(space.roles, evaluator, recipe, task, len(data.train))
        check_objectives(recipe.objective, {m.name: m.direction for m in task.metrics})
        for metric, target in SearchGoal(recipe.objective).costs:
            DEVICE_METRICS[metric].check(searchable(target))
        _check_training(recipe.train, task, len(data.train))
        _check_teacher(recipe.train, data)
        if recipe.deploy.reference and data.kind == "masks":
            raise ConfigError(
                "deploy.reference is true, but the reference network, MobileNetV3-Small, gives "
                "one vector per image and no mask; set it to false"
            )
        _check_augmentation(recipe.train, space.network, data)
        check_sampling(recipe.train.sampling, space.network)
        teacher_of(space.network, recipe.train)
        return cls(recipe, data, task, space, sampler, evaluator)

    @property
    def space(self) -> SearchSpace:
        """Space of the networks."""
        return self.searched.network

    @property
    def recipe_space(self) -> TrainingSpace | None:
        """Space of training settings, if they differ between candidates; otherwise None."""
        found = self.searched.roles.get("recipe")
        return found if isinstance(found, TrainingSpace) else None

    @property
    def hash(self) -> str:
        """Hash of all that a trained network depends on, except its training settings."""
        return content_hash(self.space.fingerprint, self.task, self.data.fingerprint)


def _task(recipe: Recipe, data: ImageData, objects: GivenObjects) -> Task:
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
    outputs: int,
    recipe_folder: Path,
    objects: GivenObjects,
) -> SearchSpace:
    """Return the space of the candidates: the space of networks, and further roles.

    Args:
        config: Names and options of the spaces.
        data: Images, which give the networks their input shape.
        outputs: Length of the output vector.
        recipe_folder: Folder that relative paths start from.
        objects: Objects that the recipe has no names for.

    Raises:
        ConfigError: A name or an option is unknown, or the names cannot be combined.
    """
    name = config.names[0]
    network = given_object("space", name, objects.space)
    shape, options = data.image_shape, config.options
    return joint_space(config.names, shape, outputs, options, recipe_folder, network)


def _check_outputs(name: str, space: SearchSpace, task: Task) -> None:
    """Raise if the networks of a space do not have the task's output: a vector, or a map."""
    workload = space.workload(space.smallest())
    shape = workload.tensors[workload.outputs[0]].shape
    meaning = task.meaning
    if shape[1:2] == (task.outputs,) and meaning.fits(shape):
        return
    hint = "one vector per image; choose a space of such networks"
    if meaning.kind == "pixel_class_scores":
        hint = (
            'one map per class; give such a network with [space] name = "elastic" and '
            'model = "package.module:function"'
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
    """Raise if augmentation does not suit the targets, or if networks reject smaller images."""
    if train.cutmix and data.kind == "values":
        raise ConfigError(
            "train.cutmix pastes parts of other images, which is not defined for targets that are "
            "values; set it to 0"
        )
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


def _check_training(train: TrainConfig, task: Task, images: int) -> None:
    smoothed(task, train.label_smoothing)
    distillation_loss(task, train.distillation_loss)
    if images < train.batch_size:
        raise ConfigError(
            f"train.batch_size is {train.batch_size}, but there are only {images} training images; "
            "lower it"
        )


def _check_teacher(train: TrainConfig, data: ImageData) -> None:
    if train.teacher_sees == "plain" and data.kind == "masks":
        raise ConfigError(
            "train.teacher_sees is 'plain', but masks are shifted and mirrored with their "
            "images, so the teacher's outputs for the plain image do not match them; set it to "
            "'augmented'"
        )


def searchable(target: str) -> Target:
    """Parse the name of a target that networks can be searched for.

    Raises:
        ConfigError: The target is unknown, or a bundle for it would hold another network than the
            one that was measured.
    """
    parsed = Target.parse(target)
    if parsed.format != "fp32":
        plain = Target(parsed.device).name
        raise ConfigError(
            f"target {parsed.name}: bundles hold fp32 networks, so they would differ from what "
            f"was measured; search for {plain}, and time {parsed.format} with `hwnas measure`"
        )
    return parsed


@dataclass(frozen=True)
class SearchGoal:
    """Goal of one search of a run.

    Attributes:
        objectives: Objectives of the search.
        target: Target that was added to a finished run; None for the run's own search.
    """

    objectives: tuple[Objective, ...]
    target: str | None = None

    @classmethod
    def specialised(cls, recipe: Recipe, target: str) -> SearchGoal:
        """Return the goal with the recipe's objectives, those on devices on another target.

        Of several objectives of one metric, the first counts. Its limit is kept, except a limit on
        a sum over targets, which does not apply to a single target.

        Raises:
            ConfigError: The target is unknown, or no objective of the recipe has a target.
        """
        name = searchable(target).name
        moved: dict[str, Objective] = {}
        for each in recipe.objective:
            if each.all_targets and each.metric not in moved:
                limit = None if each.reduce == "sum" else each.limit
                moved[each.metric] = replace(
                    each, target=name, limit=limit, targets=(), reduce=None
                )
        if not moved:
            raise ConfigError(
                "no objective of the recipe has a target, such as latency_ms, so another target "
                "has no effect"
            )
        others = tuple(o for o in recipe.objective if not o.all_targets)
        return cls((*others, *moved.values()), name)

    @property
    def study_name(self) -> str:
        """Name of the Optuna study."""
        return "search" if self.target is None else f"search@{self.target}"

    def stage(self, name: str) -> str:
        """Return the name of one of the goal's stages in the run's record."""
        return name if self.target is None else f"{name}@{self.target}"

    @property
    def targets(self) -> list[str]:
        """Targets that the objectives name, each once."""
        return list(dict.fromkeys(target for o in self.objectives for target in o.all_targets))

    @property
    def costs(self) -> list[tuple[str, str]]:
        """Metrics on targets that the objectives name, each pair once."""
        return list(dict.fromkeys((o.metric, t) for o in self.objectives for t in o.all_targets))


def goals_of(folder: RunFolder) -> list[SearchGoal]:
    """Return the run's own goal, then the goals of the targets that were added to it."""
    added = [SearchGoal.specialised(folder.recipe, target) for target in folder.specialised]
    return [SearchGoal(folder.recipe.objective), *added]


def data_of(recipe: Recipe, recipe_folder: Path, cache: Path, objects: GivenObjects) -> ImageData:
    """Return the images of a recipe; arguments as in `RunInputs.prepare`."""
    given = given_object("data", recipe.data.source, objects.data)
    return load_data(recipe.data, recipe_folder, recipe.seed, cache) if given is None else given


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


def serves(before: str, name: str, own_targets: Collection[str]) -> bool:
    """Return whether a stage is part of the goal that another stage belongs to.

    Args:
        before: Name of the stage in question.
        name: Name of a stage of the goal.
        own_targets: Targets of the run's own goal.
    """
    stage, place = parts_of(before)
    target = parts_of(name)[1]
    if stage == "calibrate":
        return place == target or (target is None and place in own_targets)
    return stage in ("train", "ranking") or place == target


@dataclass(frozen=True)
class RunStage:
    """Step of a run.

    Attributes:
        name: Name in the run's record.
        identity: Identity of all inputs of the stage.
        work: Function that does the work; its argument is the callback for the progress.
        made: Function that returns whether the results exist; users remove damaged ones.
        adopt: Function that records the identity in results of an older hwnas, which carry none. It
            returns the identity that they were made with, if it is known; otherwise None, and they
            count as made with the current inputs.
        continued: Names of inputs with which the stage continues from its existing results, beside
            the keys of the recipe of this kind.
    """

    name: str
    identity: Identity
    work: Callable[[ProgressCallback], None]
    made: Callable[[], bool]
    adopt: Callable[[], Identity | None] = lambda: None
    continued: Sequence[str] = ()


@dataclass(frozen=True)
class Job:
    """Run that is being worked on.

    Attributes:
        run_inputs: Data, task and space.
        folder: Folder of the results.
        reporter: Reporter of progress and notes to the user.
    """

    run_inputs: RunInputs
    folder: RunFolder
    reporter: Reporter

    @classmethod
    def of(cls, folder: RunFolder) -> Job:
        """Return the job of an opened run."""
        cache = folder.path / "cache"
        run_inputs = RunInputs.prepare(folder.recipe, folder.recipe_folder, cache, folder.objects)
        return cls(run_inputs, folder, make_reporter())

    @property
    def recipe(self) -> Recipe:
        """Recipe of the run."""
        return self.run_inputs.recipe

    @property
    def fidelity(self) -> Fidelity:
        """Fidelity of the evaluations of the search."""
        return Fidelity(self.recipe.search.validation_images)

    @property
    def needs_supernet(self) -> bool:
        """True if the evaluator takes the weights of a trained supernet."""
        return needs_weights(self.run_inputs.evaluator)

    @property
    def _evaluator_folder(self) -> Path:
        return self.folder.path.absolute() / "evaluator"

    @property
    def lineage(self) -> Lineage | None:
        """Networks that the search trained, if its evaluator keeps them."""
        if self.run_inputs.evaluator is not GrowEvaluator:
            return None
        evaluator = self._plain_evaluator(None)
        assert isinstance(evaluator, GrowEvaluator)
        return evaluator.lineage

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return the weights that the search trained for a candidate; None if they are not kept."""
        evaluator = self._plain_evaluator(None)
        return evaluator.kept_weights(candidate) if isinstance(evaluator, KeepsWeights) else None

    def identity(self, stage: RecipeStage, **inputs: Any) -> Identity:
        """Return the identity of the inputs of a stage.

        Args:
            stage: Stage whose settings and own code in the recipe count.
            inputs: All other inputs; see `Identity.of`.
        """
        recipe = self.recipe
        return Identity.of({**settings_of(recipe, stage), **code_of(recipe, stage)}, **inputs)

    @property
    def learned(self) -> dict[str, str]:
        """Inputs that all learned results depend on: the space, the task and the images."""
        i = self.run_inputs
        return {
            "space": i.searched.fingerprint,
            "task": content_hash(i.task),
            # The first part is known without decoding an image; see `staleness`.
            "data": f"{i.data.manifest.fingerprint} {i.data.fingerprint}",
        }

    @property
    def training(self) -> Identity:
        """Identity of the inputs of the trained supernet."""
        return self.identity("train", **self.learned)

    @property
    def continued_training(self) -> Identity:
        """Identity that a checkpoint and a training that continues from it must share."""
        recipe = self.recipe
        return Identity.of(
            {"seed": recipe.seed},
            **self.learned,
            **code_of(recipe, "train"),
            train=recipe.train.continued_identity,
        )

    def evaluator(self, weights: Mapping[str, Any] | None) -> Evaluator:
        """Return the evaluator of the recipe, called with the arguments that it takes.

        If the user's own code affects scores, it is part of the evaluator's key.
        """
        evaluator = self._plain_evaluator(weights)
        check_key(self.recipe.search.evaluator, evaluator)
        code = code_of(self.recipe, "search")
        return OwnCodeEvaluator(evaluator, code) if code else evaluator

    def _plain_evaluator(self, weights: Mapping[str, Any] | None) -> Evaluator:
        i = self.run_inputs
        known: dict[str, Any] = {"space": i.space, "task": i.task, "data": i.data}
        known |= {"train": self.recipe.train, "seed": self.recipe.seed, "weights": weights}
        known |= {"folder": self._evaluator_folder, **i.searched.roles}
        wanted = inspect.signature(self.run_inputs.evaluator).parameters
        return self.run_inputs.evaluator(**{k: v for k, v in known.items() if k in wanted})

    def is_done(self, stage: RunStage) -> bool:
        """Return whether a stage was finished with the current inputs and its results exist."""
        return self.folder.is_done(stage.name, stage.identity) and stage.made()

    def perform(self, stage: RunStage) -> None:
        """Perform a stage, unless it is done."""
        if self.is_done(stage):
            self.folder.confirm(stage.name)
            return
        self._doubt_later(stage.name)
        record = self.folder.stages.get(stage.name)
        stored = record.identity if record is not None else None
        if stored is not None and (changes := stage.identity.changes_since(stored)):
            goes_on = all(continues(c.name) or c.name in stage.continued for c in changes)
            why = "; ".join(change.text for change in changes)
            what = "continues" if goes_on else "is done again"
            self.reporter.note(f"{stage.name} {what}: {why}", stage=stage.name)
        with self.reporter.stage(stage.name) as advance:
            self.folder.perform(stage.name, stage.identity, lambda: stage.work(advance))

    def _doubt_later(self, stage: str) -> None:
        """Record that all stages that use results of this stage have to be checked again."""
        later, own = later_than(parts_of(stage)[0]), SearchGoal(self.recipe.objective).targets
        self.folder.doubt(
            name
            for name in self.folder.stages
            if parts_of(name)[0] in later and serves(stage, name, own)
        )
