from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search.objectives.front import Losses
from hwnas.search.samplers import History, SpaceFeatures
from hwnas.search.samplers.eas import EAS
from hwnas.search_spaces.tabular import Codes

FEATURES = SpaceFeatures({f"x{i}": range(4) for i in range(10)})
STAGES = SpaceFeatures({"a.depth": (1, 2, 3), "a.width": (8, 16, 32), "b.depth": (1, 2, 3)})


def loss(codes: Codes) -> Losses:
    """Return a loss that the first half of the choices lower and the others raise, (n, 1)."""
    share = codes.shape[1] // 2
    return np.asarray((1 - codes[:, :share].mean(1) / 3) ** 2 + codes.mean(1) / 3)[:, None]


def seen(codes: Codes) -> History:
    keys = frozenset(row.tobytes() for row in codes)
    return History(codes, loss(codes), np.ones(1), (), np.zeros((len(codes), 0)), keys)


def searched(sampler: EAS, features: SpaceFeatures, trials: int) -> Codes:
    sampler.features = features
    codes = np.zeros((0, len(features.sizes)), dtype=np.int64)
    while len(codes) < trials:
        rng = np.random.default_rng([sampler.seed, len(codes)])
        codes = np.vstack([codes, sampler.plan(features, seen(codes), sampler.batch, rng)])
    return codes


def widening(sampler: EAS, codes: Codes) -> npt.NDArray[np.float32]:
    """Return the mean probability that the sampler enlarges each choice of random networks."""
    learner, rng = sampler._learner(seen(codes)), np.random.default_rng(0)
    with torch.no_grad():
        chances = [
            learner.logits(FEATURES, code, 0)[0].sigmoid().numpy()
            for code in rng.integers(0, 3, (20, 10))
        ]
    return np.mean(chances, axis=0)


@pytest.mark.slow
def test_eas_learns_which_choices_to_enlarge() -> None:
    for seed in range(3):
        sampler = EAS(seed)
        chances = widening(sampler, searched(sampler, FEATURES, 200))
        assert chances[:5].mean() > 1.2 * chances[5:].mean()


def test_eas_enlarges_about_one_choice_at_first() -> None:
    sampler = EAS()
    codes = searched(sampler, FEATURES, 4)
    assert 0.5 < widening(sampler, codes).sum() < 2


def test_eas_children_mostly_follow_from_one_action_on_an_earlier_network() -> None:
    features = SpaceFeatures({name: range(4) for name in ("a.depth", "b.depth", *"cdefgh")})
    codes = searched(EAS(roots=2), features, 60)
    follows = []
    for i in range(10, len(codes)):
        steps = codes[i] - codes[:i]
        one = ((steps >= 0) & (steps <= 1)).all(1) & (steps[:, :2].sum(1) <= 1)
        follows.append(one.any())
    assert np.mean(follows) > 0.8


def test_eas_proposes_no_network_twice_before_all_are_proposed() -> None:
    codes = searched(EAS(batch=3), STAGES, 27)
    assert len(np.unique(codes, axis=0)) == 27


def test_eas_makes_no_move_in_an_inactive_choice() -> None:
    def canonical(codes: Codes) -> Codes:
        found = codes.copy()
        found[:, 1] *= found[:, 0] > 0
        return found

    features = SpaceFeatures({"x0": (0, 1), "x1": (0, 1, 2)}, canonical=canonical)
    sampler = EAS(features=features)
    learner = sampler._learner(seen(np.array([[0, 0], [1, 0]])))
    for code, growable in (([0, 0], [True, False]), ([1, 0], [False, True])):
        logits, _ = learner.logits(features, np.array(code), 0)
        assert logits.isfinite().tolist() == growable


@pytest.mark.parametrize(
    "options", [{"roots": 0}, {"learning_rate": 0.0}, {"entropy": -0.1}], ids=str
)
def test_eas_refuses_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="sampler eas: "):
        EAS(**options)  # type: ignore[arg-type]
