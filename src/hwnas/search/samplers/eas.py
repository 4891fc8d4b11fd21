"""Search by growth of small networks, with a learned controller (EAS).

Shapes: n networks of P positions with at most O options each, m objectives, K directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.errors import ConfigError
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.registry import Plugin
from hwnas.search.objectives.front import Losses
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.replay import Replay
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search.samplers.growth import existing, filled_up, planted
from hwnas.search.samplers.reinforce import directions_of, rewards_of
from hwnas.search_spaces.tabular import Codes

__all__ = ["EAS", "PLUGINS"]

_ROOTS = 4
_HIDDEN = 50  # units of the encoder in each direction, as in the paper
_EMBEDDED = 16
_PARENTS = 2  # best networks of a direction, of which one grows
_DRAWS = 64  # actions drawn from the policy for each proposal
_DECAY = 0.95  # of the baselines


class EAS(BatchSampler):
    """Sampler that enlarges networks as a learned controller decides.

    "Efficient Architecture Search by Network Transformation" (Cai et al., AAAI 2018). A
    bidirectional LSTM encodes the choices of a network in sequence. From its state at each choice,
    one actor decides independently for every choice but depths whether the choice takes its next
    option (section 3.2, "Net2Wider actor"). Another actor picks one depth to enlarge, or none
    ("Net2Deeper actor"). Both are trained with REINFORCE (Williams, 1992), with a moving average
    of the rewards as the baseline, by Adam.

    It departs from the paper in these ways. One of the best networks grows by a single action, and
    each result is learned from, where the paper trains only the last network of several actions.
    The reward is therefore the gain over the parent: rewards rise during a search, and an average
    of earlier ones would favour any action. Rows of blocks grow at their end, so the second actor
    picks a row and no position in it. An entropy bonus keeps the policy from converging early. With
    several objectives, the controller also gets the direction of the front that it works for;
    directions take turns, and the reward of a network is that of `Reinforce`. The paper's only
    reward is a steep function of the accuracy.

    The parent of an evaluated network is the earlier network from which the fewest changes of one
    action lead to it, so the trials alone determine the state of the controller. A depth is a
    choice whose name ends with ``depth``. The options of a choice are taken to be ordered from
    small to large. With the evaluator ``"grow"`` a child starts from its parent's weights.

    Args:
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together.
        features: Description of the space; made from a study's trials if None. Predicted costs are
            used for limits only.
        roots: Number of small random networks to start with, at least 1.
        learning_rate: Learning rate of Adam, above 0.
        entropy: Weight of the entropy bonus, at least 0.

    Raises:
        ConfigError: An option is out of range.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        roots: int = _ROOTS,
        learning_rate: float = 0.001,
        entropy: float = 0.01,
    ) -> None:
        super().__init__(seed, batch, features)
        if roots < 1 or learning_rate <= 0 or entropy < 0:
            raise ConfigError(
                f"sampler eas: roots is {roots}, learning_rate {learning_rate}, entropy {entropy}; "
                "expected at least 1, above 0 and at least 0"
            )
        self.roots, self.learning_rate, self.entropy = roots, learning_rate, entropy
        self._learner = Replay(self._begin, self._learn)

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        if len(history) < self.roots:
            return planted(features, history, count, rng)
        learner = self._learner(history)
        turns = (len(history) + np.arange(count)) % len(learner.directions)
        rewards = rewards_of(history, learner.directions, hindsight=True)
        best = np.argsort(-rewards, axis=0, kind="stable")
        picked: dict[bytes, Codes] = {}
        for k in turns:
            parent = history.codes[rng.choice(best[:_PARENTS, k])]
            children = history.unseen(learner.children(features, parent, int(k), rng))
            fresh = [c for c in children[existing(features, children)] if c.tobytes() not in picked]
            picked.update((child.tobytes(), child) for child in fresh[:1])
        found = np.array([*picked.values()], dtype=np.int64).reshape(-1, len(features.sizes))
        return filled_up(found, features, history, count, rng)

    def _begin(self, history: History) -> _Learner:
        assert self.features is not None
        return _Learner.new(self.features, history.values.shape[1], self.seed, self.learning_rate)

    def _learn(self, learner: _Learner, history: History, done: int) -> None:
        assert self.features is not None
        if done == len(history):
            return
        for i in range(done, len(history)):
            row = _parent(self.features, history.codes[:i], history.codes[i])
            if row is not None:
                k = i % len(learner.directions)
                direction = learner.directions[k : k + 1]
                rewards = rewards_of(history.first(i + 1), direction, hindsight=True)[:, 0]
                parent, child = history.codes[row], history.codes[i]
                gain = rewards[i] - rewards[row]
                learner.learn(self.features, parent, child, k, gain, self.entropy)


class _Controller(nn.Module):
    """Encoder and actors; (P,) codes to logits of all actions.

    Args:
        sizes: Number of options of each position, (P,).
        depths: Positions of depths.
        objectives: Number of objectives.
    """

    def __init__(self, sizes: npt.NDArray[np.int64], depths: Codes, objectives: int) -> None:
        super().__init__()
        self.depths = torch.from_numpy(depths)
        self.place = nn.Embedding(len(sizes), _EMBEDDED)
        self.option = nn.Embedding(int(sizes.max()), _EMBEDDED)
        self.direction = nn.Linear(objectives, _EMBEDDED)
        self.encoder = nn.LSTM(_EMBEDDED, _HIDDEN, bidirectional=True)
        self.widen = nn.Linear(2 * _HIDDEN, 1)
        self.deepen, self.stay = nn.Linear(2 * _HIDDEN, 1), nn.Linear(2 * _HIDDEN, 1)
        others = max(len(sizes) - len(depths) - 1, 1)
        nn.init.constant_(self.widen.bias, -float(np.log(others)))  # one widening on average

    def forward(self, code: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of widening each position, (P,), and of each depth and none, (D + 1,)."""
        places = torch.arange(len(code))
        inputs = self.place(places) + self.option(code) + self.direction(direction)
        states, (last, _) = self.encoder(inputs)
        deeper = self.deepen(states[self.depths]).squeeze(1)
        return self.widen(states).squeeze(1), torch.cat([deeper, self.stay(last.flatten())])


@dataclass
class _Learner:
    """Controller with the state of its training.

    Attributes:
        controller: Encoder and actors.
        optimizer: Optimiser of their weights.
        directions: Weights of the objectives, (K, m); each row sums to 1.
        baselines: Moving averages of the rewards, (K,); NaN before the first reward.
    """

    controller: _Controller
    optimizer: torch.optim.Optimizer
    directions: Losses
    baselines: Numbers

    @classmethod
    def new(
        cls, features: SpaceFeatures, objectives: int, seed: int, learning_rate: float
    ) -> _Learner:
        """Return an untrained controller."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            controller = _Controller(features.sizes, _depths(features), objectives)
        optimizer = torch.optim.Adam(controller.parameters(), learning_rate)
        directions = directions_of(objectives)
        return cls(controller, optimizer, directions, np.full(len(directions), np.nan))

    def logits(self, features: SpaceFeatures, code: Codes, k: int) -> tuple[Tensor, Tensor]:
        """Return the logits of both actors for a network, minus infinity where it cannot grow."""
        direction = torch.from_numpy(self.directions[k]).float()
        widen, deepen = self.controller(torch.from_numpy(code), direction)
        can = torch.from_numpy(_growable(features, code))
        depths = self.controller.depths
        wide = can.clone()
        wide[depths] = False
        deep = torch.cat([can[depths], torch.ones(1, dtype=torch.bool)])
        no = torch.tensor(-torch.inf)
        return torch.where(wide, widen, no), torch.where(deep, deepen, no)

    def children(
        self, features: SpaceFeatures, parent: Codes, k: int, rng: np.random.Generator
    ) -> Codes:
        """Draw actions for a network (P,), and return the networks that they lead to, (n, P)."""
        with torch.no_grad():
            widen, deepen = self.logits(features, parent, k)
        raised = rng.random((_DRAWS, len(parent))) < widen.sigmoid().double().numpy()
        noise = rng.gumbel(size=(_DRAWS, len(deepen)))
        chosen = (deepen.double().numpy() + noise).argmax(1)
        depths = self.controller.depths.numpy()
        rows = np.flatnonzero(chosen < len(depths))
        raised[rows, depths[chosen[rows]]] = True
        return features.canonical(parent + raised[raised.any(1)])

    def learn(
        self,
        features: SpaceFeatures,
        parent: Codes,
        child: Codes,
        k: int,
        reward: float,
        entropy: float,
    ) -> None:
        """Update the controller by one step of REINFORCE from an action and its reward."""
        widen, deepen = self.logits(features, parent, k)
        raised = torch.from_numpy(child > parent)
        wide = widen.isfinite()
        picked = torch.cat([raised[self.controller.depths], torch.ones(1, dtype=torch.bool)])
        log_deep = functional.log_softmax(deepen, 0)
        sure = functional.binary_cross_entropy_with_logits(
            widen[wide], raised[wide].float(), reduction="sum"
        )
        chance = log_deep[picked.int().argmax()] - sure
        if np.isnan(self.baselines[k]):
            self.baselines[k] = reward
        loss = -(reward - self.baselines[k]) * chance
        loss = loss - entropy * (_entropy_of(widen[wide]) + _entropy_of_picks(log_deep))
        self.baselines[k] += (1 - _DECAY) * (reward - self.baselines[k])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def _entropy_of(logits: Tensor) -> Tensor:
    """Return the summed entropy of independent decisions from their logits (n,)."""
    chance = logits.sigmoid()
    return functional.binary_cross_entropy_with_logits(logits, chance, reduction="sum")


def _entropy_of_picks(logs: Tensor) -> Tensor:
    finite = logs[logs.isfinite()]
    return -(finite.exp() * finite).sum()


def _depths(features: SpaceFeatures) -> Codes:
    """Return the positions of depths."""
    ends = [name.rpartition(".")[2] == "depth" for name in features.options]
    return np.flatnonzero(ends)


def _growable(features: SpaceFeatures, code: Codes) -> npt.NDArray[np.bool_]:
    """Return a mask of the positions of a network (P,) that have an effect and a next option."""
    grown: npt.NDArray[np.bool_] = features.effective(code[None])[0] & (code < features.sizes - 1)
    return grown


def _parent(features: SpaceFeatures, earlier: Codes, child: Codes) -> int | None:
    """Return the index of the earlier network (n, P) that is nearest to the child, if any is."""
    steps = child - earlier
    able = ((steps == 0) | (steps == 1)).all(1) & (steps[:, _depths(features)].sum(1) <= 1)
    for row in np.argsort(steps.sum(1), kind="stable"):
        if able[row] and (_growable(features, earlier[row]) | (steps[row] == 0)).all():
            return int(row)
    return None


PLUGINS = (
    Plugin(
        "sampler",
        "eas",
        EAS,
        "Growth of small networks, as a learned controller decides (EAS)",
    ),
)
