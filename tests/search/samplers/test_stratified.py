"""The stratified sampler: candidates over the whole range of a cost, up to a limit."""

from __future__ import annotations

import random

import numpy as np
import optuna
import pytest

from hwnas.errors import ConfigError
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers import SpaceFeatures, make_sampler
from hwnas.search.samplers.base.computed_features import features_of_space
from hwnas.search_spaces import Architecture, ProductSpace, resnet, union
from hwnas.search_spaces.space.precision import PrecisionSpace

SPACE = resnet((32, 32, 3), 10, "compact", resolution=(32,))
OBJECTIVES = (Objective("accuracy", "maximize"), Objective("macs", "minimize"))
COUNT = 12


def proposed(**options: float) -> list[float]:
    """Return the multiply-accumulates of a batch, in the order of its trials."""
    return [float(SPACE.workload(network).macs) for network in networks(**options)]


def networks(**options: float) -> list[Architecture]:
    """Return the networks of a batch, in the order of its trials."""
    features = features_of_space(SPACE, OBJECTIVES)
    sampler = make_sampler("stratified", 0, options, COUNT, COUNT, features)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    found = []
    for _ in range(COUNT):
        trial = study.ask(features.distributions)
        found.append(SPACE.architecture(trial.params))
        study.tell(trial, [0.0, float(SPACE.workload(found[-1]).macs)])
    return found


def test_stratified_networks_have_similar_widths_in_all_stages() -> None:
    widths = [
        [value for name, value in each.values if name.endswith(".width")] for each in networks()
    ]
    spread = np.array([max(each) / min(each) for each in widths])
    assert (spread == 1).any()
    assert np.median(spread) <= 2
    drawn = [SPACE.sample(random.Random(seed)) for seed in range(200)]
    of_random = [[v for n, v in each.values if n.endswith(".width")] for each in drawn]
    assert np.median(spread) < np.median([max(each) / min(each) for each in of_random])


def test_stratified_sampler_proposes_large_networks_first() -> None:
    found = proposed()
    assert found == sorted(found, reverse=True)


def test_stratified_sampler_proposes_each_network_in_every_number_format() -> None:
    space = ProductSpace(SPACE, {"precision": PrecisionSpace(("int8", "bf16", "fp32"))})
    features = features_of_space(space, OBJECTIVES)
    sampler = make_sampler("stratified", 0, {}, COUNT, COUNT, features)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    trials = [study.ask(features.distributions) for _ in range(COUNT)]
    found = [space.candidate(space.architecture(trial.params)) for trial in trials]
    each = COUNT // 3
    formats = [candidate["precision"].as_dict()["number_format"] for candidate in found]
    assert formats == ["fp32"] * each + ["bf16"] * each + ["int8"] * each
    order = [candidate.network for candidate in found[:each]]
    assert len(set(order)) == each
    assert [candidate.network for candidate in found] == order * 3
    macs = [SPACE.workload(network).macs for network in order]
    assert macs == sorted(macs, reverse=True)


def test_stratified_sampler_draws_families_about_equally_often() -> None:
    space = union((32, 32, 3), 10, "cpu", resolution=(32,))
    features = features_of_space(space, OBJECTIVES)
    sampler = make_sampler("stratified", 0, {}, COUNT, COUNT, features)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    kinds = [study.ask(features.distributions).params["family"] for _ in range(COUNT)]
    assert 2 < kinds.count("compact") < COUNT - 2


def test_effective_choices_belong_to_the_family_of_a_network() -> None:
    space = union((32, 32, 3), 10, "cpu", resolution=(32,))
    features = features_of_space(space)
    codes = np.array([space.encode(network) for network in (space.smallest(), space.largest())])
    names = [choice.name for choice in space.choices]
    for row, kind in zip(features.effective(codes), space.members, strict=True):
        having = {name.split(".")[0] for name, effect in zip(names, row, strict=True) if effect}
        assert having == {"family", kind}


@pytest.mark.slow
def test_stratified_networks_are_evenly_spaced_in_log_macs() -> None:
    found = np.array(proposed(range=16.0))
    assert found.max() / found.min() > 8
    steps = np.diff(np.log(np.sort(found)))
    assert steps.max() < 2 * np.log(16) / COUNT
    assert steps.min() > np.log(16) / COUNT / 3
    assert len(set(found)) == COUNT


def test_stratified_sampler_leaves_out_networks_outside_the_range() -> None:
    found = proposed(most_macs=10e6, range=4.0)
    assert max(found) <= 10e6
    assert min(found) >= max(found) / 4.5


@pytest.mark.slow
def test_stratified_sampler_takes_small_networks_if_all_exceed_the_limit() -> None:
    features = features_of_space(SPACE, OBJECTIVES)
    sampler = make_sampler("stratified", 0, {"most_macs": 1.0}, 4, 4, features)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    network = SPACE.architecture(study.ask(features.distributions).params)
    drawn = [SPACE.architecture(features.parameters(c)) for c in features.draw(50, _rng())]
    sizes = [SPACE.workload(each).macs for each in drawn]
    assert SPACE.workload(network).macs <= np.quantile(sizes, 0.1)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("options", [{"most_macs": 0}, {"range": 1}, {"range": float("nan")}])
def test_stratified_sampler_refuses_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected a number above"):
        make_sampler("stratified", 0, options, 4, 4, SpaceFeatures({"a": (1, 2)}))
