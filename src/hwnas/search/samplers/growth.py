"""Small networks that grow, one choice at a time, as a bandit says.

Shapes: n networks of P positions, m objectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.predictors.gaussian_process import Numbers
from hwnas.search.front import Losses, non_dominated
from hwnas.search.samplers.knowledge import Knowledge
from hwnas.search.samplers.planned import History, PlannedSampler
from hwnas.search.samplers.pool import random_start
from hwnas.search.samplers.replay import Replay
from hwnas.search_spaces.tabular import Codes

__all__ = ["Growth"]

_ROOTS = 4
_SMALLEST_OF = 3  # of so many random options a root takes the least
_DRAWN = 50  # roots that one is picked from


class Growth(PlannedSampler):
    """Makes one choice of a network of the front larger, and sees whether that pays.

    After "Efficient Architecture Search by Network Transformation" (Cai et al., AAAI 2018), whose
    controller picks the layer to widen or the place to deepen. Here the controller is a bandit by
    Thompson's sampling (Biometrika 1933): its arms are the choices, and one more that plants a new
    small network. A move succeeds if no network before was at least as good in every objective.
    All that lead to a network from those before it count, so nothing need be written down but the
    trials.

    Choices count as ordered, from small to large. With the evaluator ``"grow"`` a child starts from
    the weights of the network that it grew from; with others this is a search by small steps.

    Args:
        seed: Of everything random.
        batch: Proposals planned together.
        knowledge: Of the space; made from a study's trials if None. Prices are not used.
        roots: Small random networks to begin with, at least 1.

    Raises:
        ConfigError: ``roots`` is out of range.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        knowledge: Knowledge | None = None,
        roots: int = _ROOTS,
    ) -> None:
        super().__init__(seed, batch, knowledge)
        if roots < 1:
            raise ConfigError(f"growth has roots {roots}; expected at least 1")
        self.roots = roots
        self._bandit = Replay(self._begin, self._learn)

    def plan(
        self, knowledge: Knowledge, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `PlannedSampler.plan`."""
        if len(history) < self.roots:
            return _planted(knowledge, history, count, rng)
        bandit = self._bandit(history)
        children, arms = self._children(knowledge, history, history.codes[_best(history)])
        picked: list[int] = []
        for _ in range(count):
            hopes = bandit.drawn(rng)
            left = np.setdiff1d(arms, arms[picked])  # each once in a batch
            if len(left) and hopes[left].max() >= hopes[-1]:
                arm = left[hopes[left].argmax()]
                picked.append(int(rng.choice(np.flatnonzero(arms == arm))))
        found = history.unseen(children[picked])
        if len(found) < count:
            new = _planted(knowledge, history, 2 * count, rng)
            found = history.unseen(np.vstack([found, new]))
        return found[:count]

    def _children(
        self, knowledge: Knowledge, history: History, parents: Codes
    ) -> tuple[Codes, npt.NDArray[np.int64]]:
        """Unseen networks by one move from some parents, and by which (N,)."""
        grown, arms = [parents[:0]], [np.zeros(0, dtype=np.int64)]
        for arm in range(len(knowledge.sizes)):
            children = history.unseen(_raised(knowledge, parents, arm))
            grown.append(children)
            arms.append(np.full(len(children), arm))
        codes, moves = np.vstack(grown), np.concatenate(arms)
        there = knowledge.allowed(codes)
        if knowledge.rows is not None:
            rows = {row.tobytes() for row in knowledge.rows}
            there = there & np.array([code.tobytes() in rows for code in codes], dtype=np.bool_)
        return codes[there], moves[there]

    def _begin(self, history: History) -> _Bandit:
        assert self.knowledge is not None
        return _Bandit.new(len(self.knowledge.sizes) + 1, history)

    def _learn(self, bandit: _Bandit, history: History, done: int) -> None:
        assert self.knowledge is not None
        if done == len(history):
            return
        new = history.codes[done:]
        sources = [_lowered(self.knowledge, new, arm) for arm in range(len(self.knowledge.sizes))]
        losses, feasible = history.losses, history.feasible
        for i in range(len(new)):
            arms = [arm for arm, keys in enumerate(sources) if keys[i] in bandit.known]
            bandit.learn(arms or [-1], losses[done + i], bool(feasible[done + i]))
            bandit.known.add(new[i].tobytes())


@dataclass
class _Bandit:
    """How often each move paid.

    Attributes:
        successes: Of each arm, (arms,); the last plants a new network.
        failures: The same.
        front: Losses of the feasible networks that none dominates, (N, m).
        known: All networks with values.
    """

    successes: Numbers
    failures: Numbers
    front: Losses
    known: set[bytes] = field(default_factory=set)

    @classmethod
    def new(cls, arms: int, history: History) -> _Bandit:
        """One that knows nothing."""
        return cls(np.zeros(arms), np.zeros(arms), np.empty((0, history.values.shape[1])))

    def drawn(self, rng: np.random.Generator) -> Numbers:
        """A chance of success of each arm, drawn from what is thought of it, (arms,)."""
        return rng.beta(1 + self.successes, 1 + self.failures)

    def learn(self, arms: list[int], losses: Losses, feasible: bool) -> None:
        """What came of moves that lead to the same network."""
        paid = feasible and not (self.front <= losses).all(1).any()
        (self.successes if paid else self.failures)[arms] += 1
        if paid:
            self.front = np.vstack([self.front, losses])
            self.front = self.front[non_dominated(self.front)]


def _best(history: History) -> npt.NDArray[np.int64]:
    """The front; while nothing keeps the limits, what misses them the least."""
    feasible = np.flatnonzero(history.feasible)
    if len(feasible):
        return feasible[non_dominated(history.losses[feasible])]
    missed = np.maximum(history.violations, 0.0)
    total = (missed / np.maximum(missed.max(0), np.finfo(float).tiny)).sum(1)
    nearest: npt.NDArray[np.int64] = np.flatnonzero(total == total.min())
    return nearest


def _raised(knowledge: Knowledge, codes: Codes, position: int) -> Codes:
    """Networks (n, P) whose choice takes its next option; only those that are others by it."""
    below = codes[codes[:, position] < knowledge.sizes[position] - 1]
    raised = below.copy()
    raised[:, position] += 1
    raised = knowledge.canonical(raised)
    others: Codes = raised[(raised != below).any(1)]
    return others


def _lowered(knowledge: Knowledge, codes: Codes, position: int) -> list[bytes]:
    """For each network (n, P) the one that `_raised` makes it from; nothing if there is none."""
    above = codes[:, position] > 0
    lowered = codes.copy()
    lowered[:, position] -= above
    lowered = knowledge.canonical(lowered)
    raised = lowered.copy()
    raised[:, position] += 1
    raised[:, position] = np.minimum(raised[:, position], knowledge.sizes[position] - 1)
    back = above & (knowledge.canonical(raised) == codes).all(1)
    return [row.tobytes() if there else b"" for row, there in zip(lowered, back, strict=True)]


def _planted(knowledge: Knowledge, history: History, count: int, rng: np.random.Generator) -> Codes:
    """New networks, small ones where there are any."""
    if knowledge.rows is None:
        shape = (_SMALLEST_OF, _DRAWN * count, len(knowledge.sizes))
        drawn = knowledge.canonical(rng.integers(knowledge.sizes, size=shape).min(0))
        drawn = history.unseen(drawn[knowledge.allowed(drawn)])[:count]
        if len(drawn) == count:
            return drawn
    return random_start(knowledge, history, count, rng)
