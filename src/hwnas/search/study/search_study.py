"""Optuna study that samples in memory and writes finished trials to disk atomically.

Optuna's SQL storage writes every parameter of a running trial in its own transaction, which takes
several times as long as the sampler. Here the sampler works on a study in memory, and each finished
trial is added to the study on disk in one transaction. The study on disk is an ordinary Optuna
study of finished trials with the same numbers: a kill loses none of them, and `optuna-dashboard`
can open it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import BasePruner, NopPruner
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from hwnas.search.engine.rungs import RUNGS
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers.base.batch import BATCH
from hwnas.search.study.shared_study import Claim, SharedStudy
from hwnas.search.study.study_file import StudyFile
from hwnas.search.study.trial_identity import IDENTITY, STALE, TrialIdentity

__all__ = ["SearchStudy"]

_SHARED = "shared"
"""User attribute with the number of a trial in the shared study."""
_FOREIGN = "foreign"
"""User attribute that marks the trials of other searches."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


class SearchStudy:
    """Study of one search: asks the sampler for trials and keeps the finished ones.

    Args:
        name: Name of the study.
        objectives: Objectives of the study.
        sampler: Function that makes the sampler from the number of trials that exist already: a
            resumed search must not draw the same random numbers again.
        path: Path of the SQLite file; None keeps the study in memory only.
        shared: Function that opens the study shared with other searches, given the numbers of its
            trials that are in the file already. The results of the other searches are then kept in
            the file as well.
        pruner: Optuna pruner that stops trials early; no pruning if None.
        identity: Identity that a trial must have to be used; any if None. Trials of another
            identity stay in the file, marked with the attribute ``stale``, and are not used. The
            same holds for a whole study with other objectives.

    Raises:
        RunError: The file is damaged; or, without an identity, holds a study of other objectives.
        StorageError: The file cannot be written.
    """

    def __init__(
        self,
        name: str,
        objectives: Sequence[Objective],
        sampler: Callable[[int], BaseSampler],
        path: Path | None = None,
        shared: Callable[[Sequence[int]], SharedStudy] | None = None,
        pruner: BasePruner | None = None,
        identity: TrialIdentity | None = None,
    ) -> None:
        directions = [o.direction for o in objectives]
        self._identity = identity
        self._disk = None
        finished: list[FrozenTrial] = []
        self.superseded: tuple[FrozenTrial, ...] = ()
        """Stale trials and trials of superseded studies, as they were recorded."""
        if path is not None:
            self._disk = StudyFile(path, name, objectives, supersede=identity is not None)
            finished = self._sorted_out(self._disk)
        self._memory = InMemoryStorage()
        self.study = optuna.create_study(
            storage=self._memory,
            directions=directions,
            sampler=sampler(len(finished)),
            pruner=pruner or NopPruner(),
        )
        self.study.add_trials(finished)
        self._on_disk = len(finished)
        self.asked = len(finished)
        self._waiting: dict[int, FrozenTrial] = {}
        self._claims: dict[int, tuple[int, FrozenTrial]] = {}
        numbers = [t.user_attrs[_SHARED] for t in finished if _SHARED in t.user_attrs]
        self._shared = None if shared is None else shared(numbers)

    def _sorted_out(self, disk: StudyFile) -> list[FrozenTrial]:
        """Mark the trials that have become stale; return all trials, stale ones without results."""
        found = disk.trials()
        stale = {}
        if self._identity is not None:
            stale = {
                trial._trial_id: self._identity.difference(trial)
                for trial in found
                if STALE not in trial.user_attrs and not self._identity.fits(trial)
            }
            disk.set_attribute(STALE, stale)
        counts = [STALE not in t.user_attrs and t._trial_id not in stale for t in found]
        outdated = [t for t, counted in zip(found, counts, strict=True) if not counted]
        self.superseded = (*disk.superseded(), *outdated)
        return [
            trial if counted else _without_results(trial)
            for trial, counted in zip(found, counts, strict=True)
        ]

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials of this and earlier sessions, by number."""
        return self.study.get_trials(deepcopy=False)

    @property
    def complete(self) -> list[FrozenTrial]:
        """Trials that were evaluated."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    @property
    def stopped(self) -> list[FrozenTrial]:
        """Trials that were evaluated only at a share of the full cost."""
        pruned = self.study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
        return [trial for trial in pruned if RUNGS in trial.user_attrs]

    @property
    def failed(self) -> list[FrozenTrial]:
        """Trials whose evaluation failed, and stale trials."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,))

    def ask(self, values: Mapping[str, Any] | None = None) -> Trial:
        """Return a new trial: the sampler's proposal, or one with the given parameter values."""
        if values is not None:
            self.study.enqueue_trial(dict(values))
        self.asked += 1
        return self.study.ask()

    def tell(self, trial: Trial, values: Sequence[float] | None) -> FrozenTrial:
        """Finish a trial with its values, or as PRUNED if they are None.

        The trial is on disk when this returns, unless a trial with a smaller number is unfinished.

        Raises:
            StorageError: The study cannot be written.
        """
        return self._finish(trial, TrialState.PRUNED if values is None else None, values)

    def fail(self, trial: Trial) -> FrozenTrial:
        """Finish a trial as FAIL; it is on disk under the same condition as in `tell`.

        Raises:
            StorageError: The study cannot be written.
        """
        return self._finish(trial, TrialState.FAIL)

    def _finish(
        self, trial: Trial, state: TrialState | None, values: Sequence[float] | None = None
    ) -> FrozenTrial:
        if self._identity is not None:
            trial.set_user_attr(IDENTITY, self._identity.to_json())
        frozen = self.study.tell(trial, values, state=state or TrialState.COMPLETE)
        if self._shared is not None and frozen.number in self._claims:
            trial_id, claimed = self._claims.pop(frozen.number)
            self._shared.finish(trial_id, frozen, claimed)
        return self._keep(frozen)

    def _keep(self, frozen: FrozenTrial) -> FrozenTrial:
        if self._disk is not None:
            self._waiting[frozen.number] = frozen
            while self._on_disk in self._waiting:
                self._disk.add(self._waiting.pop(self._on_disk))
                self._on_disk += 1
        return frozen

    # Shared study

    def claim(self, trial: Trial, budget: int) -> Claim:
        """Claim the candidate of a trial, so that no other search evaluates it; see `SharedStudy`.

        Without a shared study, every candidate is ours.
        """
        if self._shared is None:
            return "ours"
        frozen = self._memory.get_trial(trial._trial_id)
        claim, number, trial_id = self._shared.claim(frozen, budget)
        trial.set_user_attr(_SHARED, number)
        if claim == "ours":
            self._claims[trial.number] = trial_id, self._memory.get_trial(trial._trial_id)
        return claim

    def receive(self) -> tuple[list[FrozenTrial], list[FrozenTrial], int]:
        """Add the trials that other searches have finished to this study.

        Returns:
            The trials added; the trials that other searches left unfinished when they died; and the
            number of candidates that other searches are evaluating.
        """
        if self._shared is None:
            return [], [], 0
        news = self._shared.news()
        taken = []
        known = {t.user_attrs["candidate"] for t in self.complete} if news.finished else set()
        for trial in news.finished:
            # A candidate may be known already if other searches have taken this one for dead.
            if trial.user_attrs["candidate"] not in known:
                taken.append(self._take(trial))
        return taken, list(news.abandoned), news.running

    def _take(self, theirs: FrozenTrial) -> FrozenTrial:
        trial = copy.copy(theirs)
        trial.user_attrs = {**theirs.user_attrs, _SHARED: theirs.number, _FOREIGN: True}
        if self._identity is not None:  # all searches of the shared study have the same
            trial.user_attrs[IDENTITY] = self._identity.to_json()
        trial.system_attrs = {k: v for k, v in theirs.system_attrs.items() if k != BATCH}
        if theirs.values is not None:
            trial.values = [float(value) for value in theirs.values]
        self.study.add_trial(trial)
        self.asked += 1
        return self._keep(self.trials[-1])

    @property
    def own(self) -> int:
        """Number of candidates that this search itself has evaluated or failed to evaluate."""
        done = (TrialState.COMPLETE, TrialState.FAIL)
        return sum(
            _FOREIGN not in trial.user_attrs
            and STALE not in trial.user_attrs
            and (trial.state in done or RUNGS in trial.user_attrs)
            for trial in self.trials
        )

    def close(self) -> None:
        """Close the file and the shared study."""
        if self._shared is not None:
            self._shared.close()
        if self._disk is not None:
            self._disk.close()


def _without_results(stale: FrozenTrial) -> FrozenTrial:
    """Return a FAIL trial without results in place of a stale trial.

    It keeps the number of the stale trial, and its candidate may be proposed again.
    """
    kept = (_SHARED, _FOREIGN)
    return create_trial(
        state=TrialState.FAIL,
        user_attrs={STALE: stale.user_attrs.get(STALE, "")}
        | {name: stale.user_attrs[name] for name in kept if name in stale.user_attrs},
    )
