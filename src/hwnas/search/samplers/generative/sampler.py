"""Sampler that generates networks of a wanted cost, as a learned model of the space.

Shapes: N networks of P positions; K known costs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.registry import Plugin
from hwnas.search.objectives.front import front_by_front
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import random_start
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search.samplers.generative.density import ConditionalDensity
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "Generative", "NetworkGenerator"]

_DRAWN = 4000  # random networks that the model is first taught
_STEPS, _MORE_STEPS, _TUNING_STEPS = 500, 200, 100
_ROUNDS = 12  # at most, of generating towards the limits
_ENOUGH = 0.25  # share of allowed networks among the generated ones that ends these rounds
_KNOWN = 500  # allowed networks that are known then, so that the model learns more than a few
_NEAREST = 0.02  # share of the cheapest networks to start from if none is allowed
_REACH = 0.5  # how much lower a cost is wanted while no network is allowed, standardised
_NOISE = 0.05  # standard deviation added to conditions in training, of standardised costs
_KNOWN_SHARE = 0.5  # of a tuning batch: good evaluated networks; the others are of the space
_START = 10


class Generative(BatchSampler):
    """Sampler that draws networks from a model conditioned on the costs that they shall have.

    Before any evaluation, a `ConditionalDensity` learns which networks have which known costs, from
    random networks of the space. Where the limits allow few of them, the model generates networks
    of the costs of the allowed ones, or of the cheapest ones while none is allowed, and learns
    from these in turn: the cycle of generator and inquisitor of Generative Synthesis (Wong et al.,
    2018), by which TurboViT was found (Wong et al., 2023). Thus most proposals meet the limits,
    however few networks of the space do.

    After the first evaluations, a copy of the model is tuned to the networks of the best fronts.
    Each proposal has its own wanted cost, spread over those that the limits allow. Among the
    networks generated for it, the one is proposed whose probability grew most by the tuning: the
    ratio of two densities by which TPE ranks, too (Bergstra et al., NIPS 2011). In a space small
    enough to list, all of its networks are ranked.

    Without known costs, the model has no conditions.

    Args:
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together.
        features: Description of the space; made from a study's trials if None.
        good: Share of the evaluated networks that the model is tuned to, in (0, 1).
        draws: Networks generated for each proposal, at least 1.

    Raises:
        ConfigError: An option is out of range.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        good: float = 0.25,
        draws: int = 64,
    ) -> None:
        super().__init__(seed, batch, features)
        if not 0 < good < 1 or draws < 1:
            raise ConfigError(
                f"sampler generative: good is {good} and draws is {draws}; expected a share in "
                "(0, 1) and at least 1"
            )
        self.good, self.draws = good, draws
        self._taught: NetworkGenerator | None = None

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        generator = self.generator(features)
        tuned = generator.model
        if len(history) >= _START:
            tuned = self._tuned(generator, history, rng)
        found = self._ranked(generator, tuned, history, count, rng)
        if len(found) < count:
            others = random_start(features, history, 2 * count, rng)
            found = history.unseen(np.vstack([found, others]))
        return found[:count]

    def generator(self, features: SpaceFeatures) -> NetworkGenerator:
        """Return the model of the space as taught before any evaluation."""
        if self._taught is None:
            self._taught = NetworkGenerator.taught(features, self.seed)
        return self._taught

    def _tuned(
        self, generator: NetworkGenerator, history: History, rng: np.random.Generator
    ) -> ConditionalDensity:
        """Return the model, tuned to the networks of the best fronts."""
        best = _best(history, max(2, round(self.good * len(history))))
        codes = np.vstack([generator.codes, history.codes[best]])
        weights = np.ones(len(codes))
        weights[len(generator.codes) :] *= (
            _KNOWN_SHARE / (1 - _KNOWN_SHARE) * len(generator.codes) / len(best)
        )
        tuned = copy.deepcopy(generator.model)
        tuned.fit(codes, generator.conditions(codes), weights, _TUNING_STEPS, rng)
        return tuned

    def _ranked(
        self,
        generator: NetworkGenerator,
        tuned: ConditionalDensity,
        history: History,
        count: int,
        rng: np.random.Generator,
    ) -> Codes:
        features, found = generator.features, dict[bytes, Codes]()
        if features.listed:
            every = history.unseen(features.all_codes())
            every = every[features.allowed(every)]
            every = rng.permutation(every)
            every = every[np.argsort(-generator.gains(tuned, every), kind="stable")]
            return every[_places(generator.conditions(every), count)]
        for wanted in generator.wanted(count, rng):
            offered = tuned.drawn(np.repeat(wanted[None], self.draws, 0), rng)
            offered = history.unseen(features.canonical(offered))
            offered = offered[features.allowed(offered)]
            for row in np.argsort(-generator.gains(tuned, offered), kind="stable"):
                if offered[row].tobytes() not in found:
                    found[offered[row].tobytes()] = offered[row]
                    break
        return np.array([*found.values()], dtype=np.int64).reshape(-1, len(features.sizes))


@dataclass
class NetworkGenerator:
    """Model of a space that generates networks of wanted costs.

    Attributes:
        features: Description of the space.
        model: Model, as taught before any evaluation.
        codes: Networks that it was taught, (N, P).
        low, scale: Mean and standard deviation of the logarithms of the known costs, (K,).
    """

    features: SpaceFeatures
    model: ConditionalDensity
    codes: Codes
    low: Numbers
    scale: Numbers

    @classmethod
    def taught(cls, features: SpaceFeatures, seed: int) -> NetworkGenerator:
        """Return a model that learned the costs of networks, and to meet the limits."""
        rng = np.random.default_rng([seed, 1])
        codes = np.unique(features.draw(_DRAWN, rng), axis=0)
        costs = _log_costs(features, codes)
        model = ConditionalDensity(features.sizes, costs.shape[1], seed)
        scale = costs.std(0)
        generator = cls(features, model, codes, costs.mean(0), np.where(scale > 0, scale, 1.0))
        generator._learn(_STEPS, rng)
        for _ in range(_ROUNDS if features.known_limits and not features.listed else 0):
            offered = features.canonical(model.drawn(generator.wanted(_DRAWN // 4, rng), rng))
            generator.codes = np.unique(np.vstack([generator.codes, offered]), axis=0)
            known = features.allowed(generator.codes).sum()
            if features.allowed(offered).mean() >= _ENOUGH and known >= _KNOWN:
                break
            generator._learn(_MORE_STEPS, rng)
        return generator

    def _learn(self, steps: int, rng: np.random.Generator) -> None:
        def noisy(conditions: Numbers) -> Numbers:
            return conditions + rng.normal(0, _NOISE, conditions.shape)

        weights, (aimed, _) = np.ones(len(self.codes)), self._aimed()
        weights[aimed] += len(self.codes) / aimed.sum()  # half of a batch, however few they are
        self.model.fit(self.codes, self.conditions(self.codes), weights, steps, rng, noisy)

    def conditions(self, codes: Codes) -> Numbers:
        """Return the standardised logarithms of the known costs, (N, K)."""
        return (_log_costs(self.features, codes) - self.low) / self.scale

    def wanted(self, count: int, rng: np.random.Generator) -> Numbers:
        """Return conditions for as many networks, spread over the costs that the limits allow.

        They are the costs of allowed networks, or lower ones than the cheapest if none is known.
        """
        aimed, reach = self._aimed()
        known = rng.permutation(self.conditions(self.codes[aimed]))
        return known[np.resize(rng.permutation(_places(known, count)), count)] - reach

    def _aimed(self) -> tuple[npt.NDArray[np.bool_], float]:
        """Return the mask of allowed networks, (N,), and 0; or of the cheapest, and how far to go.

        The second result is to be subtracted from their costs.
        """
        allowed = self.features.allowed(self.codes)
        if allowed.any():
            return allowed, 0.0
        total = self.conditions(self.codes).sum(1)
        return total <= np.quantile(total, _NEAREST), _REACH

    def gains(self, tuned: ConditionalDensity, codes: Codes) -> Numbers:
        """Return by how much tuning raised the log-probability of networks, (N,)."""
        conditions = self.conditions(codes)
        return tuned.log_chances(codes, conditions) - self.model.log_chances(codes, conditions)


def _places(conditions: Numbers, count: int) -> Codes:
    """Return the rows of conditions, (n, K), of ``count`` networks that spread over the first one.

    The range of the first condition is divided into strata; a row is the first of its stratum.
    """
    if len(conditions) <= count:
        return np.arange(len(conditions))
    if not conditions.shape[1]:
        return np.arange(count)
    cost = conditions[:, 0]
    strata = np.floor((cost - cost.min()) / max(np.ptp(cost), 1e-12) * count).clip(max=count - 1)
    _, first = np.unique(strata, return_index=True)
    others = np.setdiff1d(np.arange(len(cost)), first)
    return np.concatenate([first, others])[:count]


def _log_costs(features: SpaceFeatures, codes: Codes) -> Numbers:
    """Return the logarithms of the known costs, (N, K)."""
    known = [each.values for _, each in sorted(features.predict(codes).items())]
    columns = np.column_stack(known) if known else np.empty((len(codes), 0))
    return np.log(np.maximum(columns, np.finfo(float).tiny))


def _best(history: History, count: int) -> Codes:
    """Return the indices of the trials of the best fronts; those that violate a limit come last."""
    feasible, order = history.feasible, list[int]()
    for rows in (np.flatnonzero(feasible), np.flatnonzero(~feasible)):
        if len(rows):
            order += [int(rows[i]) for front in front_by_front(history.losses[rows]) for i in front]
    return np.array(order[:count], dtype=np.int64)


PLUGINS = (
    Plugin(
        "sampler",
        "generative",
        Generative,
        "Networks generated for wanted costs by a learned model of the space",
    ),
)
