"""Conformance suite: requirements for every sampler in `SAMPLERS`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from hwnas.search.samplers import SAMPLERS, BatchSampler, SpaceFeatures, make_sampler
from hwnas.search_spaces.tabular import Codes

OPTIONS: dict[str, tuple[Any, ...]] = {
    "kind": ("plain", "gated", "residual"),
    "depth": (1, 2, 3, 4),
    "kernel": (3, 5, 7),
    "ratio": (0.5, 1.0, 2.0, 4.0),
    "width": (8, 16, 24, 32),
}
DIRECTIONS = ("maximize", "minimize", "maximize", "minimize", "minimize")
QUICK = {
    "forest": {"start": 6},
    "gp": {"n_startup_trials": 8},
    "guided": {"start": 6},
    "linas": {"start": 6},
    "nsga2": {"population_size": 6},
    "nsga3": {"population_size": 6},
    "qlognehvi": {"start": 6, "restarts": 1, "raw_samples": 8},
    "surrogate-nsga2": {"start": 6},
    "tpe": {"n_startup_trials": 8},
}
"""Options with which a sampler soon leaves its random start."""
NEEDED = {"qlognehvi": "botorch"}
TRIALS, BATCH = 18, 5
SLOW = {"gp": 11, "qlognehvi": 11}
"""Slow samplers, with the smaller number of proposals to test."""
LARGEST = 5
ROOM = 2  # so that six of ten networks are allowed


def installed(name: str) -> bool:
    return name not in NEEDED or find_spec(NEEDED[name]) is not None


def marked(name: str) -> Any:
    reason = f"{NEEDED.get(name)} is not installed: pip install 'hwnas[{NEEDED.get(name)}]'"
    return pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=reason))


def is_planned(name: str) -> bool:
    return installed(name) and isinstance(made(name), BatchSampler)


def made(name: str, seed: int = 0, features: SpaceFeatures | None = None) -> Any:
    return make_sampler(name, seed, QUICK.get(name, {}), TRIALS, BATCH, features)


every = pytest.mark.parametrize("name", [marked(name) for name in sorted(SAMPLERS)])
planned = pytest.mark.parametrize("name", [n for n in sorted(SAMPLERS) if is_planned(n)])


def values(network: dict[str, Any], objectives: int) -> list[float]:
    """Return conflicting, nonlinear objective values of a network."""
    place = [OPTIONS[key].index(network[key]) for key in OPTIONS]
    kind, depth, kernel, ratio, width = place
    size = depth + kernel + ratio + width
    found = [
        size - 0.1 * depth * depth + (kind == 1),
        (1 + depth) * (1 + width) * (1 + ratio) + kernel,
        -float(kernel * kernel) + kind,
        float((width - 2) ** 2 + ratio),
        float(size % 5),
    ]
    return found[:objectives]


def study_of(sampler: Any, objectives: int = 2, before: Sequence[FrozenTrial] = ()) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=DIRECTIONS[:objectives], sampler=sampler)
    study.add_trials(before)
    return study


def searched(study: optuna.Study, trials: int, limited: bool = False) -> list[dict[str, Any]]:
    """Return the proposals of a study after more trials, optionally with a limit on the size."""
    for _ in range(trials):
        trial = study.ask()
        network = {key: trial.suggest_categorical(key, OPTIONS[key]) for key in OPTIONS}
        if limited:
            trial.set_constraint("size", float(too_large(network)))
        study.tell(trial, values(network, len(study.directions)))
    return [trial.params for trial in study.trials]


def too_large(network: dict[str, Any]) -> int:
    """Return by how much a network exceeds the size limit; two of three networks do."""
    return sum(OPTIONS[key].index(network[key]) for key in OPTIONS) - LARGEST


@cache
def proposals(name: str, seed: int = 0) -> list[dict[str, Any]]:
    return searched(study_of(made(name, seed)), length(name))


def length(name: str) -> int:
    return SLOW.get(name, TRIALS)


def all_proposals() -> dict[str, list[dict[str, Any]]]:
    return {name: proposals(name) for name in sorted(SAMPLERS) if installed(name)}


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, list[dict[str, Any]]]:
    """Return the proposals that another process makes."""
    code = "import json, runpy, sys; made = runpy.run_path(sys.argv[1])['all_proposals']()"
    command = [sys.executable, "-c", f"{code}; print(json.dumps(made))", __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


@every
def test_sampler_is_an_optuna_sampler_and_proposes_valid_options(name: str) -> None:
    assert isinstance(made(name), optuna.samplers.BaseSampler)
    found = proposals(name)
    assert len(found) == length(name)
    assert all(network[key] in OPTIONS[key] for network in found for key in OPTIONS)


@every
def test_sampler_repeats_its_proposals_in_another_process(
    name: str, elsewhere: dict[str, list[dict[str, Any]]]
) -> None:
    assert elsewhere[name] == proposals(name)


@every
def test_sampler_proposes_other_networks_for_another_seed(name: str) -> None:
    assert proposals(name, 1) != proposals(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Box decomposition")  # Optuna's: gp is slow for five
@every
@pytest.mark.parametrize("objectives", [1, 3, 4, 5])
def test_sampler_accepts_one_to_five_objectives_in_both_directions(
    name: str, objectives: int
) -> None:
    """Every other test has two objectives."""
    study = study_of(made(name), objectives)
    searched(study, 10)
    assert len(study.trials) == 10
    assert study.best_trials


@pytest.mark.slow
@every
def test_sampler_finds_a_feasible_network(name: str) -> None:
    if name == "proxy-order":
        pytest.skip("it learns nothing, so only limits that are known beforehand count")
    found = searched(study_of(made(name)), length(name) + 6, limited=True)
    assert any(too_large(network) <= 0 for network in found)


@planned
def test_planned_sampler_keeps_limits_known_in_advance(name: str) -> None:
    def allowed(codes: Codes) -> npt.NDArray[np.bool_]:
        return codes.sum(1) <= LARGEST + ROOM

    known = SpaceFeatures(OPTIONS, allowed=allowed, known_limits=frozenset({"size"}))
    found = searched(study_of(made(name, features=known)), length(name), limited=True)
    assert all(too_large(network) <= ROOM for network in found)


@planned
def test_planned_sampler_proposes_no_network_twice(name: str) -> None:
    found = proposals(name)
    assert len({tuple(network.values()) for network in found}) == length(name)


@planned
def test_planned_sampler_exhausts_a_space_before_it_repeats_a_network(name: str) -> None:
    few = {"a": (0, 1, 2), "b": (0, 1), "c": (0, 1)}
    study = study_of(made(name, features=SpaceFeatures(few)))
    for _ in range(12):
        trial = study.ask()
        network = [trial.suggest_categorical(key, options) for key, options in few.items()]
        study.tell(trial, [sum(network), network[0] * network[1]])
    assert len({tuple(t.params.values()) for t in study.trials}) == 12


@planned
@pytest.mark.parametrize("finished", [BATCH + 2, 2 * BATCH, 2 * BATCH + 1])
def test_planned_sampler_resumes_with_the_same_proposals(name: str, finished: int) -> None:
    known = SpaceFeatures(OPTIONS)
    whole = study_of(made(name, features=known))
    searched(whole, 3 * BATCH)
    resumed = study_of(made(name, features=known), before=whole.trials[:finished])
    searched(resumed, 3 * BATCH - finished)
    assert [t.params for t in resumed.trials] == [t.params for t in whole.trials]


@planned
def test_planned_sampler_proposes_unfinished_trials_again(name: str) -> None:
    known = SpaceFeatures(OPTIONS)
    study = study_of(made(name, features=known))
    searched(study, BATCH)
    asked = [study.ask() for _ in range(BATCH)]
    batch = [{k: t.suggest_categorical(k, OPTIONS[k]) for k in OPTIONS} for t in asked]
    for i in (1, 3):
        study.tell(asked[i], values(batch[i], 2))
    finished = study.get_trials(states=(TrialState.COMPLETE,))
    resumed = study_of(made(name, features=known), before=finished)
    assert searched(resumed, BATCH - 2)[-3:] == [batch[i] for i in (0, 2, 4)]
