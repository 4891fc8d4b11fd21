"""An Optuna study that is fast to ask, and on disk whole or not at all.

Optuna's SQL storage writes every parameter of a running trial in a transaction of its own, which
costs several times what a sampler does. Here the sampler works on a study in memory; a trial that
is finished is added to the study on disk in one go. What is on disk is an ordinary Optuna study of
finished trials, with the same numbers: a kill loses none, and `optuna-dashboard` opens it.
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

from hwnas.search.objective import Objective
from hwnas.search.rungs import RUNGS
from hwnas.search.samplers.planned import BATCH
from hwnas.search.shared_study import Claim, SharedStudy
from hwnas.search.study_file import StudyFile
from hwnas.search.trial_identity import IDENTITY, STALE, TrialIdentity

__all__ = ["SearchStudy"]

_SHARED = "shared"
"""The number of a trial in the shared study."""
_FOREIGN = "foreign"
"""Set on trials that another search has made."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


class SearchStudy:
    """Asks a sampler for trials and keeps the finished ones.

    Args:
        name: Of the study.
        objectives: What it is of.
        sampler: Makes the sampler, given how many trials there are already: a resumed search must
            not draw the same random numbers again.
        path: The SQLite file; None keeps the study in memory only.
        shared: Opens the study that other searches work on, too, given which of its trials are in
            the file already. What the others find is then kept in the file as well.
        pruner: Stops trials before they are complete; none if None.
        identity: What a trial has to depend on to count; any if None. Trials of another identity
            stay in the file, marked with the attribute ``stale``, and count for nothing. So does
            a whole study of other objectives.

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
        """Trials that count for nothing, as they were recorded."""
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
        """Mark trials that have become stale; gives all, but stale ones without what they found."""
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
        """All trials of this session and earlier ones, by number."""
        return self.study.get_trials(deepcopy=False)

    @property
    def complete(self) -> list[FrozenTrial]:
        """Those that were evaluated."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

    @property
    def stopped(self) -> list[FrozenTrial]:
        """Those that were evaluated at a part of the full cost only."""
        pruned = self.study.get_trials(deepcopy=False, states=(TrialState.PRUNED,))
        return [trial for trial in pruned if RUNGS in trial.user_attrs]

    @property
    def failed(self) -> list[FrozenTrial]:
        """Those whose evaluation failed."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,))

    def ask(self, values: Mapping[str, Any] | None = None) -> Trial:
        """A new trial: the sampler's proposal, or the one with the given values."""
        if values is not None:
            self.study.enqueue_trial(dict(values))
        self.asked += 1
        return self.study.ask()

    def tell(self, trial: Trial, values: Sequence[float] | None) -> FrozenTrial:
        """Finish a trial: with its values, or as PRUNED if there are none.

        It is on disk when this returns, unless a trial with a smaller number is not finished.

        Raises:
            StorageError: The study cannot be written.
        """
        return self._finish(trial, TrialState.PRUNED if values is None else None, values)

    def fail(self, trial: Trial) -> FrozenTrial:
        """Finish a trial as FAIL; the same holds.

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

    # What is shared

    def claim(self, trial: Trial, budget: int) -> Claim:
        """Make sure that no other search evaluates the candidate of a trial; see `SharedStudy`."""
        if self._shared is None:
            return "ours"
        frozen = self._memory.get_trial(trial._trial_id)
        claim, number, trial_id = self._shared.claim(frozen, budget)
        trial.set_user_attr(_SHARED, number)
        if claim == "ours":
            self._claims[trial.number] = trial_id, self._memory.get_trial(trial._trial_id)
        return claim

    def receive(self) -> tuple[list[FrozenTrial], list[FrozenTrial], int]:
        """Take over what other searches have finished.

        Returns:
            Their finished trials, which are in this study now; those that they left unfinished when
            they died; and how many candidates they are evaluating.
        """
        if self._shared is None:
            return [], [], 0
        news = self._shared.news()
        taken = []
        known = {t.user_attrs["candidate"] for t in self.complete} if news.finished else set()
        for trial in news.finished:
            if trial.user_attrs["candidate"] not in known:  # where this search was taken for dead
                taken.append(self._take(trial))
        return taken, list(news.abandoned), news.running

    def _take(self, theirs: FrozenTrial) -> FrozenTrial:
        trial = copy.copy(theirs)
        trial.user_attrs = {**theirs.user_attrs, _SHARED: theirs.number, _FOREIGN: True}
        if self._identity is not None:  # which the shared study has agreed on
            trial.user_attrs[IDENTITY] = self._identity.to_json()
        trial.system_attrs = {k: v for k, v in theirs.system_attrs.items() if k != BATCH}
        if theirs.values is not None:
            trial.values = [float(value) for value in theirs.values]
        self.study.add_trial(trial)
        self.asked += 1
        return self._keep(self.trials[-1])

    @property
    def own(self) -> int:
        """How many candidates this search has evaluated, or tried to, itself."""
        done = (TrialState.COMPLETE, TrialState.FAIL)
        return sum(
            _FOREIGN not in trial.user_attrs
            and STALE not in trial.user_attrs
            and (trial.state in done or RUNGS in trial.user_attrs)
            for trial in self.trials
        )

    def close(self) -> None:
        """Let go of the file."""
        if self._shared is not None:
            self._shared.close()
        if self._disk is not None:
            self._disk.close()


def _without_results(stale: FrozenTrial) -> FrozenTrial:
    """Return a trial that keeps its number, counts for nothing and may be proposed again."""
    kept = (_SHARED, _FOREIGN)
    return create_trial(
        state=TrialState.FAIL,
        user_attrs={STALE: stale.user_attrs.get(STALE, "")}
        | {name: stale.user_attrs[name] for name in kept if name in stale.user_attrs},
    )
