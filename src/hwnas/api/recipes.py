"""Recipe of a search that a Python program describes with objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from optuna.samplers import BaseSampler
from torch import nn

from hwnas.api.elastic_model import ElasticModel
from hwnas.api.images import Data, GivenImages
from hwnas.api.object_names import importable_name, returning, shipped_name
from hwnas.errors import ConfigError
from hwnas.experiment import Experiment
from hwnas.experiment.from_images import DEFAULT_TARGET
from hwnas.given_objects import GivenObjects, unnamed
from hwnas.hashing import differing_fields
from hwnas.recipe import Named, parse_recipe
from hwnas.recipe.text import recipe_text
from hwnas.search import EVALUATORS, SAMPLERS, TASKS, Evaluator, Objective, Task, TrainConfig
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.registry import ROLES, SPACES

__all__ = [
    "GivenEvaluator",
    "GivenSampler",
    "GivenSpace",
    "GivenStrategy",
    "GivenTask",
    "SearchDescription",
    "main_objective",
]

GivenSpace: TypeAlias = (
    str | Named | SearchSpace | ElasticModel | nn.Module | Callable[..., SearchSpace]
)
GivenTask: TypeAlias = str | Named | Task | Callable[..., Task]
GivenStrategy: TypeAlias = str | Named
GivenSampler: TypeAlias = str | Named | BaseSampler | Callable[..., BaseSampler]
GivenEvaluator: TypeAlias = str | Callable[..., Evaluator]

_MAIN_METRICS: Mapping[str, tuple[str, Literal["maximize", "minimize"]]] = {
    "classification": ("accuracy", "maximize"),
    "multilabel": ("average_precision", "maximize"),
    "regression": ("root_mean_squared_error", "minimize"),
    "segmentation": ("mean_iou", "maximize"),
    "detection": ("map", "maximize"),
    "super-resolution": ("psnr_db", "maximize"),
    "language-model": ("perplexity", "minimize"),
}
_TABLES = ("data", "deploy", "predictor", "run", "search", "space", "task", "train")


@dataclass(frozen=True)
class SearchDescription:
    """Search as a Python program describes it; the attributes are the arguments of `hwnas.search`.

    Attributes:
        data: Images.
        objectives: Objectives; None for the task's first metric and latency on this machine's CPU.
        space: Space of networks, or a list of it and of further roles; None for the default.
        task: Task; None for classification.
        training: Settings of the training; None leaves them to the plan for ``minutes``.
        minutes: Time budget of the whole job, in minutes.
        sampler: Sampler; None for the default.
        strategy: Strategy that takes the place of a sampler; None for a sampler.
        evaluator: Evaluator; None for the default.
        trials: Number of candidates to evaluate; None for the default.
        seed: Seed of all random numbers.
        name: Name of the run; None for that of the images.
        settings: Further settings of the recipe, by dotted key.
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
        for part in (self._task, self._space, self._sampler, self._strategy, self._evaluator):
            named, given = part()
            for table, values in named.items():
                tables[table] = {**tables.get(table, {}), **values}
            objects |= given
        tables["objective"] = [_objective_table(each) for each in self._objectives()]
        if self.training is not None:
            tables["train"] = differing_fields(self.training)
        if self.trials is not None:
            tables.setdefault("search", {})["trials"] = self.trials
        for key, value in (self.settings or {}).items():
            _set(tables, key, value)
        tables["data"] = {**images.table, **tables["data"]}
        recipe, text = parse_recipe(recipe_text(tables), where="the search")
        return Experiment(recipe, text, Path.cwd(), GivenObjects(**objects), images.arrays)

    def _objectives(self) -> Sequence[Objective]:
        if self.objectives is not None:
            return self.objectives
        return (main_objective(self.task), Objective("latency_ms", "minimize", DEFAULT_TARGET))

    def _task(self) -> _Described:
        return _described("task", self.task, TASKS)

    def _space(self) -> _Described:
        several = isinstance(self.space, Sequence) and not isinstance(self.space, str)
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
        if self.strategy is None:
            return {}, {}
        named = Named(self.strategy) if isinstance(self.strategy, str) else self.strategy
        options = {"strategy_options": dict(named.options)} if named.options else {}
        return {"search": {"strategy": named.name, **options}}, {}

    def _evaluator(self) -> _Described:
        named, objects = _described("evaluator", self.evaluator, EVALUATORS)
        if "evaluator" not in named:
            return named, objects
        return {"search": {"evaluator": named["evaluator"]["name"]}}, objects


_Described: TypeAlias = tuple[dict[str, dict[str, Any]], dict[str, Any]]
"""Tables of a recipe by name, and objects without a name by kind."""


def _described(kind: str, given: object, registry: Mapping[str, Any]) -> _Described:
    """Return the table ``name`` and options of a part, or the part itself if it has no name."""
    if given is None:
        return {}, {}
    if isinstance(given, Named):
        return {kind: given.table}, {}
    if isinstance(given, str):
        return {kind: {"name": given}}, {}
    name = shipped_name(given, registry) or importable_name(given)
    if name is not None:
        return {kind: {"name": name}}, {}
    return {kind: {"name": unnamed(kind)}}, {kind: given}


def _role(given: object) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a further role of the candidates, and its options."""
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


def main_objective(task: GivenTask | None) -> Objective:
    """Return the objective for the first metric of a task."""
    name = task.name if isinstance(task, Named) else "classification" if task is None else task
    if isinstance(name, str) and name in _MAIN_METRICS:
        metric, direction = _MAIN_METRICS[name]
        if metric in (task.options.get("metrics", metric) if isinstance(task, Named) else metric):
            return Objective(metric, direction)
    metrics = getattr(task, "metrics", None)
    if not metrics or callable(metrics):
        raise ConfigError(
            "objectives are needed for a task of your own or with other metrics, such as "
            '[hwnas.maximize("METRIC"), hwnas.minimize("latency_ms", target="TARGET")]'
        )
    return Objective(metrics[0].name, metrics[0].direction)


def _objective_table(objective: object) -> dict[str, Any]:
    if not isinstance(objective, Objective):
        raise ConfigError(
            f"objectives has {objective!r}; expected hwnas.maximize(...) and hwnas.minimize(...)"
        )
    return differing_fields(objective)


def _set(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of a recipe, or a whole table from a config object or a mapping."""
    table, _, rest = key.partition(".")
    if not rest:
        whole = differing_fields(value) if is_dataclass(value) else value
        if table not in _TABLES or not isinstance(whole, Mapping):
            raise ConfigError(
                f"settings has {key!r}; expected a dotted key, such as 'search.batch', or the name "
                f"of a table with a config object: {', '.join(_TABLES)}"
            )
        for name, each in whole.items():
            _set(tables, f"{table}.{name}", each)
        return
    *path, last = key.split(".")
    place = tables
    for name in path:
        place = place.setdefault(name, {})
    if last in place:
        raise ConfigError(f"{key} is in settings, but another argument sets it as well; remove one")
    place[last] = value
