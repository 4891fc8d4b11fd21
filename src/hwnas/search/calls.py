"""Evaluations: each made once if it succeeds, and a few times more if it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hwnas.search.evaluate import Evaluation, Fidelity
from hwnas.search.executor import Executor
from hwnas.search.failure import Outcome, checked
from hwnas.search.scores import ScoreStore
from hwnas.search_spaces import Candidate

__all__ = ["Calls"]


@dataclass
class Calls:
    """Evaluates candidates.

    Attributes:
        executor: Where.
        scores: What is known already, and where what is found is kept.
        retries: How often an evaluation that failed is tried again.
        made: How many evaluations were made so far.
        on_outcome: Called after each of them.
    """

    executor: Executor
    scores: ScoreStore
    retries: int = 0
    made: int = 0
    on_outcome: Callable[[Candidate, Fidelity, Outcome], None] = lambda *_: None

    def outcomes(
        self, candidates: Sequence[Candidate], fidelity: Fidelity, metrics: Sequence[str]
    ) -> list[Outcome]:
        """What becomes of each candidate.

        Args:
            candidates: No two of the same network.
            fidelity: How thoroughly they are evaluated.
            metrics: What an evaluation has to give, as a finite number.
        """
        key = self.executor.evaluator.key
        known: dict[int, Outcome] = {}
        for position, candidate in enumerate(candidates):
            if (evaluation := self.scores.get(candidate, key, fidelity)) is not None:
                known[position] = checked(evaluation, metrics)
        missing = [i for i in range(len(candidates)) if i not in known]
        for attempt in range(self.retries + 1):
            wanted = [candidates[i] for i in missing]
            again = []
            for position, found in self.executor.map(wanted, fidelity) if wanted else ():
                outcome = checked(found, metrics)
                self.made += 1
                self.on_outcome(wanted[position], fidelity, outcome)
                if isinstance(outcome, Evaluation):
                    self.scores.put(wanted[position], key, fidelity, outcome)
                else:
                    # An executor tries one whose worker dies several times itself.
                    if outcome.kind != "worker died":
                        again.append(missing[position])
                    outcome = replace(outcome, attempts=outcome.attempts + attempt)
                known[missing[position]] = outcome
            missing = sorted(again)
        return [known[i] for i in range(len(candidates))]

    def keep(self, candidate: Candidate, fidelity: Fidelity, evaluation: Evaluation) -> None:
        """Keep an evaluation that was made before, unless it is known."""
        key = self.executor.evaluator.key
        if self.scores.get(candidate, key, fidelity) is None:
            self.scores.put(candidate, key, fidelity, evaluation)
