"""Tables ``[space]``, ``[predictor]`` and ``[search]`` of a recipe: what is searched, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hwnas.config_class import config_class
from hwnas.errors import ConfigError
from hwnas.search.engine.placement import (
    Node,
    WorkerResources,
    check_request,
    evaluator_resources,
)
from hwnas.search.engine.rungs import Rungs
from hwnas.search.study.storage import check_storage

__all__ = ["PredictorConfig", "SearchConfig", "SpaceConfig"]


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


@config_class
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


@config_class
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
