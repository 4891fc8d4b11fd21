from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import WorkerError
from hwnas.search.engine.failure import Failure, FailureLimit, checked, failure_of
from hwnas.search.evaluation.scoring import Evaluation

BAD = Failure("raised", "ValueError: no")


def outlasts(outcomes: list[bool], evaluated: int = 0) -> bool:
    """Return whether a search with these outcomes continues to its end."""
    limit = FailureLimit(evaluated=evaluated)
    try:
        for good in outcomes:
            if good:
                limit.succeeded()
            else:
                limit.failed(BAD)
    except WorkerError:
        return False
    return True


class TestFailureLimit:
    @pytest.mark.slow
    @given(st.lists(st.booleans(), max_size=120), st.integers(0, 3))
    def test_ends_a_search_only_after_many_failures(
        self, outcomes: list[bool], evaluated: int
    ) -> None:
        if outlasts(outcomes, evaluated):
            text = "".join("x" if good else "-" for good in outcomes)
            assert "-" * 20 not in text
            assert evaluated or not text.startswith("-" * 10)
        else:
            assert outcomes.count(False) >= 10

    @given(st.lists(st.booleans(), min_size=1, max_size=200).filter(lambda o: sum(o) * 2 >= len(o)))
    def test_tolerates_occasional_failures(self, outcomes: list[bool]) -> None:
        alternating = [True, *(good for pair in zip(outcomes, outcomes[::-1], strict=True)
                               for good in (pair[0] or not pair[1], True))]  # fmt: skip
        assert outlasts(alternating)

    def test_names_the_most_common_reason(self) -> None:
        limit = FailureLimit(at_first=3)
        limit.failed(Failure("raised", "rare"))
        limit.failed(Failure("raised", "common"))
        with pytest.raises(WorkerError, match="candidates have all failed, 2 of them with common"):
            limit.failed(Failure("raised", "common"))

    @given(st.lists(st.booleans(), max_size=120))
    def test_forgives_failed_candidates_only_if_they_ended_the_search(
        self, outcomes: list[bool]
    ) -> None:
        ended = 0
        while ended < len(outcomes) and outlasts(outcomes[: ended + 1]):
            ended += 1
        history = [(str(i), good) for i, good in enumerate(outcomes[: ended + 1])]
        forgiven = FailureLimit().forgiven(history)
        assert not forgiven & {name for name, good in history if good}
        assert bool(forgiven) == (ended < len(outcomes))


class TestChecked:
    def test_returns_a_valid_evaluation_unchanged(self) -> None:
        good = Evaluation({"accuracy": 0.5, "loss": 2}, {"accuracy": float("nan")}, 1, "validation")
        assert checked(good, ["accuracy"]) is good

    def test_converts_numpy_numbers_to_plain_ones(self) -> None:
        found = checked(
            Evaluation({"accuracy": np.float32(0.5)}, {"accuracy": np.float32(0)}, 1, "validation"),
            ["accuracy"],
        )
        assert isinstance(found, Evaluation)
        assert json.loads(json.dumps(found.to_json()))["values"] == {"accuracy": 0.5}

    def test_refuses_text_also_for_a_metric_that_is_no_objective(self) -> None:
        found = checked(
            Evaluation({"accuracy": 0.5, "taste": "sweet"}, {}, 1, "validation"),  # type: ignore[dict-item]
            ["accuracy"],
        )
        assert found == Failure(
            "bad result", "the evaluator returned taste 'sweet'; expected a number"
        )


def test_failure_of_describes_an_error_in_one_short_line() -> None:
    failure = failure_of(ValueError("one\ntwo   three"))
    assert failure.reason == "ValueError: one two three"
    assert failure_of(KeyboardInterrupt()).reason == "KeyboardInterrupt"
    assert Failure.from_json(failure.to_json()) == failure
    assert len(failure_of(ValueError("x" * 10_000)).reason) == 300
