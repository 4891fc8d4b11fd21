"""Recipe of a search that a Python program describes with objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from optuna.samplers import BaseSampler
from torch import nn

from hwnas.api.elastic_model import ElasticModel
from hwnas.api.images import Data, GivenImages
from hwnas.api.object_names import importable_name, returning, shipped_name
from hwnas.api.options import named
from hwnas.api.settings import flat_settings, objective_table, set_key
from hwnas.config_class import given_fields
from hwnas.errors import ConfigError
from hwnas.experiment import Experiment
from hwnas.experiment.from_images import DEFAULT_TARGET, TaskKind, objective_of, task_of
from hwnas.given_objects import GivenObjects, unnamed
from hwnas.recipe import Named, parse_recipe
from hwnas.recipe.text import recipe_text
from hwnas.search import EVALUATORS, SAMPLERS, TASKS, Evaluator, Objective, Task, TrainConfig
from hwnas.search.strategies import STRATEGIES, Strategy
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.registry import ROLES, SPACES

__all__ = [
    "GivenEvaluator",
    "GivenSampler",
    "GivenSpace",
    "GivenStrategy",
    "GivenTask",
    "SearchDescription",
]

GivenSpace: TypeAlias = (
    str | Named | SearchSpace | ElasticModel | nn.Module | Callable[..., SearchSpace | Named]
)
GivenTask: TypeAlias = str | Named | Task | Callable[..., Task | Named]
GivenStrategy: TypeAlias = str | Named | Callable[..., Named] | type[Strategy]
GivenSampler: TypeAlias = str | Named | BaseSampler | Callable[..., BaseSampler | Named]
GivenEvaluator: TypeAlias = str | Evaluator | Callable[..., Evaluator]


_LATENCY = Objective("latency_ms", "minimize", DEFAULT_TARGET)


@dataclass(frozen=True)
class SearchDescription:
    """Search as a Python program describes it; the attributes are the arguments of `hwnas.search`.

    Attributes:
        data: Images.
        objectives: Objectives; None for the task's first metric and ``cost``.
        space: Space of networks, or a list of it and of further roles; None for the default.
        task: Task; None for the one that the targets of the images suggest.
        training: Settings of the training; None leaves them to the plan for ``minutes``.
        minutes: Time budget of the whole job, in minutes.
        sampler: Sampler; None for the default.
        strategy: Strategy that takes the place of a sampler; None for a sampler.
        evaluator: Evaluator; None for the default.
        trials: Number of candidates to evaluate; None for the default.
        seed: Seed of all random numbers.
        name: Name of the run; None for that of the images.
        settings: Further settings of the recipe, by dotted key.
        costs: Further objectives, if ``objectives`` is None.
    """

    data: Data
    objectives: Sequence[Objective] | None = None
    space: GivenSpace | Sequence[GivenSpace] | None = None
    task: GivenTask | None = None
    training: TrainConfig | None = None
    minutes: float | None = None
    sampler: GivenSampler | None = None
    strategy: GivenStrategy | None = None
    evaluator: GivenEvaluator | None = None
    trials: int | None = None
    seed: int = 0
    name: str | None = None
    settings: Mapping[str, Any] | None = None
    costs: tuple[Objective, ...] = (_LATENCY,)

    def experiment(self, folder: Path | None) -> Experiment:
        """Return the experiment of this description.

        Args:
            folder: Folder of the run; ``runs/<name>`` if None.

        Raises:
            ConfigError: An argument is wrong; the message says which.
            DataError: The images are missing, or of the wrong type or shape.
        """
        if self.training is None and self.minutes is None:
            raise ConfigError(
                "the search has neither minutes, the budget of the whole job, nor training; give "
                "one, such as minutes=45 or training=hwnas.TrainConfig(epochs=30)"
            )
        if folder is None and self.name is not None:
            folder = Path("runs", self.name)
        images = GivenImages.of(self.data, folder, self.minutes)
        tables: dict[str, Any] = {"name": self.name or images.name, "seed": self.seed}
        if self.minutes is not None:
            tables["run"] = {"minutes": self.minutes}
        tables["data"] = {"source": images.table["source"]}
        objects: dict[str, Any] = {} if images.data is None else {"data": images.data}
        parts = (self._space, self._sampler, self._strategy, self._evaluator)
        for described, given in (self._task(images.kind), *(part() for part in parts)):
            for table, values in described.items():
                tables[table] = {**tables.get(table, {}), **values}
            objects |= given
        tables["objective"] = [objective_table(each) for each in self._objectives(images.kind)]
        if self.training is not None:
            tables["train"] = given_fields(_checked(self.training, TrainConfig, "training"))
        if self.trials is not None:
            tables.setdefault("search", {})["trials"] = self.trials
        for key, value in flat_settings(self.settings or {}).items():
            set_key(tables, key, value)
        tables["data"] = {**images.table, **tables["data"]}
        recipe, text = parse_recipe(recipe_text(tables), where="the search")
        return Experiment(recipe, text, Path.cwd(), GivenObjects(**objects), images.arrays)

    def _objectives(self, kind: TaskKind) -> Sequence[Objective]:
        if self.objectives is None:
            task = named(self.task)
            main = _main_objective(task_of(kind) if task is None else task)
            return (main, *self.costs)
        if isinstance(self.objectives, Objective | str) or not isinstance(
            self.objectives, Sequence
        ):
            raise ConfigError(
                f"objectives is {self.objectives!r}; expected a list of hwnas.maximize(...) and "
                "hwnas.minimize(...)"
            )
        return self.objectives

    def _task(self, kind: TaskKind) -> _Described:
        if self.task is None:
            name = task_of(kind)
            return ({} if name == "classification" else {"task": {"name": name}}), {}
        return _described("task", self.task, TASKS)

    def _space(self) -> _Described:
        several = isinstance(self.space, Sequence) and not isinstance(self.space, str)
        if several and not self.space:
            raise ConfigError("space is an empty list; give a space of networks, or leave it out")
        first, *roles = self.space if several else (self.space,)  # type: ignore[misc]
        if isinstance(first, nn.Module):
            first = ElasticModel(first)
        named, objects = _described("space", first, SPACES)
        if not roles:
            return named, objects
        table = {"name": "mobilenet", **named.get("space", {})}
        for role in roles:
            name, options = _role(role)
            table["name"] = [*_listed(table["name"]), name]
            if options:
                table[name.rpartition(":")[2]] = options
        return {"space": table}, objects

    def _sampler(self) -> _Described:
        named, objects = _described("sampler", self.sampler, SAMPLERS)
        if "sampler" not in named:
            return named, objects
        table = named["sampler"]
        search = {"sampler": table.pop("name")} | ({"options": table} if table else {})
        if isinstance(sampler := objects.get("sampler"), BaseSampler):
            objects = {"sampler": returning(sampler)}
        return {"search": search}, objects

    def _strategy(self) -> _Described:
        found, objects = _described("strategy", self.strategy, STRATEGIES)
        if "strategy" not in found:
            return found, objects
        if objects:
            raise ConfigError(
                f"strategy is {self.strategy!r}, which other processes cannot import by a name; "
                "give a class of a module, or hwnas.strategies.GDAS(...)"
            )
        table = dict(found["strategy"])
        search = {"strategy": table.pop("name")}
        return {"search": search | ({"strategy_options": table} if table else {})}, {}

    def _evaluator(self) -> _Described:
        evaluator: Any = self.evaluator
        if hasattr(evaluator, "evaluate") and not isinstance(evaluator, type):
            evaluator = returning(evaluator)
        found, objects = _described("evaluator", evaluator, EVALUATORS)
        if "evaluator" not in found:
            return found, objects
        if len(found["evaluator"]) > 1:
            raise ConfigError(
                f"evaluator {found['evaluator']['name']!r} has no options; set those of its "
                "training by training=..., or give a functools.partial of a factory of your own"
            )
        return {"search": {"evaluator": found["evaluator"]["name"]}}, objects


_Described: TypeAlias = tuple[dict[str, dict[str, Any]], dict[str, Any]]
"""Tables of a recipe by name, and objects without a name by kind."""


def _described(kind: str, given: object, registry: Mapping[str, Any]) -> _Described:
    """Return the table ``name`` and options of a part, or the part itself if it has no name."""
    given = named(given)
    if given is None:
        return {}, {}
    if isinstance(given, partial) and not given.args and (name := _name(given.func, registry)):
        given = Named(name, given.keywords)
    if isinstance(given, Named):
        return {kind: given.table}, {}
    if isinstance(given, str):
        return {kind: {"name": given}}, {}
    name = _name(given, registry)
    if name is not None:
        return {kind: {"name": name}}, {}
    if not callable(given) and not isinstance(given, _PARTS.get(kind, object)):
        raise ConfigError(
            f"{kind} is {given!r}; expected a name, an object of hwnas.{_MODULES[kind]}, or one of "
            "your own"
        )
    return {kind: {"name": unnamed(kind)}}, {kind: given}


_PARTS: Mapping[str, Any] = {"task": Task, "space": SearchSpace, "sampler": BaseSampler}
_MODULES = {
    "task": "tasks",
    "space": "spaces",
    "sampler": "samplers",
    "strategy": "strategies",
    "evaluator": "Evaluator",
}


def _name(given: object, registry: Mapping[str, Any]) -> str | None:
    """Return the name by which other processes find an object; None if it has none."""
    return shipped_name(given, registry) or importable_name(given)


def _checked(value: Any, kind: type, name: str) -> Any:
    """Return an argument of a type, or raise if it is of another one."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name} is {value!r}; expected hwnas.{kind.__name__}(...)")
    return value


def _role(given: object) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a further role of the candidates, and its options."""
    given = named(given)
    if isinstance(given, Named):
        return given.name, given.options
    name = given if isinstance(given, str) else shipped_name(given, ROLES) or importable_name(given)
    if name is None:
        raise ConfigError(
            f"space has the role {given!r}, which has no name; give a function of a module, or "
            "hwnas.spaces.TrainingSettings(...)"
        )
    return name, {}


def _listed(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _main_objective(task: object) -> Objective:
    """Return the objective for the first metric of a task.

    Args:
        task: Task of `hwnas.tasks`, its name, or a `Task`.
    """
    name = task.name if isinstance(task, Named) else task
    if isinstance(name, str):
        if ":" not in name:
            TASKS.find(name, "task")  # raises an error that names the closest task
        main = objective_of(name)
        chosen = task.options.get("metrics") if isinstance(task, Named) else None
        if main is not None and (chosen is None or main.metric in chosen):
            return main
    metrics = getattr(task, "metrics", None)
    if not metrics or callable(metrics):
        raise ConfigError(
            "objectives are needed for a task of your own or with other metrics, such as "
            '[hwnas.maximize("METRIC"), hwnas.minimize("latency_ms", target="TARGET")]'
        )
    return Objective(metrics[0].name, metrics[0].direction)
