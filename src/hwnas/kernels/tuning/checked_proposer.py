"""Wrapper of a proposer, on which the tuner can rely whatever the proposer does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from typing import TypeVar

from hwnas.kernels.operator import Config
from hwnas.kernels.tuning.constraints import Problem
from hwnas.kernels.tuning.proposers import Proposer, RuleProposer
from hwnas.kernels.tuning.trial import TuningTask, TuningTrial, key_of

__all__ = ["CheckedProposer"]

T = TypeVar("T")

_AT_ONCE = 256
_PATIENCE = 3  # times in a row that a proposer may propose nothing new


class CheckedProposer:
    """Wrapper of a proposer, which refuses proposals that are no solutions.

    A proposer that fails is replaced by `RuleProposer`.

    Args:
        task: Tuning task.
        seed: Seed of the proposer, and of the rules that replace it.
        proposer: Function of a task and a seed that makes a proposer.

    Attributes:
        notes: Messages for the user, one line each.
        refused: Proposals that are no solutions.
    """

    def __init__(
        self, task: TuningTask, seed: int, proposer: Callable[[TuningTask, int], Proposer]
    ) -> None:
        self._task, self._seed = task, seed
        self._known: set[str] = set()
        self._told: list[TuningTrial] = []
        self._name = getattr(proposer, "__name__", str(proposer))
        self._by_rules = proposer is RuleProposer
        self._proposer: Proposer
        self.notes: list[str] = []
        self.refused: list[TuningTrial] = []

        def begin() -> None:
            self._proposer = proposer(task, seed)

        self._safely(begin, None)

    def ask(self) -> list[Config]:
        """Return solutions that were not tried before; empty if there is nothing left to try."""
        for _ in range(_PATIENCE):
            if new := self._new():
                return new
        if self._by_rules:
            return []
        self._give_up(f"proposed nothing new {_PATIENCE} times")
        return self.ask()

    def tell(self, trials: Sequence[TuningTrial]) -> None:
        """Tell the proposer the results of trials."""
        self._known |= {_key(trial.config) for trial in trials}
        self._hear(trials)

    def _hear(self, trials: Sequence[TuningTrial]) -> None:
        self._told += trials
        self._safely(lambda: self._proposer.tell(trials), None)

    def _new(self) -> list[Config]:
        none: list[Config] = []
        proposed = self._safely(lambda: [*islice(self._proposer.ask(_AT_ONCE), _AT_ONCE)], none)
        new: dict[str, Config] = {}
        refused: dict[str, TuningTrial] = {}
        for config in proposed:
            if reason := _fault(self._task.problem, config):
                given = dict(config) if isinstance(config, Mapping) else {}
                refused[repr(config)] = TuningTrial(given, "refused", reason)
            else:
                whole = {name: int(value) for name, value in config.items()}
                new[_key(whole)] = whole
        if strange := [trial for key, trial in refused.items() if key not in self._known]:
            self._known |= set(refused)
            self.refused += strange
            self._hear(strange)
        return [config for key, config in new.items() if key not in self._known]

    def _safely(self, work: Callable[[], T], otherwise: T) -> T:
        """Return the result of a proposer's call; replace a proposer that fails."""
        if self._by_rules:
            return work()
        try:
            return work()
        except Exception as error:  # the proposer may be the user's own
            self._give_up(f"raised {type(error).__name__}: {error}")
            return otherwise

    def _give_up(self, reason: str) -> None:
        self.notes.append(f"the proposer {self._name} {reason}; rules replace it")
        self._proposer, self._by_rules = RuleProposer(self._task, self._seed), True
        self._proposer.tell(self._told)


def _fault(problem: Problem, config: object) -> str:
    """Return why a proposal is no solution; empty if it is one."""
    if not isinstance(config, Mapping):
        return f"{config!r:.80} is not a configuration"
    if set(config) != set(problem.variables):
        given = ", ".join(map(str, config)) or "nothing"
        return f"the configuration has {given}; expected {', '.join(problem.variables)}"
    if not all(isinstance(v, Integral) and not isinstance(v, bool) for v in config.values()):
        return f"{config!r:.80} has values that are not integers"
    return "; ".join(problem.broken(config))


def _key(config: Config) -> str:
    """Return a key that is the same for equal solutions, in any order of their names."""
    return repr(key_of(config))
