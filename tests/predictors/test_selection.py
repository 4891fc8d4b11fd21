from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.predictors import networks_to_time
from hwnas.predictors.features import features
from hwnas.search_spaces import MobileNetConfig, MobileNetSpace, Stage

TINY = MobileNetSpace(
    MobileNetConfig(
        (Stage(8, 1, depth=(1, 2), expand_ratio=(2, 3)),),
        resolution=(8,),
        in_channels=1,
        outputs=10,
        stem_channels=8,
        head_channels=16,
        feature_channels=16,
    )
)


@settings(max_examples=10)
@given(count=st.integers(1, 9), seed=st.integers(0, 50))
def test_the_ends_come_first_and_all_differ(count: int, seed: int) -> None:
    chosen = networks_to_time(TINY, count, random.Random(seed))
    assert TINY.size() == 6
    assert len(chosen) == len(set(chosen)) == min(count, 6)
    assert chosen[:2] == [TINY.smallest(), TINY.largest()][:count]
    assert networks_to_time(TINY, count, random.Random(seed)) == chosen


def test_chosen_networks_tell_more_than_random_ones(space: MobileNetSpace) -> None:
    """The volume of what is known, det(X^T X), which D-optimal designs make large."""

    def information(networks: list) -> float:
        rows = (features([space.workload(n) for n in networks]) - centre) / spread
        rows = np.column_stack([np.ones(len(rows)), rows])
        return float(np.linalg.slogdet(rows.T @ rows + 1e-2 * np.eye(rows.shape[1]))[1])

    rng = random.Random(1)
    pool = [space.sample(rng) for _ in range(40)]
    table = features([space.workload(network) for network in pool])
    centre, spread = table.mean(0), table.std(0)
    chosen = information(networks_to_time(space, 12, random.Random(0)))
    at_random = [information(rng.sample(pool, 12)) for _ in range(10)]
    assert chosen > max(at_random)


def test_a_space_of_one_network_has_one_to_time() -> None:
    config = MobileNetConfig((Stage(8),), (8,), in_channels=1, outputs=10, head_channels=16)
    one = MobileNetSpace(config)
    assert networks_to_time(one, 5, random.Random(0)) == [one.smallest()]
