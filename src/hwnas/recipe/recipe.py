"""Recipe of a run: the settings of its TOML file as typed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from typing import Any

from hwnas.errors import ConfigError
from hwnas.hashing import content_hash, differing_fields
from hwnas.recipe.budget import ComputeConfig, RunConfig
from hwnas.recipe.finalists import DeployConfig
from hwnas.recipe.search import PredictorConfig, SearchConfig, SpaceConfig
from hwnas.search.data.image_data import DataConfig
from hwnas.search.objectives.objective import Objective
from hwnas.search.training import TrainConfig

__all__ = ["Named", "Recipe"]


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
        self.train.check_budget()

    @property
    def workers(self) -> int:
        """Largest number of processes that any stage uses; 0 for all stages in one, without Ray."""
        return max(self.train.workers, self.search.workers)

    @property
    def fine_tuning(self) -> TrainConfig | None:
        """Training settings for fine-tuning a finalist; None without fine-tuning."""
        return self.deploy.fine_tuning(self.train)

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
