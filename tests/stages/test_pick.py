"""Which winner a user takes home."""

import pytest

from hwnas.deploy import Bundle
from hwnas.errors import ConfigError, InfeasibleError
from hwnas.search import Scored
from hwnas.stages import Goal, Job
from hwnas.stages.finalists import read_bundles
from hwnas.stages.pick import picked
from hwnas.stages.search import found


def latency_ms(bundle: Bundle | Scored) -> float:
    assert isinstance(bundle, Bundle)
    return bundle.measurements[0].latency_ms


def test_a_limit_leaves_only_what_was_measured_to_keep_it(job: Job, goal: Goal) -> None:
    bundles = read_bundles(job.folder.path / "bundles").values()
    first, second, _ = sorted(latency_ms(bundle) for bundle in bundles)
    assert latency_ms(picked(job, goal, None, second)) <= second
    assert latency_ms(picked(job, goal, "fastest", None)) == first
    with pytest.raises(InfeasibleError, match=f"the fastest was measured at {first:.3g} ms"):
        picked(job, goal, None, first / 2)


def test_a_network_without_a_bundle_is_given_as_its_trial(job: Job, goal: Goal) -> None:
    bundles = read_bundles(job.folder.path / "bundles")
    trials = found(job.folder.path, goal).trials
    other = next(trial for trial in trials if trial.candidate.id not in bundles)
    assert picked(job, goal, other.candidate.id, None) == other
    with pytest.raises(ConfigError, match=f"'{other.candidate.id}' is no network"):
        picked(job, goal, other.candidate.id, 1e6)
