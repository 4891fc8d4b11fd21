"""Options of a search: its candidates and their evaluation, its storage, and its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optuna.samplers import BaseSampler

from hwnas.errors import ConfigError
from hwnas.search.engine.failure import Outcome
from hwnas.search.engine.result import FailedTrial, Scored
from hwnas.search.engine.rungs import Rungs
from hwnas.search.evaluation.scores import ScoreStore
from hwnas.search.evaluation.scoring import Fidelity
from hwnas.search.study.shared_study import Sharing
from hwnas.search_spaces import Architecture, Candidate

__all__ = ["SearchCallbacks", "SearchOptions", "StudyStorage"]


@dataclass(frozen=True)
class SearchOptions:
    """Number of candidates, how they are proposed, and how they are evaluated.

    Attributes:
        trials: Number of candidates to evaluate in total, including those already in the study.
        sampler: Factory of the sampler, or its name; see `make_sampler`.
        sampler_options: Keyword arguments of the sampler.
        seed: Seed of all random draws.
        batch: Number of candidates proposed and evaluated together. A batch is finished before the
            next one is proposed, even if a search is resumed within a batch.
        fidelity: Fidelity of a full evaluation.
        rungs: Rungs of successive halving. With several rungs, most candidates are evaluated only
            at a share of the full cost. Such candidates count towards ``trials``, and are recorded
            as PRUNED trials with one record per rung in the attribute ``rungs``.
        first: Points of the space to evaluate before the sampler is asked.
        retries: Number of times that a failed evaluation is repeated. A candidate that fails each
            time becomes a FAIL trial with the reason in the attribute ``failure``, and the search
            continues.
        patience: Number of candidates after which the search ends, if none of them is on the Pareto
            front; None to evaluate all ``trials``.

    Raises:
        ConfigError: A number is too small.
    """

    trials: int = 200
    sampler: str | Callable[..., BaseSampler] = "guided"
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    batch: int = 4
    fidelity: Fidelity = field(default_factory=Fidelity)
    rungs: Rungs = field(default_factory=Rungs)
    first: Sequence[Architecture] = ()
    retries: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ConfigError(f"patience is {self.patience}; expected at least 1")
        if self.trials < 1 or self.batch < 1 or self.retries < 0:
            raise ConfigError(
                f"trials is {self.trials}, batch {self.batch} and retries {self.retries}; "
                "expected at least 1, 1 and 0"
            )


@dataclass(frozen=True)
class StudyStorage:
    """Places where a search keeps its trials and evaluations.

    Attributes:
        path: SQLite file of the Optuna study; in memory if None. Trials in the file that were
            evaluated or predicted from other inputs, or for other objectives, stay as history,
            marked ``stale``. If only costs or objectives have changed, their evaluations are
            reused.
        name: Name of the study in that file.
        sharing: Study shared with other searches, so that no candidate is evaluated twice.
            The number of trials is then that of all searches, and all of them are kept in `path`.
        scores: Store of evaluations, in memory by default; an evaluation in it is not made again.
    """

    path: Path | None = None
    name: str = "search"
    sharing: Sharing | None = None
    scores: ScoreStore = field(default_factory=ScoreStore)


@dataclass(frozen=True)
class SearchCallbacks:
    """Functions that a search calls as it proceeds.

    Attributes:
        on_trial: Called after each finished trial, with the number of trials finished so far.
        on_failure: Called after each failed trial.
        on_evaluation: Called after each evaluation; a trial has one evaluation per rung.
    """

    on_trial: Callable[[Scored, int], None] = lambda trial, complete: None
    on_failure: Callable[[FailedTrial], None] = lambda failed: None
    on_evaluation: Callable[[Candidate, Fidelity, Outcome], None] = lambda *_: None
