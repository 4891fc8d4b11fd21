"""Proposers of configurations: what all of them do, the rules, and a proposer of the user."""

import sys
from pathlib import Path

import pytest
from tests.kernels.planted_surface import LIGHT, PROBLEM, START, surface, task

from hwnas.errors import ConfigError
from hwnas.kernels.operator import Config
from hwnas.kernels.resources import Resources
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning.proposers import PROPOSERS, RuleProposer, proposer_named
from hwnas.kernels.tuning.trial import Footprint, TuningTrial, key_of

each = pytest.mark.parametrize("name", PROPOSERS)


def timed(
    config: Config, time_us: float, programs: int = 200, resources: Resources = LIGHT[0]
) -> TuningTrial:
    footprint = Footprint(programs, 1000.0)
    return TuningTrial(config, "timed", "", footprint, (resources,), Times.of([time_us]))


@each
def test_proposer_begins_with_the_start_and_proposes_only_solutions(name: str) -> None:
    times, proposer = surface(0), PROPOSERS[name](task(), 0)
    assert proposer.ask(8)[0] == START
    for _ in range(5):
        asked = proposer.ask(40)
        assert 1 <= len(asked) <= 40
        assert all(PROBLEM.broken(config) == [] for config in asked)
        proposer.tell([timed(config, times(config)) for config in asked[:6]])


@each
def test_proposer_repeats_its_proposals_for_the_same_seed(name: str) -> None:
    def sequence(seed: int) -> list[Config]:
        times, proposer, found = surface(1), PROPOSERS[name](task(), seed), []
        for _ in range(4):
            found += (asked := proposer.ask(30))
            proposer.tell([timed(config, times(config)) for config in asked[:5]])
        return found

    assert sequence(3) == sequence(3)
    assert sequence(3) != sequence(4)


@each
def test_proposer_finds_a_config_among_the_fastest_two_percent(name: str) -> None:
    times, proposer, known = surface(2), PROPOSERS[name](task(), 0), {}
    for _ in range(25):
        new = [config for config in proposer.ask(100) if key_of(config) not in known][:6]
        known |= {key_of(config): times(config) for config in new}
        proposer.tell([timed(config, times(config)) for config in new])
    best = sorted(map(times, PROBLEM.solutions()))
    assert min(known.values()) <= best[len(best) // 50]


@pytest.mark.parametrize(
    ("trial", "first"),
    [
        # Fewer programs than the GPU can work on: smaller blocks.
        (timed(START | {"BLOCK_M": 64, "num_warps": 4}, 5.0, programs=20), {"BLOCK_M": 16}),
        # Registers leave room for few warps: smaller blocks, more warps or fewer stages.
        (timed(START, 5.0, resources=Resources(255, 0, 0, 1)), None),
    ],
)
def test_rule_proposer_changes_the_limiting_resource_first(
    trial: TuningTrial, first: Config | None
) -> None:
    proposer = RuleProposer(task(), 0)
    proposer.tell([trial])
    changed = [
        {name: value for name, value in config.items() if value != trial.config[name]}
        for config in proposer.ask(30)[1:6]
    ]
    for change in changed:
        smaller = any(change.get(n, 512) < trial.config[n] for n in START if n != "num_warps")
        assert smaller or (first is None and change.get("num_warps", 0) > trial.config["num_warps"])
    assert first is None or first in changed


def test_proposer_named_finds_proposers_of_the_user_and_refuses_typos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_proposer_of_kernels.py").write_text("def mine(task, seed):\n    return None\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert proposer_named("my_proposer_of_kernels:mine")(task(), 0) is None
    assert proposer_named("rules") is RuleProposer
    with pytest.raises(ConfigError, match="unknown proposer 'ruls'; did you mean 'rules'"):
        proposer_named("ruls")
