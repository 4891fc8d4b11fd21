from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search.samplers.base.batch import History
from hwnas.search.samplers.base.replay import Replay


def history(values: list[int]) -> History:
    codes = np.array(values, dtype=np.int64).reshape(-1, 1)
    limits = np.zeros((len(values), 0))
    return History(codes, codes * 1.0, np.ones(1), (), limits, frozenset())


def learnt_by(visits: list[int]) -> Replay[list[int]]:
    """Return a replay whose state is the list of codes, and that records each trial it reads."""

    def learn(state: list[int], known: History, done: int) -> None:
        state += known.codes[done:, 0].tolist()
        visits.extend(range(done, len(known)))

    return Replay(lambda known: [], learn)


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=5))
def test_replay_state_depends_only_on_the_given_history(asked: list[list[int]]) -> None:
    replay = learnt_by([])
    for values in asked:
        assert replay(history(values)) == values


def test_replay_reads_each_trial_once_while_the_history_grows() -> None:
    visits: list[int] = []
    replay = learnt_by(visits)
    for end in range(0, 50, 5):
        replay(history(list(range(end))))
    assert visits == list(range(45))
