from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError, DivergedError, NonFiniteOutput
from hwnas.search import RankingCheck, SupernetTraining, TrainConfig, TrainEvaluator
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.ranking import compare_rankings, spread_over_macs
from hwnas.search.tasks.classification import Classification
from hwnas.search_spaces import Candidate, MobileNetSpace, mobilenet

SCORES = st.lists(st.floats(0, 1), min_size=4, max_size=20, unique=True).map(np.array)


@pytest.mark.slow
@given(SCORES)
def test_compare_rankings_gives_tau_one_and_no_regret_for_equal_scores(scores: np.ndarray) -> None:
    found = compare_rankings(scores, scores)
    assert found.tau == pytest.approx(1)
    assert found.regret == 0
    assert compare_rankings(-scores, scores).tau == pytest.approx(-1)


def test_regret_is_the_loss_of_the_best_of_the_top_three() -> None:
    shared = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    alone = np.array([0.1, 0.3, 0.2, 0.8, 0.4])
    assert compare_rankings(shared, alone).regret == pytest.approx(0.5)
    # With minimisation, the last three rank best; their minimum, 0.2, misses the best, 0.1, by 0.1.
    assert compare_rankings(shared, alone, maximize=False).regret == pytest.approx(0.1)


def test_tau_of_equal_scores_is_zero() -> None:
    assert compare_rankings(np.ones(5), np.arange(5.0)).tau == 0


@pytest.mark.slow
def test_spread_over_macs_gives_nearly_even_steps() -> None:
    space = mobilenet((8, 8, 1), 10)
    networks = spread_over_macs(space, 8, 100)
    macs = [space.workload(network).macs for network in networks]
    assert macs == sorted(set(macs))
    steps = np.diff(macs)
    assert steps.max() < 3 * np.median(steps)


@pytest.fixture
def check(
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    tmp_path: Path,
) -> RankingCheck:
    config = TrainConfig(
        epochs=9, batch_size=50, workers=0, ranking_check=4, ranking_epochs=0.5, sampling="fair"
    )
    training = SupernetTraining(
        small_space, digits_task, few_digits, config, 0, "run", tmp_path / "supernet"
    )
    return RankingCheck.of(training)


@pytest.mark.slow
def test_ranking_check_keeps_trained_networks_and_resumes(
    check: RankingCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = check.space.supernet().shared.state_dict()
    trained: list[Candidate] = []
    evaluate = TrainEvaluator.evaluate

    def counted(self: TrainEvaluator, candidate: Candidate, *given: object) -> object:
        trained.append(candidate)
        return evaluate(self, candidate, *given)

    monkeypatch.setattr(TrainEvaluator, "evaluate", counted)
    found = check(weights)
    assert (found.networks, found.metric) == (4, "accuracy")
    assert -1 <= found.tau <= 1
    assert found.regret >= 0
    assert "4 networks with Kendall's tau" in found.summary
    assert len(set(trained)) == 4
    assert check.folder is not None
    file = check.folder / "ranking.jsonl"
    lines = file.read_text().splitlines()
    assert len(lines) == 4
    assert json.loads((check.folder / "ranking.json").read_text())["tau"] == found.tau
    file.write_text("\n".join([*lines[:3], lines[3][:20]]) + "\n")
    trained.clear()
    assert replace(check)(weights) == found
    assert len(trained) == 1, "only the one whose line was cut off"


def test_ranking_check_refuses_weights_of_another_space(check: RankingCheck) -> None:
    other = mobilenet((8, 8, 1), 10).supernet().shared.state_dict()
    with pytest.raises(
        ConfigError, match=r"do not belong to the supernet of space mobilenet-.*: .* more"
    ):
        check(other)


def test_spread_over_macs_refuses_more_networks_than_it_finds(check: RankingCheck) -> None:
    with pytest.raises(ConfigError, match=r"300 random networks .* fewer than the 290 to compare"):
        spread_over_macs(check.space, 290, 300)


@pytest.mark.slow
def test_ranking_check_leaves_out_networks_without_a_score(
    check: RankingCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = check.space.supernet().shared.state_dict()
    evaluate, asked = TrainEvaluator.evaluate, []

    def broken(self: TrainEvaluator, candidate: Candidate, *given: object) -> object:
        asked.append(candidate)
        if len(asked) == 1:
            raise NonFiniteOutput("the network outputs NaN")
        if len(asked) == 2 or everything:
            raise DivergedError(3, 0.1)
        return evaluate(self, candidate, *given)

    monkeypatch.setattr(TrainEvaluator, "evaluate", broken)
    everything = False
    assert check(weights).networks == 2
    everything = True
    with pytest.raises(NonFiniteOutput, match="only 0 of 4 networks of the ranking check"):
        replace(check, seed=1, folder=None)(weights)
