"""Selection and replacement of finalists, with simulated candidates and measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.deploy.measurement.measurement import Measurement, Quantiles
from hwnas.errors import (
    ArtifactError,
    DeviceError,
    DivergedError,
    HwnasError,
    RunError,
    StorageError,
)
from hwnas.search import Objective, Scored, SearchResult
from hwnas.search_spaces import Architecture, Candidate
from hwnas.stages.finalists.limits import LimitCheck, limit_checks
from hwnas.stages.finalists.shortlist import (
    Made,
    choose,
    fill_shortlist,
    is_own_fault,
    read_tried,
)

TARGET = "cpu-onnxruntime-fp32-b1-t1"
LATENCY = f"latency_ms@{TARGET}"


def searched(count: int, limit: float | None) -> SearchResult:
    """Candidates on a front: the i-th was predicted to take i + 1 ms."""
    objectives = (
        Objective("accuracy", "maximize"),
        Objective("latency_ms", "minimize", TARGET, limit),
    )
    trials = tuple(
        Scored(
            i,
            Candidate.of(Architecture("made-up", (("size", i),))),
            {"accuracy": 1 - 1 / (i + 2), LATENCY: float(i + 1)},
            {},
            {},
            {},
            True,
        )
        for i in range(count)
    )
    return SearchResult(objectives, trials)


def predicted(trial: Scored) -> float:
    return trial.values[LATENCY]


class Maker:
    """Stand-in for the finalists stage, with given measurements and failures."""

    def __init__(
        self,
        result: SearchResult,
        ms: Callable[[Scored], float],
        failing: Mapping[int, HwnasError] | None = None,
    ) -> None:
        self.result, self.ms, self.failing = result, ms, failing or {}
        self.rounds: list[list[int]] = []

    def __call__(self, trials: Sequence[Scored]) -> dict[str, tuple[LimitCheck, ...] | HwnasError]:
        self.rounds.append([trial.number for trial in trials])
        return {
            trial.candidate.id: self.failing.get(trial.number) or self.checks(trial)
            for trial in trials
        }

    def checks(self, trial: Scored) -> tuple[LimitCheck, ...]:
        ms = self.ms(trial)
        spread = Quantiles(0.95 * ms, ms, 1.05 * ms)
        timed = Measurement(
            TARGET, "cpu", spread, spread, 50, False, 1.0, "a processor", {}, {}, "2026-01-01"
        )
        return limit_checks(self.result.objectives, [], [timed])


def numbers(result: SearchResult, ids: Sequence[str]) -> set[int]:
    return {trial.number for trial in result.trials if trial.candidate.id in ids}


def test_shortlist_is_the_first_choice_if_all_keep_the_limits() -> None:
    result = searched(12, limit=20.0)
    make = Maker(result, predicted)
    found = fill_shortlist(result, 3, make)
    assert found.packed == [trial.candidate.id for trial in choose(result, 3)]
    assert len(make.rounds) == 1
    assert {each.state for each in found.tried} == {"kept"}


def test_shortlist_replaces_broken_limits_by_likely_candidates() -> None:
    """All are twice as slow as predicted, so the first six of 12 candidates keep 12 ms."""
    result, notes = searched(12, limit=12.0), []
    make = Maker(result, lambda trial: 2 * predicted(trial))
    found = fill_shortlist(result, 4, make, notes.append)
    assert len(found.packed) == 4
    assert max(numbers(result, found.packed)) <= 5
    assert len(make.rounds) == 2, "what was learned of the prediction is used at once"
    dropped = [each for each in found.tried if not each.packed]
    assert dropped
    assert {(each.state, each.round) for each in dropped} == {("broken", 0)}
    assert any("the limit is 12" in note for note in notes)
    assert any("the next candidates take their place" in note for note in notes)


def test_shortlist_replaces_a_miss_within_noise() -> None:
    result = searched(12, limit=6.0)
    make = Maker(result, lambda t: 6.1 if t.number == 11 else min(predicted(t), 5.0))
    found = fill_shortlist(result, 3, make)
    [missed] = [each for each in found.tried if not each.packed]
    assert (missed.state, numbers(result, [missed.id])) == ("within noise", {11})


@given(spare=st.integers(0, 8), slow=st.integers(0, 12))
def test_shortlist_tries_further_candidates_where_few_have_to_be_replaced(
    spare: int, slow: int
) -> None:
    """The ``slow`` slowest of 12 candidates take longer than allowed when they are measured."""
    result, notes = searched(12, limit=20.0), []
    make = Maker(result, lambda trial: 30.0 if trial.number >= 12 - slow else predicted(trial))
    found = fill_shortlist(result, 4, make, notes.append, replacements=1, spare=spare)
    kept = {each.id for each in found.tried if each.state == "kept"}
    assert kept <= set(found.packed), "what meets the limits is never left out"
    assert len(found.packed) == max(4, len(kept))
    missing = 4 - sum(each.round == 0 for each in found.tried if each.state == "kept")
    assert sum(map(len, make.rounds[1:])) == max(missing, spare)
    assert any("there is time for further finalists" in note for note in notes) == (
        missing == 0 < spare
    )


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_shortlist_keeps_and_marks_the_closest_after_bounded_rounds(rounds: int) -> None:
    """Regression test: the limit was 0.1 ms, and the picked network took 0.415 ms."""
    result, notes = searched(40, limit=0.1), []
    make = Maker(result, lambda trial: 0.415 + 0.01 * trial.number)
    found = fill_shortlist(result, 3, make, notes.append, replacements=rounds)
    assert len(make.rounds) == 1 + rounds
    tried = [number for numbers in make.rounds for number in numbers]
    assert len(tried) == len(set(tried)) == 3 * (1 + rounds)
    assert numbers(result, found.packed) == set(sorted(tried)[:3]), "those that miss it the least"
    assert {each.state for each in found.tried} == {"broken"}
    assert f"0 of {len(tried)} candidates that were tried meet the limits" in notes[-1]
    assert "marked" in notes[-1]


def compressed(accuracies: Sequence[float], limit: float) -> SearchResult:
    """Candidates of a compression with scores from shared weights, slower the better they are."""
    trials = searched(len(accuracies), None).trials
    objectives = (
        Objective("accuracy", "maximize", limit=limit, limit_on="validation"),
        Objective("latency_ms", "minimize", TARGET),
    )
    scored = [
        replace(trial, values={**trial.values, "accuracy": found})
        for trial, found in zip(trials, accuracies, strict=True)
    ]
    return SearchResult(objectives, tuple(scored))


def fine_tuned(trials: Sequence[Scored], objectives: Sequence[Objective]) -> Made:
    """Fine-tuning that keeps four tenths of what a candidate loses to .95."""
    rows = {
        trial.candidate.id: {
            "name": "accuracy",
            "value": 0.95 - 0.4 * (0.95 - trial.values["accuracy"]),
            "kind": "evaluated",
            "split": "validation",
        }
        for trial in trials
    }
    return {name: limit_checks(objectives, [row], []) for name, row in rows.items()}


def test_first_choice_leaves_out_candidates_that_cannot_reach_a_limit_on_finalists() -> None:
    result = compressed([0.2, 0.5, 0.7, 0.8, 0.86, 0.9, 0.92, 0.93], limit=0.91)
    assert {trial.number for trial in choose(result, 4)} == {4, 5, 6, 7}
    assert {trial.number for trial in choose(result, 6)} == {2, 3, 4, 5, 6, 7}
    everything = compressed([0.2, 0.5, 0.7, 0.8, 0.86, 0.9, 0.92, 0.93], limit=0.5)
    assert 0 in {trial.number for trial in choose(everything, 4)}, "the fastest"


def test_shortlist_learns_how_much_the_fine_tuning_recovers() -> None:
    """With a median difference, candidates far below the limit would seem to reach it."""
    scores = [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9]
    result = compressed(scores, limit=0.929)
    found = fill_shortlist(result, 4, lambda trials: fine_tuned(trials, result.objectives))
    assert found.packed
    assert min(numbers(result, found.packed)) >= 9
    kept = [each.id for each in found.tried if each.state == "kept"]
    assert numbers(result, kept) == {12}


@pytest.mark.parametrize("limit", [None, 100.0])
def test_shortlist_replaces_failed_candidates(limit: float | None) -> None:
    result, notes = searched(12, limit), []
    first = [trial.number for trial in choose(result, 3)]
    failing = {
        first[0]: ArtifactError("it has accuracy nan on validation images"),
        first[2]: DivergedError(7, 0.1),
    }
    found = fill_shortlist(result, 3, Maker(result, predicted, failing), notes.append)
    assert len(found.packed) == 3
    assert not numbers(result, found.packed) & failing.keys()
    failed = {each.id: each.reason for each in found.tried if each.state == "failed"}
    assert numbers(result, list(failed)) == failing.keys()
    assert any("accuracy nan" in reason for reason in failed.values())
    assert any("accuracy nan" in note for note in notes)


def test_shortlist_raises_if_every_candidate_fails() -> None:
    result = searched(4, None)
    failing = {i: ArtifactError(f"network {i} is broken") for i in range(4)}
    with pytest.raises(ArtifactError, match="is broken"):
        fill_shortlist(result, 2, Maker(result, predicted, failing))


def test_shortlist_stops_if_no_candidates_are_left() -> None:
    result = searched(2, limit=1.5)
    found = fill_shortlist(result, 5, make := Maker(result, predicted))
    assert len(make.rounds) == 1
    assert len(found.packed) == 2
    assert sorted(each.state for each in found.tried) == ["broken", "kept"]


def test_is_own_fault_excludes_errors_of_the_machine() -> None:
    for error in (DeviceError("no memory"), StorageError("disk full")):
        assert not is_own_fault(error)
    assert is_own_fault(DivergedError(1, 0.1))


def test_shortlist_survives_a_round_trip_and_reports_damage(tmp_path: Path) -> None:
    assert read_tried(tmp_path) == ()
    result = searched(12, limit=6.0)
    failing = {0: ArtifactError("it is broken")}
    found = fill_shortlist(result, 3, Maker(result, predicted, failing))
    found.write(tmp_path)
    assert read_tried(tmp_path) == found.tried
    (tmp_path / "finalists.json").write_text('{"schema": 1, "tried": [{}]}')
    with pytest.raises(RunError, match=r"finalists\.json is damaged .*remove it"):
        read_tried(tmp_path)
