from __future__ import annotations

import optuna
import pytest
from optuna.samplers import NSGAIIISampler, NSGAIISampler

from hwnas.errors import ConfigError
from hwnas.search.samplers import make_sampler


def test_make_sampler_refuses_wrong_options() -> None:
    with pytest.raises(ConfigError, match="no key 'population'; did you mean 'population_s"):
        make_sampler("nsga2", 0, {"population": 10})
    with pytest.raises(ConfigError, match="population_size"):
        make_sampler("nsga2", 0, {"population_size": "many"})


def test_make_sampler_suggests_a_name_for_an_unknown_one() -> None:
    with pytest.raises(ConfigError, match="unknown sampler 'tpee'; did you mean 'tpe'"):
        make_sampler("tpee", 0, {})


def searched(
    sampler: optuna.samplers.BaseSampler, before: list[optuna.trial.FrozenTrial], batch: int = 3
) -> list[optuna.trial.FrozenTrial]:
    """Run sixty trials after the earlier ones, in batches; every fifth is pruned."""
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
    study.add_trials(before)
    for _ in range(60 // batch):
        asked = [study.ask() for _ in range(batch)]
        values = [[t.suggest_categorical(f"x{i}", (0, 1, 2, 3)) for i in range(4)] for t in asked]
        for trial, x in zip(asked, values, strict=True):
            if trial.number % 5 == 4:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            else:
                study.tell(trial, [x[0] + x[1], x[1] - x[2] * x[3]])
    return study.trials


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("name", "plain"), [("nsga2", NSGAIISampler), ("nsga3", NSGAIIISampler)], ids=["nsga2", "nsga3"]
)
def test_nsga_samplers_propose_the_same_as_optuna(
    name: str, plain: type[NSGAIISampler] | type[NSGAIIISampler]
) -> None:
    ours, theirs = [], []
    for _ in range(2):  # the second resumes the first, with other random numbers
        known = len(ours)
        sampler = make_sampler(name, 0, {"population_size": 8}, known=known)
        ours += searched(sampler, ours)[known:]
        theirs += searched(plain(population_size=8, seed=known), theirs)[known:]
    assert [t.params for t in ours] == [t.params for t in theirs]
    assert [t.system_attrs for t in ours] == [t.system_attrs for t in theirs]
    assert len({tuple(t.params.values()) for t in ours}) > 20
