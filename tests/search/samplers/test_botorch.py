from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from hwnas.errors import ConfigError
from hwnas.search.objectives.front import Losses, hypervolume
from hwnas.search.samplers import History, SpaceFeatures
from hwnas.search.samplers.botorch import QLogNEHVI
from hwnas.search_spaces.tabular import Codes

REFERENCE = np.array([1.5, 1.5])
needs_botorch = pytest.mark.skipif(
    find_spec("botorch") is None, reason="botorch is not installed: pip install 'hwnas[botorch]'"
)


def losses(codes: Codes) -> Losses:
    size, off = codes[:, :3] / 4, ((codes[:, 3:] / 4 - 0.5) ** 2).mean(1)
    return np.column_stack([((1 - size) ** 2).mean(1) + off, (size**2).mean(1) + off])


def seen(codes: Codes, violations: Losses | None = None) -> History:
    missed = np.zeros((len(codes), 0)) if violations is None else violations
    labels = tuple(f"limit{i}" for i in range(missed.shape[1]))
    keys = frozenset(row.tobytes() for row in codes)
    return History(codes, losses(codes), np.ones(2), labels, missed, keys)


def test_qlognehvi_names_the_install_command_of_a_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hwnas.search.samplers.botorch.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'hwnas\[botorch\]'"):
        QLogNEHVI()


@needs_botorch
@pytest.mark.parametrize("ordered", [True, False], ids=["ordinal", "one-hot"])
def test_qlognehvi_batch_adds_more_hypervolume_than_random_ones(ordered: bool) -> None:
    features = SpaceFeatures({f"x{i}": range(5) for i in range(6)}, ordered=ordered)
    codes = features.draw(24, np.random.default_rng(0))
    planned = QLogNEHVI(start=20).plan(features, seen(codes), 4, np.random.default_rng(0))
    assert planned.shape == (4, 6)
    assert len(np.unique(np.vstack([codes, planned]), axis=0)) == 28
    gain = hypervolume(losses(np.vstack([codes, planned])), REFERENCE)
    by_chance = [
        hypervolume(
            losses(np.vstack([codes, features.draw(4, np.random.default_rng(s))])), REFERENCE
        )
        for s in range(1, 40)
    ]
    assert gain > np.quantile(by_chance, 0.9)


@needs_botorch
def test_qlognehvi_learns_limits_from_evaluations() -> None:
    features = SpaceFeatures({f"x{i}": range(5) for i in range(6)})
    codes = features.draw(24, np.random.default_rng(0))
    history = seen(codes, codes[:, :1] - 1.0)  # x0 is to be at most 1
    planned = QLogNEHVI(start=20).plan(features, history, 4, np.random.default_rng(0))
    assert (planned[:, 0] <= 1).sum() >= 3


@needs_botorch
def test_qlognehvi_proposes_the_rest_of_a_small_space() -> None:
    features = SpaceFeatures({f"x{i}": range(2) for i in range(6)})
    every = np.random.default_rng(0).permutation(features.all_codes())
    planned = QLogNEHVI(start=2).plan(features, seen(every[:-2]), 4, np.random.default_rng(0))
    assert {row.tobytes() for row in planned} == {row.tobytes() for row in every[-2:]}
