"""An Optuna study that is fast to ask, and on disk whole or not at all.

Optuna's SQL storage writes every parameter of a running trial in a transaction of its own, which
costs several times what a sampler does. Here the sampler works on a study in memory; a trial that
is finished is added to the study on disk in one go. What is on disk is an ordinary Optuna study of
finished trials, with the same numbers: a kill loses none, and `optuna-dashboard` opens it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from hwnas.search.objective import Objective
from hwnas.search.study_file import StudyFile

__all__ = ["SearchStudy"]

optuna.logging.set_verbosity(optuna.logging.WARNING)


class SearchStudy:
    """Asks a sampler for trials and keeps the finished ones.

    Args:
        name: Of the study.
        objectives: What it is of.
        sampler: Makes the sampler, given how many trials there are already: a resumed search must
            not draw the same random numbers again.
        path: The SQLite file; None keeps the study in memory only.

    Raises:
        RunError: The file is damaged or holds a study of other objectives.
        StorageError: The file cannot be written.
    """

    def __init__(
        self,
        name: str,
        objectives: Sequence[Objective],
        sampler: Callable[[int], BaseSampler],
        path: Path | None = None,
    ) -> None:
        directions = [o.direction for o in objectives]
        self._disk = None if path is None else StudyFile(path, name, objectives)
        finished = [] if self._disk is None else self._disk.trials()
        self.study = optuna.create_study(
            storage=InMemoryStorage(), directions=directions, sampler=sampler(len(finished))
        )
        self.study.add_trials(finished)
        self._on_disk = len(finished)
        self.asked = len(finished)
        self._waiting: dict[int, FrozenTrial] = {}

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials of this session and earlier ones, by number."""
        return self.study.get_trials(deepcopy=False)

    @property
    def complete(self) -> list[FrozenTrial]:
        """Those that were evaluated."""
        return self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))

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
        frozen = self.study.tell(trial, values, state=state or TrialState.COMPLETE)
        if self._disk is not None:
            self._waiting[frozen.number] = frozen
            while self._on_disk in self._waiting:
                self._disk.add(self._waiting.pop(self._on_disk))
                self._on_disk += 1
        return frozen

    def close(self) -> None:
        """Let go of the file."""
        if self._disk is not None:
            self._disk.close()
