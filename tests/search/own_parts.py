"""User-defined spaces, evaluators, costs and samplers for tests."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from torch import Tensor, nn

from hwnas.deploy.targets.target import Target
from hwnas.errors import DivergedError
from hwnas.predictors import CostSource, Estimate
from hwnas.search import (
    Evaluator,
    Executor,
    Objective,
    SearchCallbacks,
    SearchOptions,
    SearchResult,
    StudyStorage,
    run_search,
)
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import (
    Architecture,
    Candidate,
    Choice,
    ChoiceCondition,
    SearchSpace,
    Workload,
)


class Dials(SearchSpace):
    """Space of dials with three positions; the last dial is active only if the first is at 2."""

    name = "dials"

    def __init__(self, dials: int = 6) -> None:
        names = [f"dial{i}" for i in range(dials)]
        self._choices = (
            *(Choice(name, (0, 1, 2)) for name in names[:-1]),
            Choice(names[-1], (0, 1, 2), ChoiceCondition(names[0], (2,))),
        )

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self._choices

    def build(self, architecture: Architecture) -> nn.Module:
        return nn.Flatten()

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        return 1, 1, 1

    def workload(self, architecture: Architecture, batch: int = 1) -> Workload:
        return Workload((), (), (), params=total(architecture))


def total(architecture: Architecture) -> int:
    return sum(int(position) for _, position in architecture.values)


@dataclass
class EvenDials:
    """Evaluator that rewards high even dials and low odd dials, and counts its evaluations."""

    key: str = "even-dials"
    asked: int = 0

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        self.asked += 1
        positions = [int(position) for _, position in candidate.network.values]
        merit = (sum(positions[::2]) - 0.5 * sum(positions[1::2])) / 10
        return Evaluation({"accuracy": merit}, {"accuracy": 0.01}, 100, "validation")


@dataclass
class Fatal(EvenDials):
    """Evaluator that kills its own process, once."""

    marker: str = ""

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        if total(candidate.network) == 4 and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(candidate, fidelity)


@dataclass
class Slow(EvenDials):
    """Evaluator that sleeps for 20 ms, so that a test can kill the search in the middle."""

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        time.sleep(0.02)
        return super().evaluate(candidate, fidelity)


@dataclass
class Diverging(EvenDials):
    """Evaluator that fails as a diverged training does."""

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        raise DivergedError(7, 0.5)


@dataclass
class Moody(EvenDials):
    """Evaluator that fails for networks whose dials sum to one of `steps`."""

    way: str = "raises"
    steps: tuple[int, ...] = (3, 4)
    times: int = 1000
    """How often it fails for each network before it works."""
    tried: dict[str, int] = field(default_factory=dict)

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        found = super().evaluate(candidate, fidelity)
        tried = self.tried[candidate.id] = self.tried.get(candidate.id, 0) + 1
        if total(candidate.network) not in self.steps or tried > self.times:
            return found
        given: Any = {
            "raises": lambda: 1 / 0,
            "raises what cannot be sent": self._raise_unsendable,
            "hangs": lambda: time.sleep(3600),
            "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "nan": lambda: replace(found, values={"accuracy": float("nan")}),
            "infinite": lambda: replace(found, values={"accuracy": float("inf")}),
            "text": lambda: replace(found, values={"accuracy": "good"}),
            "another metric": lambda: replace(found, values={"taste": 1.0}),
            "no values": lambda: replace(found, values={}),
            "a number": lambda: 0.5,
            "nothing": lambda: None,
        }[self.way]()
        return given

    def _raise_unsendable(self) -> None:
        class Here(Exception):
            def __init__(self, one: int, other: int) -> None:
                super().__init__("cannot be sent")

        raise Here(1, 2)


class FormulaCost:
    """Cost: a latency of 1 ms plus 0.5 ms for each step of a dial."""

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        return [
            Estimate("latency_ms", 1 + 0.5 * workload.params, 0.1, "table", target.name)
            for workload, target in zip(workloads, targets, strict=True)
        ]


@dataclass(frozen=True)
class Slower(FormulaCost):
    """Cost that multiplies the latency of `FormulaCost` by a factor."""

    factor: float

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        return [replace(e, mean=self.factor * e.mean) for e in super().cost(workloads, targets)]


class Stubborn(BaseSampler):
    """Sampler that always proposes the same option."""

    def __init__(self, option: int) -> None:
        self._option = option

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        assert isinstance(distribution, CategoricalDistribution)
        return distribution.choices[self._option]


def stubborn(seed: int, option: int = 0) -> Stubborn:
    return Stubborn(option)


class Layered(nn.Module):
    """Residual linear layers without normalisation: a batch's gradient is a plain mean."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images.flatten(1))
        for block in self.blocks:
            x = x + block(x).tanh()
        outputs: Tensor = self.head(x)
        return outputs


class Layers(SearchSpace):
    """Space of depths: the blocks beyond the depth are skipped and get no gradient."""

    name = "layers"
    choices = (Choice("depth", (1, 2, 3)),)

    def build(self, architecture: Architecture) -> nn.Module:
        return Layered(int(architecture.as_dict()["depth"]))

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        return 1, 8, 8


def two_extremes(space: SearchSpace, rng: random.Random, random_subnets: int) -> list[Architecture]:
    return [space.largest(), space.smallest()]


def by_the_step(
    space: SearchSpace, rng: random.Random, random_subnets: int, *, step: int
) -> list[Architecture]:
    return [space.sample(random.Random(step))]


def search_with(
    space: SearchSpace,
    objectives: Sequence[Objective],
    evaluator: Evaluator | Executor,
    costs: Mapping[str, CostSource] | None = None,
    study: Path | None = None,
    **given: Any,
) -> SearchResult:
    """Run a search whose options, storage and callbacks are given by the names of their fields."""
    options, storage, callbacks = (
        {each.name: given.pop(each.name) for each in fields(kind) if each.name in given}
        for kind in (SearchOptions, StudyStorage, SearchCallbacks)
    )
    assert not given, f"unknown: {sorted(given)}"
    return run_search(
        space,
        objectives,
        evaluator,
        SearchOptions(**options),
        costs=costs,
        storage=StudyStorage(study, **storage),
        callbacks=SearchCallbacks(**callbacks),
    )
