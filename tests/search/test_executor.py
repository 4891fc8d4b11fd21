"""Executors: the same values in this process and on Ray actors; test_engine.py kills an actor."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hwnas.errors import WorkerError
from hwnas.search.engine.executor import Executor, InProcess, RayActors
from hwnas.search.engine.failure import Failure
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
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
    """Yield a function that makes an executor of an evaluator; close them after the test."""
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
    def test_executor_has_its_evaluator(self, make: Make) -> None:
        from own_parts import EvenDials

        executor = make(EvenDials())
        assert isinstance(executor, Executor)
        assert executor.evaluator.key == "even-dials"

    @pytest.mark.slow
    def test_executor_evaluates_each_candidate_once_and_prints_nothing(
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

    @pytest.mark.slow
    def test_executor_returns_an_error_as_the_outcome_of_its_candidate(self, make: Make) -> None:
        from own_parts import EvenDials, Moody, total

        wanted = candidates(12)
        found = dict(make(Moody(way="raises what cannot be sent")).map(wanted, ALL))
        assert sorted(found) == list(range(12))
        failed = {i for i, c in enumerate(wanted) if total(c.network) in (3, 4)}
        assert 0 < len(failed) < 12
        for position, outcome in found.items():
            if position in failed:
                assert outcome == Failure("raised", "Here: cannot be sent")
                assert "own_parts.py" in outcome.trace
            else:
                assert outcome == EvenDials().evaluate(wanted[position], ALL)


def one_bad_and_three_good() -> list[Candidate]:
    """Return four candidates; `Moody` fails for the first."""
    from own_parts import total

    several = candidates(40)
    bad = [c for c in several if total(c.network) == 3]
    return [bad[0], *[c for c in several if total(c.network) > 4][:3]]


@pytest.mark.ray
class TestRayActors:
    @pytest.mark.slow
    def test_actor_that_hangs_is_killed_and_replaced(self, ray_session: None) -> None:
        from own_parts import Moody

        executor = RayActors(Moody(way="hangs"), 1, timeout_s=0.5)
        found = dict(executor.map(one_bad_and_three_good(), ALL))
        executor.close()
        assert found[0] == Failure("timed out", "the evaluation took over 0.5 s")
        assert [found[i].values.keys() for i in (1, 2, 3)] == [{"accuracy"}] * 3

    @pytest.mark.slow
    def test_candidate_that_always_kills_its_worker_fails(self, ray_session: None) -> None:
        from own_parts import Moody

        executor = RayActors(Moody(way="dies"), 1)
        found = dict(executor.map(one_bad_and_three_good(), ALL))
        executor.close()
        assert found[0] == Failure(
            "worker died", "the process that evaluated the candidate died 3 times", 3
        )
        assert [found[i].values.keys() for i in (1, 2, 3)] == [{"accuracy"}] * 3

    @pytest.mark.slow
    def test_more_workers_than_processors_still_evaluate_every_candidate(
        self, ray_session: None
    ) -> None:
        from own_parts import EvenDials

        executor = RayActors(EvenDials(), 5)
        assert len(values(executor, candidates(8))) == 8
        executor.close()

    @pytest.mark.slow
    def test_error_says_that_the_evaluator_cannot_be_loaded(self, ray_session: None) -> None:
        executor = RayActors(_Unloadable(), 1)
        with pytest.raises(WorkerError, match=r"cannot load the evaluator \(.*no such weights\)"):
            list(executor.map(candidates(1), ALL))
        executor.close()


class _Unloadable:
    key = "unloadable"

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        raise AssertionError

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _refuse, ()


def _refuse() -> None:
    raise OSError("no such weights")
