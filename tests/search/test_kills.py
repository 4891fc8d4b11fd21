"""Searches that are killed at random moments: they lose and repeat no finished trial."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import psutil
import pytest
from optuna.trial import TrialState

from hwnas.search import SearchResult

if TYPE_CHECKING:
    from killed import Drive

PRELOADED = [
    "hwnas.search",
    "ray",
    "optuna.storages._rdb.models",
    "alembic.command",
    "alembic.config",
    "alembic.migration",
    "alembic.script",
    "sqlalchemy.dialects.sqlite",
]
Finished = dict[int, tuple[str, str, list[float] | None]]


@dataclass(frozen=True)
class Case:
    """Sampler to test, and what a killed search with it must find.

    Attributes:
        sampler: Name of the sampler.
        deterministic: Whether a killed search must find the same front as an uninterrupted one.
            False for Optuna's samplers, which do not store their random state.
    """

    sampler: str
    deterministic: bool = False


CASES = [Case("guided", deterministic=True), Case("nsga2"), Case("random"), Case("tpe")]
each_sampler = pytest.mark.parametrize("case", CASES, ids=lambda case: case.sampler)


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def forked(function: Callable[..., object], *arguments: object) -> Any:
    """Start a process, quickly: it is forked from one that has imported what a search needs."""
    from killed import with_environment

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # Ray reads its mode of authentication when it is imported, that is before the fork
    environment = {k: v for k, v in os.environ.items() if k != "RAY_AUTH_MODE"}
    process = context.Process(target=with_environment, args=(environment, function, *arguments))
    process.start()
    return process


def finished(study: Path) -> Finished:
    """Return finished trials as Optuna reads them: candidate, state and values by number."""
    with contextlib.suppress(Exception):  # not there yet, or without its tables
        plain = optuna.load_study(study_name="search", storage=f"sqlite:///{study}")
        return {
            t.number: (t.user_attrs["candidate"], t.state.name, t.values)
            for t in plain.get_trials(deepcopy=False)
            if t.state.is_finished()
        }
    return {}


def assert_nothing_lost(before: Finished, drive: Drive) -> Finished:
    now = finished(drive.study)
    assert now.items() >= before.items(), "a finished trial was lost"
    assert list(now) == list(range(len(now)))
    complete = [name for name, state, _ in now.values() if state == TrialState.COMPLETE.name]
    assert len(set(complete)) == len(complete), "a network has two finished trials"
    if (drive.folder / "scores.jsonl").exists():
        *whole, _ = (drive.folder / "scores.jsonl").read_text().split("\n")
        keys = [tuple(json.loads(line)["key"]) for line in whole]
        assert len(set(keys)) == len(keys), "a network was evaluated twice"
        assert {name for name, *_ in keys} >= set(complete)
    return now


def wait_until(happened: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.2)  # checking more often would slow the search down


def kill_again_and_again(drive: Drive, kills: int, seconds: float) -> None:
    """Start the search and kill it after a random time of up to `seconds`, `kills` times.

    On a busy machine the search may not have begun by then, so the last kill waits until more
    than a batch is evaluated: the first batch is finished then.
    """
    from killed import BATCH

    rng, before = random.Random(f"{drive.sampler}-{kills}"), finished(drive.study)
    scores = drive.folder / "scores.jsonl"
    for kill in range(1, kills + 1):
        process = forked(drive.run)
        time.sleep(rng.uniform(0, seconds))
        if kill == kills:
            wait_until(lambda: scores.exists() and len(scores.read_text().splitlines()) > BATCH)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it was too quick to be killed"
        before = assert_nothing_lost(before, drive)


def assert_finishes(drive: Drive, case: Case) -> None:
    """Check that the search completes and, if deterministic, finds the uninterrupted front."""
    from killed import Drive, EvenDials

    before = assert_nothing_lost({}, drive)
    assert len(before) > 0
    result = drive.search(EvenDials())
    assert_nothing_lost(before, drive)
    assert len(result.trials) == drive.trials
    if case.deterministic:
        folder = drive.folder / "uninterrupted"
        folder.mkdir()
        again = Drive(folder, drive.sampler, drive.trials, options=drive.options)
        assert front(result) == front(again.search(EvenDials()))


def front(result: SearchResult) -> set[tuple[str, tuple[float, ...]]]:
    return {(t.candidate.id, tuple(t.values.values())) for t in result.front}


@pytest.mark.slow
def test_search_finishes_after_three_kills(tmp_path: Path) -> None:
    from killed import Drive

    drive = Drive(tmp_path, CASES[0].sampler, 60)
    kill_again_and_again(drive, 3, 1.0)
    assert_finishes(drive, CASES[0])


@pytest.mark.exhaustive
@each_sampler
def test_search_finishes_after_fourteen_kills(case: Case, tmp_path: Path) -> None:
    from killed import Drive

    trials = (
        250 if case.deterministic else 500
    )  # deterministic cases search twice, with a slower sampler
    drive = Drive(tmp_path, case.sampler, trials, seconds=0.02)
    kill_again_and_again(drive, 14, 0.8)
    assert_finishes(drive, case)


# Kills with Ray: of the searching process, of a worker, and of Ray's own process


@contextlib.contextmanager
def ray_driver(drive: Drive) -> Iterator[tuple[psutil.Process, Any]]:
    """Run the search with Ray in a process; leave no process behind."""
    process = forked(drive.run)
    family = psutil.Process(process.pid)
    try:
        yield family, process
    finally:
        with contextlib.suppress(psutil.Error):
            for child in family.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
        process.kill()
        process.join()


def descendants(family: psutil.Process, word: str) -> list[psutil.Process]:
    found = []
    for child in family.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(child.cmdline()[:1]) or word in child.name():
                found.append(child)
    return found


LIVES = [["worker", "raylet"], ["search"], ["worker", "worker", "search"], ["raylet"]]
"""Victims of the kills in each run: a worker, Ray's own process, or the searching process."""


@pytest.mark.parametrize(
    ("lives", "trials"),
    [
        pytest.param(LIVES[:2], 200, marks=pytest.mark.slow),
        pytest.param(LIVES, 2000, marks=pytest.mark.exhaustive),
    ],
    ids=["few", "many"],
)
@pytest.mark.ray
def test_ray_search_finishes_after_kills(
    tmp_path: Path, lives: list[list[str]], trials: int
) -> None:
    from killed import Drive

    drive, rng = Drive(tmp_path, "nsga2", trials, workers=2, seconds=0.15), random.Random(0)

    def more(count: int) -> Callable[[], bool]:
        wanted = len(finished(drive.study)) + count
        return lambda: len(finished(drive.study)) >= wanted

    before: Finished = {}
    for victims in lives:
        with ray_driver(drive) as (family, process):
            for victim in victims:
                wait_until(more(rng.randint(1, 8)))
                time.sleep(rng.uniform(0, 0.3))
                if victim == "worker":
                    rng.choice(descendants(family, "ray::_Worker")).kill()
                    wait_until(more(8))
                    assert process.is_alive(), "a lost worker does not end a search"
                elif victim == "raylet":
                    [raylet] = descendants(family, "raylet")
                    raylet.kill()
                    process.join(60)
                    assert process.exitcode == 1, "without Ray a search ends"
                else:
                    process.kill()
        before = assert_nothing_lost(before, drive)
    assert_finishes(drive, Case("nsga2"))
