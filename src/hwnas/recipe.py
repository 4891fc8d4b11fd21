"""Recipe of a run: the TOML file of its settings, as typed values."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pydantic
import tomlkit
from tomlkit.exceptions import TOMLKitError

from hwnas.errors import ConfigError
from hwnas.hashing import content_hash, differing_fields
from hwnas.plugin import closest
from hwnas.recipe_text import set_by_text
from hwnas.search.data.image_data import DataConfig
from hwnas.search.engine.placement import (
    Node,
    WorkerResources,
    check_request,
    evaluator_resources,
)
from hwnas.search.engine.rungs import Rungs
from hwnas.search.objectives.objective import Objective
from hwnas.search.study.storage import check_storage
from hwnas.search.training import TrainConfig

__all__ = [
    "ComputeConfig",
    "DeployConfig",
    "Named",
    "PredictorConfig",
    "Recipe",
    "RunConfig",
    "SearchConfig",
    "SpaceConfig",
    "compute_values",
    "parse_recipe",
    "read_recipe",
]


def _shift_of_values(document: tomlkit.TOMLDocument) -> None:
    """Set the default of schema 1 for regression: images are shifted by one pixel."""
    task, train = document.get("task", {}), document.get("train", {})
    if isinstance(train, dict) and isinstance(task, dict) and task.get("name") == "regression":
        train.setdefault("shift_pixels", 1)


SCHEMA = 2
"""Version of recipes. It is raised where a default changes; older runs keep the old default by an
entry in `MIGRATIONS`."""

MIGRATIONS: Mapping[int, Callable[[tomlkit.TOMLDocument], None]] = {1: _shift_of_values}
"""Functions by schema that write the defaults of that schema into a recipe that does not set
them."""

_FINETUNE_EPOCHS = 1.0
_LEAST_MINUTES = 3.0
_WHOLE = 100  # points


@dataclass(frozen=True)
class Named:
    """Table of a recipe whose keys depend on the object that its ``name`` refers to.

    Attributes:
        name: Short name, or ``"package.module:object"``.
        options: All other keys.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> dict[str, Any]:
        """Name and options as one table."""
        return {"name": self.name, **self.options}


@dataclass(frozen=True)
class SpaceConfig:
    """Table ``[space]``: the search space of networks, and further roles of a candidate.

    Attributes:
        name: Name of the space of networks, or a list of that name and of further roles, such as
            ``["mobilenet", "recipe"]``. Each is a short name, or ``"package.module:object"``.
        options: All other keys: options of the space of networks, and a table for each role, by
            its name.
    """

    name: str | tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError(f"space.name is {self.name!r}; expected a name, or a list of them")

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the space of networks, then the names of further roles."""
        return (self.name,) if isinstance(self.name, str) else self.name


@dataclass(frozen=True)
class PredictorConfig:
    """Table ``[predictor]``: settings of the predictors of costs on devices.

    Attributes:
        networks: Number of networks that are measured on each target to fit a predictor.
        reuse: Whether measurements of the same hardware count that ``hwnas calibrate`` or an
            earlier run has stored in ``$HWNAS_HOME/devices``; those of this run are stored there.
    """

    networks: int = 20
    reuse: bool = True

    def __post_init__(self) -> None:
        if self.networks < 4:
            raise ConfigError(f"predictor.networks is {self.networks}; expected at least 4")


@dataclass(frozen=True)
class SearchConfig:
    """Table ``[search]``: settings of the search.

    Attributes:
        sampler: ``"guided"``, another name of `hwnas.search.SAMPLERS`, or a user's own sampler.
        options: Keyword arguments of the sampler.
        strategy: Strategy that learns which networks to propose while the supernet is trained
            further, in place of a sampler: ``"proxyless"``, ``"gdas"``, ``"pc-darts"``,
            ``"reinforce"``, another name of `hwnas.search.strategies.STRATEGIES` or a user's own;
            None for a sampler.
        strategy_options: Keyword arguments of the strategy.
        evaluator: ``"supernet"``, ``"train"``, ``"grow"`` or a user's own evaluator.
        storage: URL of a study that several searches share; that of the run folder if None.
        trials: Number of candidates to evaluate.
        workers: Number of processes that evaluate; 0 evaluates in this process, without Ray.
        cpus_per_worker: CPUs that each of them reserves; 1 if None.
        gpus_per_worker: GPUs that each of them reserves, perhaps a share of one; 0 for none. None
            for equal shares of all GPUs, at least an eighth.
        batch: Number of candidates that are requested from the sampler at a time.
        retries: Number of times that a failed evaluation is repeated.
        timeout_s: Longest duration of an evaluation in seconds, after which it is killed; no limit
            if None. Only workers can be killed, so this needs ``workers`` above 0.
        validation_images: Number of validation images that candidates are scored on; all if None.
        fidelity: Rungs: shares of the full cost at which candidates are evaluated first; by
            default all are evaluated in full.
        random_baseline: Whether random search also runs, with as many trials, for comparison.
        patience: Number of candidates after which the search ends, if none of them is on the Pareto
            front; None to evaluate all ``trials``.
    """

    sampler: str = "guided"
    options: Mapping[str, Any] = field(default_factory=dict)
    strategy: str | None = None
    strategy_options: Mapping[str, Any] = field(default_factory=dict)
    evaluator: str = "supernet"
    storage: str | None = None
    trials: int = 200
    workers: int = 2
    cpus_per_worker: int | None = None
    gpus_per_worker: float | None = None
    batch: int = 4
    retries: int = 1
    timeout_s: float | None = None
    validation_images: int | None = None
    fidelity: Rungs = field(default_factory=Rungs)
    random_baseline: bool = False
    patience: int | None = None

    def __post_init__(self) -> None:
        leasts = {"trials": 1, "workers": 0, "batch": 1, "retries": 0, "patience": 1}
        for name, least in leasts.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise ConfigError(f"search.{name} is {value}; expected at least {least}")
        if self.strategy_options and self.strategy is None:
            raise ConfigError(
                "search.strategy_options is given, but search.strategy is not; name the strategy"
            )
        check_request("search", self.cpus_per_worker, self.gpus_per_worker)
        if self.storage is not None:
            check_storage(self.storage)
        if self.timeout_s is not None and (self.timeout_s <= 0 or self.workers == 0):
            raise ConfigError(
                f"search.timeout_s is {self.timeout_s:g} and search.workers is {self.workers}; "
                "expected above 0 and at least 1: an evaluation in the search's own process cannot "
                "be stopped"
            )
        if self.validation_images is not None and self.validation_images < 2:
            raise ConfigError(
                f"search.validation_images is {self.validation_images}; expected at least 2"
            )

    def worker_resources(self, nodes: Sequence[Node]) -> WorkerResources:
        """Return what each worker gets on a cluster; see `evaluator_resources`."""
        return evaluator_resources(nodes, self.workers, self.cpus_per_worker, self.gpus_per_worker)


@dataclass(frozen=True)
class DeployConfig:
    """Table ``[deploy]``: settings of the finalists.

    Attributes:
        top: Number of finalists that become bundles.
        replacements: Number of rounds in which finalists that fail or miss a limit are replaced by
            the next candidates.
        finetune_epochs: Passes over the training images in which each finalist is fine-tuned alone;
            1 if ``finetune_minutes`` is not given either; 0 for no fine-tuning.
        finetune_minutes: Fine-tuning time of each finalist, which gives small networks more
            passes; either this or ``finetune_epochs``.
        finetune_learning_rate: Peak learning rate of the fine-tuning.
        finetune_norm_statistics: Statistics of batch normalisation in the fine-tuning: ``"batch"``,
            those of each batch; or ``"fixed"``, those of the training images before it. With fixed
            ones, a convolution and its normalisation are computed as one (Tune mode,
            `hwnas.search.training.tune_mode`), so that a step takes less time and memory.
        finetune_seeds: Number of fine-tunings of each finalist, which differ in their seed. The
            best one on validation images is delivered, and the test scores of all are reported.
        formats: Further file formats that the network of each bundle is converted to, such as
            ``"mnn"``; see `hwnas.deploy.file_formats`.
        reference: Whether a reference network, MobileNetV3-Small as wide as the limits allow, is
            trained alone with the settings of ``[train]``, for comparison
            (`hwnas.stages.finalists.reference`).
        reference_minutes: Training time of the reference network; that of a candidate, or a
            finalist's share of the supernet's training, if None.
        gpus_per_worker: GPUs that the fine-tuning of each finalist reserves, perhaps a share of
            one; 0 for none. None for one GPU, if this machine has any.
    """

    top: int = 3
    replacements: int = 2
    finetune_epochs: float | None = None
    finetune_minutes: float | None = None
    finetune_learning_rate: float = 1e-3
    finetune_norm_statistics: Literal["batch", "fixed"] = "batch"
    finetune_seeds: int = 1
    formats: tuple[str, ...] = ()
    reference: bool = False
    reference_minutes: float | None = None
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        check_request("deploy", None, self.gpus_per_worker)
        for name, least in {"top": 1, "replacements": 0, "finetune_seeds": 1}.items():
            if getattr(self, name) < least:
                raise ConfigError(
                    f"deploy.{name} is {getattr(self, name)}; expected at least {least}"
                )
        if self.finetune_seeds > 1 and 0 in (self.finetune_epochs, self.finetune_minutes):
            raise ConfigError(
                f"deploy.finetune_seeds is {self.finetune_seeds}, but there is no fine-tuning that "
                "could differ; leave it out, or raise finetune_epochs or finetune_minutes above 0"
            )
        if self.finetune_epochs is not None and self.finetune_minutes is not None:
            raise ConfigError(
                "[deploy] has both finetune_epochs and finetune_minutes; remove one of them"
            )
        for name in ("finetune_epochs", "finetune_minutes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"deploy.{name} is {value}; expected at least 0")
        for name in ("finetune_learning_rate", "reference_minutes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"deploy.{name} is {value}; expected a number above 0")

    @property
    def fixes_statistics(self) -> bool:
        """True if batch normalisation keeps its statistics in the fine-tuning."""
        return self.finetune_norm_statistics == "fixed"


@dataclass(frozen=True)
class ComputeConfig:
    """Table ``[compute]``: workers of all stages, unless the table of a stage says otherwise.

    Attributes:
        workers: Value of ``train.workers`` and of ``search.workers``.
        cpus_per_worker: Value of ``train.cpus_per_worker`` and of ``search.cpus_per_worker``.
        gpus_per_worker: Value of ``search.gpus_per_worker`` and of ``deploy.gpus_per_worker``.
            Training workers get a whole GPU each, unless it is 0.
        precision: Value of ``train.precision``.
    """

    workers: int | None = None
    cpus_per_worker: int | None = None
    gpus_per_worker: float | None = None
    precision: Literal["auto", "bf16", "fp32"] | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise ConfigError(f"compute.workers is {self.workers}; expected at least 0")
        check_request("compute", self.cpus_per_worker, self.gpus_per_worker)


_OF_STAGES = {
    "workers": ("train", "search"),
    "cpus_per_worker": ("train", "search"),
    "gpus_per_worker": ("train", "search", "deploy"),
    "precision": ("train",),
}
"""Tables that have a key of ``[compute]``, too."""


def compute_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of stages that follow from ``[compute]``, by dotted key.

    Args:
        given: Recipe as tables.
    """
    compute, found = given.get("compute", {}), {}
    for key, tables in _OF_STAGES.items():
        if not isinstance(compute, Mapping) or compute.get(key) is None:
            continue
        for table in tables:
            value, own = compute[key], given.get(table, {})
            if (table, key) == ("train", "gpus_per_worker") and isinstance(value, int | float):
                value = int(value > 0)
            if isinstance(own, Mapping) and key not in own:
                found[f"{table}.{key}"] = value
    return found


@dataclass(frozen=True)
class RunConfig:
    """Table ``[run]``: the time budget of the whole job.

    Attributes:
        minutes: Wall-clock time from the start to the report. Settings that the recipe leaves open
            are planned for it (`hwnas.planning`) and written into the run's own recipe.
        max_loss_points: Largest loss of a finalist in the first metric on validation images,
            compared with the model that the space's weights are from: in hundredths for metrics
            that are proportions, otherwise in percent of that model's value. It becomes a limit on
            finalists, written into the run's own recipe. None for no limit.
    """

    minutes: float | None = None
    max_loss_points: float | None = None

    def __post_init__(self) -> None:
        if self.minutes is not None and not (
            math.isfinite(self.minutes) and self.minutes >= _LEAST_MINUTES
        ):
            raise ConfigError(
                f"run.minutes is {self.minutes:g}; expected at least {_LEAST_MINUTES:g}: "
                "calibration, export and timing alone take two minutes"
            )
        loss = self.max_loss_points
        if loss is None:
            return
        if not (math.isfinite(loss) and 0 <= loss < _WHOLE):
            raise ConfigError(
                f"run.max_loss_points is {loss:g}; expected at least 0 and less than {_WHOLE}: one "
                "point is .01 of a metric such as accuracy"
            )
        if self.minutes is None:
            raise ConfigError(
                "run.max_loss_points is for jobs with run.minutes; in other recipes, set the limit "
                'of the [[objective]], with limit_on = "finalists"'
            )


@dataclass(frozen=True)
class Recipe:
    """All settings of a run.

    Attributes:
        name: Name of the run; its folder is ``runs/<name>`` unless another is given.
        data: Images of the run.
        objective: Objectives of the search, in the order in which results are presented.
        train: Training settings of the supernet (or of each network, where the evaluator trains
            them).
        task: Task that the networks learn.
        space: Search space of the networks.
        search: Settings of the search.
        predictor: Settings of the cost predictor.
        deploy: Settings of the finalists.
        run: Time budget of the whole job.
        compute: Workers of all stages.
        seed: Seed of all random numbers.
    """

    name: str
    data: DataConfig
    objective: tuple[Objective, ...]
    train: TrainConfig
    task: Named = field(default_factory=lambda: Named("classification"))
    space: SpaceConfig = field(default_factory=lambda: SpaceConfig("mobilenet"))
    search: SearchConfig = field(default_factory=SearchConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    deploy: DeployConfig = field(default_factory=DeployConfig)
    run: RunConfig = field(default_factory=RunConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ConfigError(
                f"name is {self.name!r}; expected letters, digits, '.', '_' and '-', because it "
                "names a folder"
            )
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; expected at least 0")

    @property
    def workers(self) -> int:
        """Largest number of processes that any stage uses; 0 for all stages in one, without Ray."""
        return max(self.train.workers, self.search.workers)

    @property
    def fine_tuning(self) -> TrainConfig | None:
        """Training settings for fine-tuning a finalist; None without fine-tuning."""
        epochs, minutes = self.deploy.finetune_epochs, self.deploy.finetune_minutes
        if epochs is None and minutes is None:
            epochs = _FINETUNE_EPOCHS
        if 0 in (epochs, minutes):
            return None
        return replace(
            self.train,
            epochs=epochs,
            budget_minutes=minutes,
            learning_rate=self.deploy.finetune_learning_rate,
        )

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """All keys that differ from their defaults, by dotted name, as JSON values."""
        return _flat(self, "")

    @property
    def hash(self) -> str:
        """Hash that is equal for equivalent recipes; new keys with a default do not change it."""
        return content_hash(sorted(self.values.items()))


def _flat(table: Any, prefix: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, found in differing_fields(table).items():
        if is_dataclass(found):
            values |= _flat(found, f"{prefix}{name}.")
        else:
            values[prefix + name] = _plain(found)
    return values


def _plain(value: Any) -> Any:
    """Return a value with tuples as lists, and dataclasses in lists as tables."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {name: _plain(found) for name, found in differing_fields(value).items()}
    if isinstance(value, Mapping):
        return {name: _plain(value[name]) for name in sorted(value)}
    return value


def read_recipe(
    path: Path, overrides: Sequence[str] = (), schema: int = SCHEMA
) -> tuple[Recipe, str]:
    """Read a recipe.

    Args:
        path: Path of the TOML file.
        overrides: Overrides, each ``"table.key=value"``; the value is TOML, or else text.
        schema: Schema of the file; an older one is migrated to the current one.

    Returns:
        The recipe, and its text with the overrides applied.

    Raises:
        ConfigError: The file is missing or not TOML; a key, name or value is unknown.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from error
    return parse_recipe(text, overrides, schema, str(path))


def parse_recipe(
    text: str, overrides: Sequence[str] = (), schema: int = SCHEMA, where: str = "the recipe"
) -> tuple[Recipe, str]:
    """Parse the text of a recipe; see `read_recipe`.

    Args:
        text: Text of the recipe, as TOML.
        overrides: Overrides, each ``"table.key=value"``.
        schema: Schema of the text.
        where: Name of the recipe in messages.
    """
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    for number in range(schema, SCHEMA):
        MIGRATIONS[number](document)
    for override in overrides:
        set_by_text(document, override)
    text = tomlkit.dumps(document)
    return _parse(tomllib.loads(text), where), text


def _parse(table: dict[str, Any], where: str) -> Recipe:
    for name in ("task", "space"):
        if isinstance(section := table.get(name), dict):
            options = {k: v for k, v in section.items() if k != "name"}
            table[name] = {k: v for k, v in section.items() if k == "name"} | {"options": options}
    _known_keys(table, Recipe, f"{where}: ")
    for name, value in compute_values(table).items():
        stage, key = name.split(".")
        table.setdefault(stage, {})[key] = value
    _leave_to_plan(table)
    try:
        # As JSON, because strict validation converts a list to a tuple only there.
        text = json.dumps(table, default=str)
        return pydantic.TypeAdapter(Recipe).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{where}: {_message(error)}") from error


def _leave_to_plan(table: dict[str, Any]) -> None:
    """Set a placeholder training budget where the job has one; `completed` sets the planned one."""
    run = table.get("run", {})
    minutes = run.get("minutes") if isinstance(run, dict) else None
    train = table.setdefault("train", {}) if minutes is not None else None
    if isinstance(train, dict) and not {"epochs", "budget_minutes"} & set(train):
        train["budget_minutes"] = 1.0  # placeholder


def _message(error: pydantic.ValidationError) -> str:
    """Return one line about an error: the key, its value and what was expected."""
    # Other tables take values of [compute], so its own errors come first.
    first = min(error.errors(), key=lambda found: found["loc"][:1] != ("compute",))
    key = ".".join(str(part) for part in first["loc"] if not _names_a_type(part))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    if first["type"] == "missing":
        return f"{key} is missing; it has no default"
    expected = _EXPECTED.get(first["type"]) or first["msg"].removeprefix("Input should be ")
    return f"{key} is {first['input']!r}; expected {expected}"


def _names_a_type(part: int | str) -> bool:
    """Return whether a part of an error's place is no key, but one of the types that a key has."""
    return part in ("int", "float", "str") or str(part).startswith("tuple[")


_EXPECTED = {
    "bool_type": "true or false",
    "dataclass_type": "a table of keys",
    "dataclass_exact_type": "a table of keys",
    "dict_type": "a table of keys",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "string_type": "text in quotes",
    "tuple_type": "a list; an objective's table has two brackets, [[objective]]",
}
"""Expected types by pydantic's error type, in the words of TOML."""


def _known_keys(value: Any, kind: Any, where: str) -> None:
    """Raise if a key is not a field; the message names the closest field."""
    if get_origin(kind) is UnionType:
        kind = next(option for option in get_args(kind) if option is not NoneType)
    if get_origin(kind) is tuple and isinstance(value, list):
        for index, item in enumerate(value):
            _known_keys(item, get_args(kind)[0], f"{where.removesuffix('.')}[{index}].")
    if not (is_dataclass(kind) and isinstance(value, dict)):
        return
    assert isinstance(kind, type)
    names = [f.name for f in fields(kind)]
    hints = get_type_hints(kind)
    for key, item in value.items():
        if key not in names:
            raise ConfigError(f"{where}{key} is not a key of a recipe; {closest(key, names)}")
        _known_keys(item, hints[key], f"{where}{key}.")
