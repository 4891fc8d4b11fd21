"""Search by controllers trained with REINFORCE, for any number of objectives.

Shapes: n networks of P positions with at most O options each, m objectives, K directions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwnas.errors import ConfigError
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.registry import Plugin
from hwnas.search.evolution.directions import lattice_within
from hwnas.search.objectives.front import Losses
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import random_start
from hwnas.search.samplers.base.replay import Replay
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "Reinforce", "directions_of", "drawn_from", "rewards_of"]

_DIRECTIONS = 6  # most directions, apart from the one with equal weights
_LEAST_QUALITY = 0.05  # quality of the worst value, so that one objective cannot zero a product
_DRAWS = 200  # networks drawn from a policy for each proposal, in a space that is not listed
_TINY = 1e-12


class Reinforce(BatchSampler):
    """Sampler that draws networks from policies trained with REINFORCE (Williams, 1992).

    As in ProxylessNAS (Cai, Zhu and Han, ICLR 2019, section 3.3.1) a policy is an independent
    categorical distribution for each choice, whose logits follow ``(reward - baseline) * gradient
    of log p``. The baseline is a moving average of the rewards. An entropy bonus (Williams and
    Peng, Connection Science 1991) keeps the policy from converging early. As in NASAIC (Yang et
    al., DAC 2020) the reward of a network that violates a limit is below that of every feasible
    network, and it falls with the violation.

    A single reward would lead to a single network of the front, so there is a policy for each of K
    directions, and the policies propose in turn. The reward of direction k is the weighted product
    of MnasNet (Tan et al., CVPR 2019, equation 2), ``prod_j quality_j ** weight_kj``. Unlike a
    weighted sum it also reaches the concave parts of a front; unlike the hypervolume improvement it
    does not change for a network when others are found. A quality is a loss scaled to 0..1 between
    the worst and the best loss observed so far. Every policy learns from every network. The
    importance weight is the probability of the network under the policy over its mean probability
    under all policies, which is at most K (balance heuristic, Veach and Guibas, SIGGRAPH 1995).

    No network is proposed twice; in a small space the policies draw without replacement.

    Args:
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together.
        features: Description of the space; made from a study's trials if None. Predicted costs are
            used for limits only.
        learning_rate: Learning rate of the logits, above 0.
        entropy: Weight of the entropy bonus, at least 0.
        decay: Decay of the baseline's moving average, in [0, 1).

    Raises:
        ConfigError: An option is out of range.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        learning_rate: float = 1.0,
        entropy: float = 0.01,
        decay: float = 0.95,
    ) -> None:
        super().__init__(seed, batch, features)
        if learning_rate <= 0 or entropy < 0 or not 0 <= decay < 1:
            raise ConfigError(
                f"sampler reinforce: learning_rate is {learning_rate}, entropy {entropy}, decay "
                f"{decay}; expected above 0, at least 0 and in [0, 1)"
            )
        self.learning_rate, self.entropy, self.decay = learning_rate, entropy, decay
        self._policies = Replay(self._begin, self._learn)
        self._listed: tuple[Codes, Numbers] | None = None

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        policies = self._policies(history)
        turns = (len(history) + np.arange(count)) % len(policies.logits)
        if features.listed:
            drawn = self._without_replacement(features, history, policies, turns, rng)
        else:
            spread = np.ones(_DRAWS)
            drawn = drawn_from(features, history, policies.logits, turns, spread, rng)
        if len(drawn) < count:
            others = random_start(features, history, 2 * count, rng)
            drawn = history.unseen(np.vstack([drawn, others]))
        return drawn[:count]

    def _without_replacement(
        self,
        features: SpaceFeatures,
        history: History,
        policies: _Policies,
        turns: Codes,
        rng: np.random.Generator,
    ) -> Codes:
        """Draw an unseen network for each turn from the list of all, by the Gumbel-max trick."""
        if self._listed is None:
            every = features.all_codes()
            self._listed = every, _in_effect(features, every)
        every, effect = self._listed
        new = np.array([row.tobytes() not in history.seen for row in every])
        left = np.flatnonzero(new & features.allowed(every))
        chances = policies.log_chances(every[left], effect[left])
        picked: list[int] = []
        for k in turns[: len(left)]:
            noisy = chances[k] + rng.gumbel(size=len(left))
            noisy[picked] = -np.inf
            picked.append(int(noisy.argmax()))
        return every[left[picked]]

    def _begin(self, history: History) -> _Policies:
        assert self.features is not None
        sizes = self.features.sizes
        directions = directions_of(history.values.shape[1])
        logits = np.zeros((len(directions), len(sizes), int(sizes.max())))
        logits[:, np.arange(sizes.max()) >= sizes[:, None]] = -np.inf
        return _Policies(directions, logits, np.full(len(directions), np.nan))

    def _learn(self, policies: _Policies, history: History, done: int) -> None:
        assert self.features is not None
        if done == len(history):
            return
        effect = _in_effect(self.features, history.codes[done:])
        rewards = rewards_of(history, policies.directions)[done:]
        for code, active, reward in zip(history.codes[done:], effect, rewards, strict=True):
            policies.learn(code, active, reward, self.learning_rate, self.entropy, self.decay)


@dataclass
class _Policies:
    """Policies of all directions, one each.

    Attributes:
        directions: Weights of the objectives, (K, m); each row sums to 1.
        logits: Logits of the options, (K, P, O); minus infinity where there is no option.
        baselines: Moving averages of the rewards, (K,); NaN before the first reward.
    """

    directions: Losses
    logits: Numbers
    baselines: Numbers

    @property
    def log_probabilities(self) -> Numbers:
        """Log-probabilities of the options, (K, P, O)."""
        shifted = self.logits - self.logits.max(2, keepdims=True)
        found: Numbers = shifted - np.log(np.exp(shifted).sum(2, keepdims=True))
        return found

    def log_chances(self, codes: Codes, effect: Numbers) -> Numbers:
        """Return log-probabilities of networks (n, P) over the choices in effect, (K, n)."""
        logs = self.log_probabilities[:, np.arange(codes.shape[1]), codes]
        found: Numbers = (logs * effect).sum(2)
        return found

    def learn(
        self,
        code: Codes,
        active: Numbers,
        reward: Numbers,
        learning_rate: float,
        entropy: float,
        decay: float,
    ) -> None:
        """Update all policies by one gradient step from one network and its rewards (K,)."""
        logs = self.log_probabilities
        chances = np.exp(logs)
        joint = (logs[:, np.arange(len(code)), code] * active).sum(1)
        weight = np.exp(joint - joint.max())
        weight /= weight.mean()
        known = np.where(np.isnan(self.baselines), reward, self.baselines)
        direction = -chances
        direction[:, np.arange(len(code)), code] += 1.0
        gain = (weight * (reward - known))[:, None, None] * direction * active[:, None]
        finite = np.where(np.isfinite(logs), logs, 0.0)
        spread = -(chances * finite).sum(2, keepdims=True)
        gain -= entropy * chances * (finite + spread)  # the gradient of the entropy
        self.logits += learning_rate * gain
        self.baselines = known + (1 - decay) * weight * (reward - known)


def directions_of(objectives: int) -> Losses:
    """Return weights of m objectives, (K, m), one row a direction; each row sums to 1."""
    alike = np.full((1, objectives), 1 / objectives)
    if objectives == 1:
        return alike
    lattice = lattice_within(objectives, _DIRECTIONS)
    return lattice if objectives == 2 else np.vstack([lattice, alike])


def rewards_of(history: History, directions: Losses, hindsight: bool = False) -> Numbers:
    """Return the reward of each trial in each direction, (n, K).

    Args:
        history: Trials.
        directions: Weights of the objectives, (K, m).
        hindsight: Whether rewards are scaled by all trials, so that they can be compared between
            trials; otherwise each is scaled by the trials up to its own, and never changes.
    """
    losses = history.losses
    best, worst = np.minimum.accumulate(losses), np.maximum.accumulate(losses)
    missed = np.maximum(history.violations, 0.0)
    most = np.maximum(np.maximum.accumulate(missed), _TINY)
    if hindsight:
        best, worst, most = best[-1:], worst[-1:], most[-1:]
    quality = (worst - losses) / np.maximum(worst - best, _TINY)
    quality = np.where(worst <= best, 1.0, quality)
    scaled = _LEAST_QUALITY + (1 - _LEAST_QUALITY) * quality
    rewards: Numbers = np.exp(np.log(scaled) @ directions.T)
    penalty = (missed / most).sum(1, keepdims=True)
    return np.where(penalty > 0, -penalty, rewards)


def _in_effect(features: SpaceFeatures, codes: Codes) -> Numbers:
    """Return 1 for each position of networks (n, P) whose option has an effect, else 0."""
    known = features.canonical(codes)
    effect = np.ones(codes.shape)
    for position, size in enumerate(features.sizes):
        changed = codes.copy()
        changed[:, position] = (changed[:, position] + 1) % size
        effect[:, position] = (features.canonical(changed) != known).any(1)
    return effect


def drawn_from(
    features: SpaceFeatures,
    history: History,
    logits: Numbers,
    turns: Codes,
    spread: Numbers,
    rng: np.random.Generator,
) -> Codes:
    """Return the first unseen, allowed network that each turn's policy draws; fewer if none is.

    Args:
        features: Description of the space.
        history: Trials before.
        logits: Logits of the policies, (K, P, O).
        turns: Index of the policy of each proposal.
        spread: Temperature of each draw, (D,): 1 for the policy itself, 0 for its most probable
            network.
        rng: Source of randomness.
    """
    picked: dict[bytes, Codes] = {}
    for k in turns:
        noise = rng.gumbel(size=(len(spread), *logits.shape[1:])) * spread[:, None, None]
        codes = features.canonical((logits[k] + noise).argmax(2))
        offered = history.unseen(codes)
        for code in offered[features.allowed(offered)]:
            if code.tobytes() not in picked:
                picked[code.tobytes()] = code
                break
    return np.array([*picked.values()], dtype=np.int64).reshape(-1, len(features.sizes))


PLUGINS = (
    Plugin("sampler", "reinforce", Reinforce, "Policy gradients over the choices (REINFORCE)"),
)
