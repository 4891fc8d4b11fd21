"""Executors: the same values in this process and on Ray actors (test_engine.py kills one)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hwnas.errors import DivergedError
from hwnas.search.evaluate import Evaluator, Fidelity
from hwnas.search.executor import Executor, InProcess, RayActors
from hwnas.search_spaces import Candidate

ALL = Fidelity()


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def candidates(count: int) -> list[Candidate]:
    from own_parts import Dials

    rng = random.Random(0)
    return [Candidate.of(Dials().sample(rng)) for _ in range(count)]


def values(executor: Executor, wanted: list[Candidate]) -> dict[int, float]:
    return {i: e.values["accuracy"] for i, e in executor.map(wanted, ALL)}


Make = Callable[[Evaluator], Executor]


@pytest.fixture(params=["in process", pytest.param("ray", marks=pytest.mark.ray)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes an executor of an evaluator, and lets it go after the test."""
    made: list[Executor] = []

    def of(evaluator: Evaluator) -> Executor:
        made.append(RayActors(evaluator, 2) if request.param == "ray" else InProcess(evaluator))
        return made[-1]

    if request.param == "ray":
        request.getfixturevalue("ray_session")
    yield of
    for executor in made:
        executor.close()


class TestConformance:
    def test_is_an_executor_of_its_evaluator(self, make: Make) -> None:
        from own_parts import EvenDials

        executor = make(EvenDials())
        assert isinstance(executor, Executor)
        assert executor.evaluator.key == "even-dials"

    def test_evaluates_each_candidate_once_and_says_nothing(
        self, make: Make, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from own_parts import EvenDials

        wanted = candidates(7)
        expected = [EvenDials().evaluate(c, ALL).values["accuracy"] for c in wanted]
        executor = make(EvenDials())
        pairs = list(executor.map(wanted, ALL))
        assert sorted(i for i, _ in pairs) == list(range(7))
        assert {i: e.values["accuracy"] for i, e in pairs} == dict(enumerate(expected))
        assert list(executor.map([], ALL)) == []
        assert values(executor, wanted[:3]) == dict(enumerate(expected[:3]))
        assert capfd.readouterr() == ("", "")

    def test_an_error_of_ours_comes_through_as_it_is(self, make: Make) -> None:
        from own_parts import Diverging

        with pytest.raises(DivergedError, match="at step 7 ") as caught:
            list(make(Diverging()).map(candidates(3), ALL))
        assert type(caught.value) is DivergedError
        assert (caught.value.step, caught.value.learning_rate) == (7, 0.5)
        assert "\n" not in str(caught.value)
