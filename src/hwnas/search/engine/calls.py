"""Evaluation of candidates with a score cache and retries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hwnas.search.engine.executor import Executor
from hwnas.search.engine.failure import Outcome, checked
from hwnas.search.evaluation.scores import ScoreStore
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate

__all__ = ["EvaluationRunner"]


@dataclass
class EvaluationRunner:
    """Runner of evaluations that reuses stored scores and retries failures.

    Attributes:
        executor: Executor that runs the evaluations.
        scores: Store of known evaluations, which also receives the new ones.
        retries: Number of times that a failed evaluation is repeated.
        made: Number of evaluations made so far.
        on_outcome: Callback after each evaluation.
    """

    executor: Executor
    scores: ScoreStore
    retries: int = 0
    made: int = 0
    on_outcome: Callable[[Candidate, Fidelity, Outcome], None] = lambda *_: None

    def outcomes(
        self, candidates: Sequence[Candidate], fidelity: Fidelity, metrics: Sequence[str]
    ) -> list[Outcome]:
        """Return the evaluation or the failure of each candidate.

        Args:
            candidates: Candidates, no two with the same network.
            fidelity: Fidelity of the evaluations.
            metrics: Names of the metrics that an evaluation must give as finite numbers.
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
                    # The executor itself has already repeated an evaluation whose worker died.
                    if outcome.kind != "worker died":
                        again.append(missing[position])
                    outcome = replace(outcome, attempts=outcome.attempts + attempt)
                known[missing[position]] = outcome
            missing = sorted(again)
        return [known[i] for i in range(len(candidates))]

    def keep(self, candidate: Candidate, fidelity: Fidelity, evaluation: Evaluation) -> None:
        """Store an evaluation that was made earlier, unless there already is one."""
        key = self.executor.evaluator.key
        if self.scores.get(candidate, key, fidelity) is None:
            self.scores.put(candidate, key, fidelity, evaluation)
