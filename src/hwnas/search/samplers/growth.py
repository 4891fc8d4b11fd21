"""Search by growth of small networks, one choice at a time, with a bandit as the controller.

Shapes: n networks of P positions, m objectives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.registry import Plugin
from hwnas.search.objectives.front import Losses, non_dominated
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import random_start
from hwnas.search.samplers.base.replay import Replay
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "Growth", "existing", "filled_up", "planted"]

_ROOTS = 4
_SMALLEST_OF = 3  # random options per position, of which a root takes the smallest
_DRAWN = 50  # random networks per root that is needed


class Growth(BatchSampler):
    """Sampler that enlarges one choice of a network on the front, picked by a bandit.

    It follows "Efficient Architecture Search by Network Transformation" (Cai et al., AAAI 2018),
    whose controller picks the layer to widen or the position to deepen. Here the controller is a
    bandit with Thompson sampling (Thompson, Biometrika 1933). The bandit has one arm for each
    choice, and one more arm for a new small network. A move succeeds if its network is feasible and
    no earlier feasible network is at least as good in every objective. A network counts as an
    outcome of every move that leads to it from an earlier network, so the trials alone determine
    the state of the bandit.

    The options of a choice are taken to be ordered from small to large. With the evaluator
    ``"grow"`` a child starts from the weights of the network that it grew from; with other
    evaluators this is a local search.

    Args:
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together.
        features: Description of the space; made from a study's trials if None. Predicted costs are
            used for limits only.
        roots: Number of small random networks to start with, at least 1.

    Raises:
        ConfigError: ``roots`` is out of range.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        roots: int = _ROOTS,
    ) -> None:
        super().__init__(seed, batch, features)
        if roots < 1:
            raise ConfigError(f"sampler growth: roots is {roots}; expected at least 1")
        self.roots = roots
        self._bandit = Replay(self._begin, self._learn)

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        if len(history) < self.roots:
            return planted(features, history, count, rng)
        bandit = self._bandit(history)
        children, arms = self._children(features, history, history.codes[_best(history)])
        picked: list[int] = []
        for _ in range(count):
            hopes = bandit.drawn(rng)
            left = np.setdiff1d(arms, arms[picked])  # each arm at most once in a batch
            if len(left) and hopes[left].max() >= hopes[-1]:
                arm = left[hopes[left].argmax()]
                picked.append(int(rng.choice(np.flatnonzero(arms == arm))))
        return filled_up(children[picked], features, history, count, rng)

    def _children(
        self, features: SpaceFeatures, history: History, parents: Codes
    ) -> tuple[Codes, npt.NDArray[np.int64]]:
        """Return the unseen networks one move away from the parents, and their moves, (N,)."""
        grown, arms = [parents[:0]], [np.zeros(0, dtype=np.int64)]
        for arm in range(len(features.sizes)):
            children = history.unseen(_raised(features, parents, arm))
            grown.append(children)
            arms.append(np.full(len(children), arm))
        codes, moves = np.vstack(grown), np.concatenate(arms)
        there = existing(features, codes)
        return codes[there], moves[there]

    def _begin(self, history: History) -> _Bandit:
        assert self.features is not None
        return _Bandit.new(len(self.features.sizes) + 1, history)

    def _learn(self, bandit: _Bandit, history: History, done: int) -> None:
        assert self.features is not None
        if done == len(history):
            return
        new = history.codes[done:]
        sources = [_lowered(self.features, new, arm) for arm in range(len(self.features.sizes))]
        losses, feasible = history.losses, history.feasible
        for i in range(len(new)):
            arms = [arm for arm, keys in enumerate(sources) if keys[i] in bandit.known]
            bandit.learn(arms or [-1], losses[done + i], bool(feasible[done + i]))
            bandit.known.add(new[i].tobytes())


@dataclass
class _Bandit:
    """Successes and failures of each move.

    Attributes:
        successes: Number of successes of each arm, (arms,); the last arm is a new small network.
        failures: Number of failures of each arm, (arms,).
        front: Losses of the non-dominated feasible networks, (N, m).
        known: Keys of all networks that were evaluated.
    """

    successes: Numbers
    failures: Numbers
    front: Losses
    known: set[bytes] = field(default_factory=set)

    @classmethod
    def new(cls, arms: int, history: History) -> _Bandit:
        """Return a bandit without observations."""
        return cls(np.zeros(arms), np.zeros(arms), np.empty((0, history.values.shape[1])))

    def drawn(self, rng: np.random.Generator) -> Numbers:
        """Draw a probability of success of each arm from its posterior, (arms,)."""
        return rng.beta(1 + self.successes, 1 + self.failures)

    def learn(self, arms: list[int], losses: Losses, feasible: bool) -> None:
        """Record the outcome of the moves that lead to one network."""
        paid = feasible and not (self.front <= losses).all(1).any()
        (self.successes if paid else self.failures)[arms] += 1
        if paid:
            self.front = np.vstack([self.front, losses])
            self.front = self.front[non_dominated(self.front)]


def _best(history: History) -> npt.NDArray[np.int64]:
    """Return the trials on the front; if none is feasible, those with the least violation."""
    feasible = np.flatnonzero(history.feasible)
    if len(feasible):
        return feasible[non_dominated(history.losses[feasible])]
    missed = np.maximum(history.violations, 0.0)
    total = (missed / np.maximum(missed.max(0), np.finfo(float).tiny)).sum(1)
    nearest: npt.NDArray[np.int64] = np.flatnonzero(total == total.min())
    return nearest


def _raised(features: SpaceFeatures, codes: Codes, position: int) -> Codes:
    """Advance one position of networks (n, P) to its next option; drop unchanged networks."""
    below = codes[codes[:, position] < features.sizes[position] - 1]
    raised = below.copy()
    raised[:, position] += 1
    raised = features.canonical(raised)
    others: Codes = raised[(raised != below).any(1)]
    return others


def _lowered(features: SpaceFeatures, codes: Codes, position: int) -> list[bytes]:
    """Return the key of each network's (n, P) parent under `_raised`; empty if there is none."""
    above = codes[:, position] > 0
    lowered = codes.copy()
    lowered[:, position] -= above
    lowered = features.canonical(lowered)
    raised = lowered.copy()
    raised[:, position] += 1
    raised[:, position] = np.minimum(raised[:, position], features.sizes[position] - 1)
    back = above & (features.canonical(raised) == codes).all(1)
    return [row.tobytes() if there else b"" for row, there in zip(lowered, back, strict=True)]


def existing(features: SpaceFeatures, codes: Codes) -> npt.NDArray[np.bool_]:
    """Return a mask of the codes that are networks and meet the limits on known costs, (N,)."""
    there = features.allowed(codes)
    if features.rows is not None:
        rows = {row.tobytes() for row in features.rows}
        there = there & np.array([code.tobytes() in rows for code in codes], dtype=np.bool_)
    return there


def planted(
    features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
) -> Codes:
    """Return new small networks, or random ones where there are too few small ones."""
    if features.rows is None:
        shape = (_SMALLEST_OF, _DRAWN * count, len(features.sizes))
        drawn = features.canonical(rng.integers(features.sizes, size=shape).min(0))
        drawn = history.unseen(drawn[features.allowed(drawn)])[:count]
        if len(drawn) == count:
            return drawn
    return random_start(features, history, count, rng)


def filled_up(
    grown: Codes,
    features: SpaceFeatures,
    history: History,
    count: int,
    rng: np.random.Generator,
) -> Codes:
    """Return ``count`` new networks: those that were grown, then `planted` ones if too few."""
    found = history.unseen(grown)
    if len(found) < count:
        new = planted(features, history, 2 * count, rng)
        found = history.unseen(np.vstack([found, new]))
    return found[:count]


PLUGINS = (
    Plugin(
        "sampler",
        "growth",
        Growth,
        "Growth of small networks, one choice at a time, with a bandit as the controller",
    ),
)
