"""Searches that share a study: each candidate is evaluated once, and all learn its result."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from hwnas.errors import RunError, StorageError
from hwnas.search import (
    Objective,
    ScoreStore,
    SearchOptions,
    SearchResult,
    StudyStorage,
    run_search,
)
from hwnas.search.evaluation.evaluate import Evaluator
from hwnas.search.study import shared_study as module
from hwnas.search.study.search_study import SearchStudy
from hwnas.search.study.shared_study import SharedStudy, Sharing
from hwnas.search.study.storage import close_storage, open_storage

OBJECTIVES = [Objective("accuracy", "maximize"), Objective("params", "minimize")]


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    import storages

    with pytest.MonkeyPatch.context() as patch, storages.postgresql() as server:
        patch.setenv(storages.VARIABLE, storages.PASSWORD)
        yield server


@contextlib.contextmanager
def serving(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    import storages

    file = f"sqlite:///{folder / 'shared.db'}"
    if request.param == "sqlite":
        yield file
    elif request.param == "grpc":
        with storages.grpc_proxy(file) as address:
            yield address
    else:
        with storages.database(request.getfixturevalue("postgresql")) as address:
            yield address


@pytest.fixture(params=["sqlite", "grpc", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with serving(request, tmp_path) as address:
        yield address


SLOWLY = [
    "sqlite",
    pytest.param("grpc", marks=pytest.mark.slow),
    pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow]),
]


@pytest.fixture(params=SLOWLY)
def searched_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with serving(request, tmp_path) as address:
        yield address


def opened(url: str, driver: str, **given: object) -> SharedStudy:
    return SharedStudy(Sharing(url, "search", driver), OBJECTIVES, {"space": "dials"}, **given)


def proposal(name: str) -> FrozenTrial:
    return create_trial(
        state=TrialState.RUNNING,
        params={"dial": 1},
        distributions={"dial": CategoricalDistribution((0, 1, 2))},
        user_attrs={"candidate": name},
    )


def stored(url: str) -> list[FrozenTrial]:
    storage = open_storage(url)
    try:
        return storage.get_all_trials(storage.get_study_id_from_name("search"))
    except KeyError:  # not there yet
        return []
    finally:
        close_storage(storage)


def told(claimed: FrozenTrial, values: list[float]) -> FrozenTrial:
    return create_trial(
        values=values,
        params=claimed.params,
        distributions=claimed.distributions,
        user_attrs={**claimed.user_attrs, "evaluation": {"n": 1}},
        system_attrs={"constraints:params": -1.0},
    )


class TestClaims:
    def test_candidate_belongs_to_the_first_search_that_claims_it(self, url: str) -> None:
        one, other = opened(url, "one"), opened(url, "other")
        claims = [s.claim(proposal("a"), 10)[0] for s in (one, other, one)]
        assert claims == ["ours", "theirs", "theirs"]
        assert other.claim(proposal("b"), 10)[0] == "ours"
        assert [s.news().running for s in (one, other)] == [1, 1]
        one.close()
        other.close()

    def test_finished_trial_is_reported_once_to_the_other_search(self, url: str) -> None:
        one, other = opened(url, "one"), opened(url, "other")
        _, number, trial_id = one.claim(proposal("a"), 10)
        assert one.finish(trial_id, told(proposal("a"), [0.5, 3.0]), proposal("a"))
        [trial] = other.news().finished
        assert (trial.number, list(trial.values), trial.params) == (number, [0.5, 3.0], {"dial": 1})
        assert trial.user_attrs["evaluation"] == {"n": 1}
        assert trial.constraints == {"params": -1.0}
        assert other.news().finished == ()
        assert one.news().finished == (), "it knows its own"
        one.close()
        other.close()

    def test_claims_stop_at_the_number_of_trials(self, url: str) -> None:
        one, other = opened(url, "one"), opened(url, "other")
        claims = [s.claim(proposal(name), 3)[0] for s, name in
                  [(one, "a"), (other, "b"), (one, "a"), (other, "c"), (one, "d")]]  # fmt: skip
        assert claims == ["ours", "ours", "theirs", "ours", "enough"]
        one.close()
        other.close()

    @pytest.mark.slow
    def test_concurrent_searches_claim_different_candidates(self, url: str) -> None:
        had: list[str] = []

        def work(driver: str) -> None:
            study = opened(url, driver)
            for i in range(6):
                if study.claim(proposal(str(i)), 100)[0] == "ours":
                    had.append(str(i))
            study.close()

        threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(had) == list("012345")
        assert [t.number for t in stored(url)] == list(range(24))


class TestDeadSearch:
    @pytest.mark.slow
    def test_claims_of_a_dead_search_are_released_to_the_others(self, url: str) -> None:
        one, other = opened(url, "one", stale_s=60), opened(url, "other", stale_s=0.6)
        _, _, trial_id = one.claim(proposal("a"), 10)
        one.close()  # and sends no heartbeat any more
        assert other.news().running == 1
        deadline = time.monotonic() + 30
        while not (news := other.news()).abandoned:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [t.user_attrs["candidate"] for t in news.abandoned] == ["a"]
        assert news.running == 0
        assert other.claim(proposal("a"), 10)[0] == "ours"
        late = opened(url, "late")
        assert not late.finish(trial_id, told(proposal("a"), [0.5, 3.0]), proposal("a")), (
            "whoever was taken for dead cannot finish it any more"
        )
        assert sum(t.state is TrialState.COMPLETE for t in stored(url)) == 0
        late.close()
        other.close()

    @pytest.mark.slow
    def test_busy_search_keeps_its_claims(self, url: str) -> None:
        busy, other = opened(url, "busy", stale_s=0.6), opened(url, "other", stale_s=1.5)
        busy.claim(proposal("a"), 10)
        for _ in range(5):
            assert (other.news().running, other.news().abandoned) == (1, ())
            time.sleep(0.5)
        busy.close()
        other.close()

    def test_resumed_search_regains_its_claims_at_once(self, url: str) -> None:
        one = opened(url, "one")
        one.claim(proposal("a"), 10)
        one.close()
        again = opened(url, "one")
        assert again.claim(proposal("a"), 10)[0] == "ours"
        again.close()


class TestRefusals:
    def test_shared_study_refuses_other_objectives(self, url: str) -> None:
        opened(url, "one").close()
        with pytest.raises(
            RunError, match=r"has other objectives: it has params \(minimize\) in addition"
        ):
            SharedStudy(Sharing(url, "search"), OBJECTIVES[:1], {"space": "dials"})

    def test_shared_study_refuses_another_space(self, url: str) -> None:
        opened(url, "one").close()
        with pytest.raises(RunError, match=r"has another space \(dials, here cubes\)") as caught:
            SharedStudy(Sharing(url, "search"), OBJECTIVES, {"space": "cubes"})
        assert "a-word-that" not in str(caught.value)

    def test_shared_study_names_a_storage_that_was_removed(self, tmp_path: Path) -> None:
        study = opened(f"sqlite:///{tmp_path / 'shared.db'}", "one")
        study.close()
        for path in tmp_path.glob("shared.db*"):
            path.unlink()
        with pytest.raises(StorageError, match="cannot use the storage sqlite:"):
            study.news()


# Whole searches


def searched(url: str, folder: Path, driver: str, evaluator: Evaluator | None = None,
             trials: int = 40) -> SearchResult:  # fmt: skip
    from killed import Paced

    from own_parts import Dials

    return run_search(
        Dials(9),
        OBJECTIVES,
        evaluator or Paced(seconds=0.03),
        SearchOptions(trials, first=[Dials(9).smallest(), Dials(9).largest()]),
        storage=StudyStorage(
            folder / f"{driver}.db",
            sharing=Sharing(url, "search", driver),
            scores=ScoreStore(folder / f"{driver}.jsonl"),
        ),
    )


def complete(url: str) -> list[str]:
    trials = [t for t in stored(url) if t.state is TrialState.COMPLETE]
    return [t.user_attrs["candidate"] for t in trials]


def local(folder: Path, driver: str) -> set[str]:
    """Return the complete candidates in a search's own file, which needs no storage to be read."""
    study = optuna.load_study(study_name="search", storage=f"sqlite:///{folder / driver}.db")
    return {t.user_attrs["candidate"] for t in study.trials if t.state is TrialState.COMPLETE}


@pytest.mark.slow
def test_two_searches_share_the_work_of_one(searched_url: str, tmp_path: Path) -> None:
    url = searched_url
    from test_kills import forked

    processes = [forked(searched, url, tmp_path, driver) for driver in ("one", "two")]
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    evaluated = complete(url)
    assert len(evaluated) == len(set(evaluated)) == 40
    made = [
        len((tmp_path / f"{driver}.jsonl").read_text().splitlines()) for driver in ("one", "two")
    ]
    assert sum(made) == 40, "none was evaluated twice"
    assert min(made) >= 5, "both had a part in it"
    assert local(tmp_path, "one") == local(tmp_path, "two") == set(evaluated)


@pytest.mark.slow
def test_other_search_finishes_the_trials_of_a_killed_one(
    searched_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_kills import forked, wait_until

    url = searched_url
    monkeypatch.setattr(module, "_STALE_SECONDS", 2.0)
    doomed = forked(searched, url, tmp_path, "doomed")
    wait_until(lambda: (tmp_path / "doomed.jsonl").exists() and len(complete(url)) >= 6)
    doomed.kill()
    doomed.join()
    assert doomed.exitcode == -signal.SIGKILL
    before = complete(url)
    result = searched(url, tmp_path, "other")
    assert complete(url)[: len(before)] == before
    assert len(complete(url)) == len(set(complete(url))) == 40
    assert {trial.candidate.id for trial in result.trials} == set(complete(url))
    assert not [t for t in stored(url) if t.state is TrialState.RUNNING]


@pytest.mark.slow
def test_resumed_search_includes_trials_of_other_searches(tmp_path: Path) -> None:
    from own_parts import EvenDials

    url = f"sqlite:///{tmp_path / 'shared.db'}"
    evaluators = [EvenDials(), EvenDials(), EvenDials()]
    searched(url, tmp_path, "one", evaluators[0], 10)
    searched(url, tmp_path, "two", evaluators[1], 25)
    result = searched(url, tmp_path, "one", evaluators[2], 30)
    assert [evaluator.asked for evaluator in evaluators] == [10, 15, 5]
    assert [trial.number for trial in result.trials] == sorted(t.number for t in result.trials)
    assert local(tmp_path, "one") == set(complete(url)) > local(tmp_path, "two")


@pytest.mark.slow
def test_sampler_receives_the_trials_of_other_searches(tmp_path: Path) -> None:
    from own_parts import Dials, EvenDials

    url = f"sqlite:///{tmp_path / 'shared.db'}"
    searched(url, tmp_path, "one", EvenDials(), 12)
    seen: list[int] = []

    class Watching(optuna.samplers.RandomSampler):
        def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
            seen.append(len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))))

    study = SearchStudy(
        "search",
        OBJECTIVES,
        lambda known: Watching(seed=1),
        None,
        lambda known: SharedStudy(Sharing(url), OBJECTIVES, {"space": Dials(9).fingerprint}, known),
    )
    received, _, _ = study.receive()
    assert len(received) == 12
    study.ask()
    assert seen == [12]
    study.close()
