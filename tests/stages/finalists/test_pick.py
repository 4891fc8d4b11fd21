"""Choice of the finalist that is exported."""

from collections.abc import Callable

import pytest

from hwnas.deploy import Bundle
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.search import Scored
from hwnas.stages import Job, SearchGoal
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.finalists.pick import picked
from hwnas.stages.search import found


def latency_ms(bundle: Bundle | Scored) -> float:
    assert isinstance(bundle, Bundle)
    return bundle.measurements[0].latency_ms


def test_picked_returns_only_networks_measured_within_the_limit(job: Job, goal: SearchGoal) -> None:
    bundles = read_bundles(job.folder.path / "bundles").values()
    first, second, _ = sorted(latency_ms(bundle) for bundle in bundles)
    assert latency_ms(picked(job, goal, None, second)) <= second
    assert latency_ms(picked(job, goal, "fastest", None)) == first
    with pytest.raises(InfeasibleError, match=f"the fastest was measured at {first:.3g} ms"):
        picked(job, goal, None, first / 2)


def test_picked_returns_the_trial_of_a_network_without_a_bundle(job: Job, goal: SearchGoal) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    trials = found(job.folder.path, goal).trials
    other = next(trial for trial in trials if trial.candidate.id not in bundles)
    assert picked(job, goal, other.candidate.id, None) == other
    with pytest.raises(InfeasibleError, match=f"{other.candidate.id} was not measured, and --max"):
        picked(job, goal, other.candidate.id, 1e6)
    with pytest.raises(ConfigError, match="'none' is not a network of this run"):
        picked(job, goal, "none", None)


def test_picked_refuses_a_finalist_above_the_given_latency(job: Job, goal: SearchGoal) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    *_, second, slowest = sorted(bundles, key=lambda name: latency_ms(bundles[name]))
    between = (latency_ms(bundles[second]) + latency_ms(bundles[slowest])) / 2
    with pytest.raises(InfeasibleError, match=f"network {slowest} takes .* ms, and --max-latency"):
        picked(job, goal, slowest, between)


@pytest.fixture
def notes(job: Job, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    limit_messages: list[str] = []
    monkeypatch.setattr(job.reporter, "note", lambda text, **values: limit_messages.append(text))
    return limit_messages


def test_picked_returns_a_network_that_breaks_a_limit_only_by_id(
    job: Job, limited: Callable[..., SearchGoal], notes: list[str]
) -> None:
    """Regression test: the limit was 0.1 ms, and the knee took 0.415 ms."""
    bundles = read_bundles(job.folder.path / "bundles")
    first, second, third = sorted(bundles, key=lambda name: latency_ms(bundles[name]))
    between = (latency_ms(bundles[first]) + latency_ms(bundles[second])) / 2
    for pick in (None, "knee", "fastest", "most-accurate"):
        chosen = picked(job, limited(latency_ms=between), pick, None)
        assert latency_ms(chosen) <= between
    assert not notes
    assert picked(job, limited(latency_ms=between), third, None) == bundles[third]
    assert [f"warning: network {third}" in note for note in notes] == [True]


def test_picked_refuses_names_if_no_finalist_keeps_the_limits(
    job: Job, limited: Callable[..., SearchGoal], notes: list[str]
) -> None:
    goal = limited(latency_ms=1e-4)
    bundles = read_bundles(job.folder.path / "bundles")
    fastest = min(bundles, key=lambda name: latency_ms(bundles[name]))
    for pick in (None, "knee"):
        with pytest.raises(InfeasibleError, match=f"none of 3 .* closest is {fastest}: .*--pick"):
            picked(job, goal, pick, None)
    with pytest.raises(InfeasibleError, match="none of 3 finalists meets the limits"):
        picked(job, goal, None, 1e6)
    assert picked(job, goal, fastest, None) == bundles[fastest]
    assert any("the limit is 0.0001" in note for note in notes)


def test_picked_returns_a_miss_within_noise_with_a_note(
    job: Job, limited: Callable[..., SearchGoal], notes: list[str]
) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    fastest = min(bundles, key=lambda name: latency_ms(bundles[name]))
    headline = bundles[fastest].measurements[0].headline
    goal = limited(latency_ms=(headline.p20 + headline.p50) / 2)
    assert latency_ms(picked(job, goal, "fastest", None)) == headline.p50
    assert any("within noise" in note for note in notes)
