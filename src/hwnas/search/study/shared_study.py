"""Study shared by several searches that run at the same time, each in its own process.

No candidate is evaluated twice, because a search claims a candidate before evaluating it: it adds a
RUNNING trial with the candidate's id, and then checks whether an older trial has the same id.
Optuna numbers trials under a lock, so all searches agree on which of two claims is the older.

Each search sends heartbeats. If the heartbeats of a search stop for a while, the others end its
claims and evaluate its candidates themselves.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import exc

from hwnas.errors import RunError, StorageError
from hwnas.search.engine.rungs import RUNGS
from hwnas.search.objectives.objective import Objective
from hwnas.search.study.storage import close_storage, open_storage, reason_of
from hwnas.search.study.study_identity import other_objectives, study_of

__all__ = ["Claim", "SharedStudy", "Sharing", "StudyChanges"]

_BEAT_SECONDS = 5.0
_STALE_SECONDS = 60.0
_GOODBYE_SECONDS = 10.0
_ALIVE = "alive:"
_DRIVER = "driver"
_ABANDONED = "abandoned"
_WITHDRAWN = "withdrawn"

Claim = Literal["ours", "theirs", "enough"]
"""Result of a claim: the candidate is ours; another search has it; the trial budget is used up."""


@dataclass(frozen=True)
class Sharing:
    """Shared study that a search takes part in.

    Attributes:
        url: URL of the storage; see `hwnas.search.study.storage.open_storage`.
        study: Name of the study in the storage.
        driver: Name of this search among those that share the study; random by default. A search
            that is resumed under its old name gets its earlier claims back at once.
    """

    url: str
    study: str = "search"
    driver: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class StudyChanges:
    """Changes in a shared study since the last call of `SharedStudy.news`.

    Attributes:
        finished: Trials that were evaluated or have failed, in any search, with their numbers in
            the shared study.
        abandoned: Trials of candidates that a search left unfinished when it died.
        running: Number of candidates that other searches are evaluating.
    """

    finished: tuple[FrozenTrial, ...]
    abandoned: tuple[FrozenTrial, ...]
    running: int


class SharedStudy:
    """Study in a storage that several searches can reach.

    Args:
        sharing: Storage and name of the study; the study is created if it does not exist.
        objectives: Objectives of the study.
        identity: Inputs, by name, that all searches of the study must have in common, in addition
            to the objectives.
        known: Numbers of the trials that are known to this search already.
        stale_s: Seconds without a heartbeat after which a search counts as dead; 60 if None.

    Raises:
        ConfigError: The URL is wrong, or a package is missing.
        RunError: The study has other objectives, or another ``identity``.
        StorageError: The storage cannot be reached.
    """

    def __init__(
        self,
        sharing: Sharing,
        objectives: Sequence[Objective],
        identity: Mapping[str, str],
        known: Sequence[int] = (),
        stale_s: float | None = None,
    ) -> None:
        self._url, self._driver = sharing.url, sharing.driver
        self._stale_s = _STALE_SECONDS if stale_s is None else stale_s
        self._identity = dict(identity)
        self._known = set(known)
        self._heard: dict[str, tuple[Any, float]] = {}
        self._storage = open_storage(sharing.url)
        try:
            with self._own_errors():
                self._join(sharing.study, objectives)
        except BaseException:
            close_storage(self._storage)
            raise
        self._beat_seconds = min(_BEAT_SECONDS, self._stale_s / 6)
        self._closed = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    # Membership and heartbeats

    def _join(self, name: str, objectives: Sequence[Objective]) -> None:
        self._id = study_of(self._storage, name, objectives)
        difference = other_objectives(self._storage, self._id, objectives)
        if difference is not None:
            raise RunError(f"{self._url}: study {name!r} has other objectives: {difference}")
        self._agree(name)
        for trial in self._trials():
            if self._is_claim(trial) and trial.user_attrs[_DRIVER] == self._driver:
                self._give_up(trial._trial_id, _ABANDONED)

    def _agree(self, name: str) -> None:
        known = self._storage.get_study_user_attrs(self._id)
        for key, value in self._identity.items():
            if key not in known:
                self._storage.set_study_user_attr(self._id, key, value)
            elif known[key] != value:
                raise RunError(
                    f"{self._url}: study {name!r} has another {key} ({known[key]}, here {value}), "
                    "so trials would not be comparable; searches share a study only with the same "
                    "recipe, the same predictors and, where there is one, the same supernet"
                )

    def _beat(self) -> None:
        count = time.time_ns()
        while True:
            count += 1
            # A lost heartbeat is harmless: if others take this search for dead, one candidate is
            # evaluated twice, but no trial is lost.
            with contextlib.suppress(Exception):
                self._storage.set_study_user_attr(self._id, _ALIVE + self._driver, count)
            if self._closed.wait(self._beat_seconds):
                return

    def _listen(self) -> None:
        """Note the local time of each new heartbeat; clocks of machines are never compared."""
        now = time.monotonic()
        for key, beat in self._storage.get_study_user_attrs(self._id).items():
            if key.startswith(_ALIVE) and self._heard.get(key, (None, 0.0))[0] != beat:
                self._heard[key] = beat, now

    def _is_dead(self, driver: str) -> bool:
        now = time.monotonic()
        _, heard = self._heard.setdefault(_ALIVE + driver, (None, now))
        return driver != self._driver and now - heard > self._stale_s

    # Claims

    def claim(self, trial: FrozenTrial, budget: int) -> tuple[Claim, int, int]:
        """Claim the candidate of a trial.

        Args:
            trial: Running trial with the candidate's id as the attribute ``candidate``.
            budget: Number of candidates to evaluate in total, over all searches.

        Returns:
            Result of the claim, and the number and id of the trial in the shared study.
        """
        claim = create_trial(
            state=TrialState.RUNNING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={**trial.user_attrs, _DRIVER: self._driver},
            system_attrs=trial.system_attrs,
        )
        with self._own_errors():
            trial_id = self._storage.create_new_trial(self._id, claim)
            trials = self._trials()
            number = next(t.number for t in trials if t._trial_id == trial_id)
            self._known.add(number)
            older = [t for t in trials if t.number < number and not _is_void(t)]
            candidate = trial.user_attrs["candidate"]
            if any(t.user_attrs.get("candidate") == candidate for t in older):
                self._finish(trial_id, TrialState.PRUNED)
                return "theirs", number, trial_id
            if sum(t.state is not TrialState.FAIL for t in older) >= budget:
                self._give_up(trial_id, _WITHDRAWN)
                return "enough", number, trial_id
        return "ours", number, trial_id

    def finish(self, trial_id: int, trial: FrozenTrial, claimed: FrozenTrial) -> bool:
        """Finish a claimed trial.

        Args:
            trial_id: Id of the trial in the shared storage.
            trial: Finished trial.
            claimed: The same trial at the time of the claim.

        Returns:
            Whether the claim was still ours: others may have taken this search for dead.
        """
        with self._own_errors():
            try:
                for key, value in trial.user_attrs.items():
                    if key not in claimed.user_attrs:
                        self._storage.set_trial_user_attr(trial_id, key, value)
                for key, value in trial.system_attrs.items():
                    if key not in claimed.system_attrs:
                        self._storage.set_trial_system_attr(trial_id, key, value)
                for step, value in trial.intermediate_values.items():
                    self._storage.set_trial_intermediate_value(trial_id, step, value)
            except UpdateFinishedTrialError:
                return False
            return self._finish(trial_id, trial.state, trial.values)

    def news(self) -> StudyChanges:
        """Return what other searches have finished, abandoned and are evaluating."""
        with self._own_errors():
            self._listen()
            finished, abandoned, running = [], [], 0
            for trial in self._trials():
                if trial.number in self._known:
                    continue
                if self._is_claim(trial):
                    if not self._is_dead(trial.user_attrs[_DRIVER]):
                        running += trial.user_attrs[_DRIVER] != self._driver
                        continue
                    self._give_up(trial._trial_id, _ABANDONED)
                    abandoned.append(trial)
                elif trial.state.is_finished():
                    self._known.add(trial.number)
                    if _ABANDONED in trial.user_attrs:
                        abandoned.append(trial)
                    elif not _is_void(trial):
                        finished.append(trial)
        return StudyChanges(tuple(finished), tuple(abandoned), running)

    def _trials(self) -> list[FrozenTrial]:
        return self._storage.get_all_trials(self._id, deepcopy=False)

    def _is_claim(self, trial: FrozenTrial) -> bool:
        return trial.state is TrialState.RUNNING and _DRIVER in trial.user_attrs

    def _give_up(self, trial_id: int, why: str) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(trial_id, why, True)
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

    def _finish(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        try:
            return self._storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            return False

    def close(self) -> None:
        """Stop the heartbeats and close the storage; the study stays for the other searches."""
        self._closed.set()
        self._beats.join(timeout=_GOODBYE_SECONDS)
        close_storage(self._storage)

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            raise self._unreachable(reason_of(error)) from None
        except RuntimeError as error:
            if type(error).__module__.startswith("grpc"):
                raise self._unreachable(reason_of(error)) from None
            raise

    def _unreachable(self, reason: str) -> StorageError:
        return StorageError(
            f"cannot use the storage {self._url}: {reason}. Run `hwnas resume` once the storage "
            "answers"
        )


def _is_void(trial: FrozenTrial) -> bool:
    """Return whether a trial has no result for its candidate, since it was not evaluated."""
    pruned = trial.state is TrialState.PRUNED and RUNGS not in trial.user_attrs
    return pruned or _ABANDONED in trial.user_attrs or _WITHDRAWN in trial.user_attrs
