"""Search that tests run in a separate process and kill."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwnas.search import (
    Objective,
    RayActors,
    ScoreStore,
    SearchOptions,
    SearchResult,
    StudyStorage,
    run_search,
)
from hwnas.search.engine.cluster import local_ray
from hwnas.search.engine.executor import Executor
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate
from own_parts import Dials, EvenDials


def with_environment(
    environment: Mapping[str, str], function: Callable[..., object], *arguments: object
) -> None:
    """Call a function in a process that was forked from one with an older environment."""
    os.environ.update(environment)
    function(*arguments)


OBJECTIVES = [Objective("accuracy", "maximize"), Objective("params", "minimize")]
SEED = 3
BATCH = 4


@dataclass
class Paced(EvenDials):
    """Evaluator that sleeps, so that a kill can come in the middle of an evaluation."""

    seconds: float = 0.01

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        time.sleep(self.seconds)
        return super().evaluate(candidate, fidelity)


@dataclass(frozen=True)
class Drive:
    """Search that may resume an earlier, killed one.

    Attributes:
        folder: Folder of its files.
        sampler: Name of the sampler.
        trials: Number of trials, earlier ones included.
        workers: Number of Ray actors; 0 evaluates in the process itself.
        seconds: Duration of one evaluation.
        options: Options of the sampler.
    """

    folder: Path
    sampler: str
    trials: int
    workers: int = 0
    seconds: float = 0.01
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def study(self) -> Path:
        return self.folder / "study.db"

    def search(self, evaluator: Evaluator | Executor) -> SearchResult:
        """Run the remaining trials in this process."""
        return run_search(
            Dials(9),
            OBJECTIVES,
            evaluator,
            SearchOptions(
                self.trials,
                self.sampler,
                self.options,
                SEED,
                BATCH,
                first=[Dials(9).smallest(), Dials(9).largest()],
            ),
            storage=StudyStorage(self.study, scores=ScoreStore(self.folder / "scores.jsonl")),
        )

    def run(self) -> None:
        """Run the search, with Ray actors if there are workers."""
        if self.workers == 0:
            self.search(Paced(seconds=self.seconds))
            return
        with local_ray(2, [Path(__file__).parent]):
            self.search(RayActors(Paced(seconds=self.seconds), self.workers))
