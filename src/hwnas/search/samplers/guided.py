"""The sampler that hwnas searches with: what is known is priced, what is not is learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hwnas.predictors.gaussian_process import Numbers
from hwnas.search.acquisition import Dominated
from hwnas.search.front import Losses, front_by_front, non_dominated
from hwnas.search.samplers.knowledge import Knowledge
from hwnas.search.samplers.outlook import Draws, Outlook
from hwnas.search.samplers.planned import History, PlannedSampler
from hwnas.search.samplers.pool import pool, random_start
from hwnas.search_spaces.tabular import Codes

__all__ = ["GuidedSampler"]

_START = 10  # trials before anything is learnt
_SPREAD = 50  # networks that one of the start is picked from
_SHORT_LIST = 150  # candidates that are looked at together, at least
_POPULATION = 250
_GENERATIONS = 6
_LEARNT_FROM = 256  # trials, at most
_REFIT = 1.25  # hyperparameters are found anew when there are by this factor more trials
_MARGIN = 0.1  # of the reference point, in units of an objective's range
_LEAST_RANGE = 1e-9
_Look = Literal["logarithmic", "linear"]
_LOOKS: tuple[_Look, ...] = ("logarithmic", "linear")


class GuidedSampler(PlannedSampler):
    """Evaluates where the front is expected to grow most.

    After LINAS (Cummings et al., "A Hardware-Aware System for Accelerating Deep Neural Network
    Optimization", 2022): an inner search over predictors proposes what is worth an evaluation.
    Costs are predicted for nothing where the knowledge has prices; what an evaluation alone can
    tell is learnt by a Gaussian process that is refitted for every batch. Proposals maximise the
    expected gain in hypervolume, one after the other, each as if the ones before had come out as
    expected, so a batch is spread. None was proposed before.

    Costs count in turn by their logarithm and as they are, since a front is read both ways.

    Args:
        seed: Of everything random.
        batch: Proposals planned together.
        knowledge: Of the space; made from a study's trials if None.
        start: Trials before anything is learnt, at least 2.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        knowledge: Knowledge | None = None,
        start: int = _START,
    ) -> None:
        super().__init__(seed, batch, knowledge)
        self.start = max(start, 2)
        self._draws: tuple[int, dict[int, Draws]] = 0, {}

    def plan(
        self, knowledge: Knowledge, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `PlannedSampler.plan`."""
        if len(history) < self.start:
            return _spread(knowledge, history, count, rng)
        known = _informative(history)
        outlook = Outlook.learnt(knowledge, known, self._hyperparameters(knowledge, history))
        signs = history.signs

        def hoped(codes: Codes) -> tuple[Losses, Losses]:
            means, deviations, feasible = outlook.predict(codes, signs, 1)
            return means - deviations, 0.5 - feasible

        candidates = pool(knowledge, known, hoped, rng, max(_POPULATION, 4 * count), _GENERATIONS)
        return _Choice(outlook, known, candidates).best(count)

    def _hyperparameters(self, knowledge: Knowledge, history: History) -> dict[int, Draws]:
        """Found from the first trials, so many that they are found anew only now and then."""
        steps = int(np.log(len(history) / self.start) / np.log(_REFIT) + 1e-9)
        first = min(int(np.ceil(self.start * _REFIT**steps)), len(history))
        if self._draws[0] != first:
            learnt = Outlook.learnt(knowledge, _informative(history.first(first)), {})
            found = {
                j: each.surrogate.draws
                for j, each in enumerate(learnt.objectives)
                if each.surrogate is not None
            }
            self._draws = first, found
        return self._draws[1]


def _spread(knowledge: Knowledge, history: History, count: int, rng: np.random.Generator) -> Codes:
    """A start: random networks, evenly spread over what the first price says."""
    drawn = random_start(knowledge, history, _SPREAD * count, rng)
    prices = knowledge.price(drawn)
    if len(drawn) <= count or not prices:
        return drawn[:count]
    order = np.argsort(next(iter(prices.values())).values, kind="stable")
    cells = np.array_split(order, count)
    return rng.permutation(drawn[[cell[rng.integers(len(cell))] for cell in cells]])


def _informative(history: History) -> History:
    """The trials to learn from: all, or of very many the best ranks and some of the rest."""
    if len(history) <= _LEARNT_FROM:
        return history
    wanted = _LEARNT_FROM * 3 // 4
    kept: list[int] = []
    for front in front_by_front(history.losses):
        if len(kept) >= wanted:
            break
        kept += front.tolist()
    kept = kept[:wanted]
    rest = np.setdiff1d(np.arange(len(history)), kept)
    others = rest[np.linspace(0, len(rest) - 1, _LEARNT_FROM - len(kept)).astype(np.int64)]
    return history.rows(np.sort([*kept, *others]))


@dataclass
class _Choice:
    """Picks a batch from a pool."""

    outlook: Outlook
    history: History
    candidates: Codes

    def best(self, count: int) -> Codes:
        """The so many that together are expected to help most, (count, P)."""
        signs = self.history.signs
        if len(self.candidates) <= count:
            return self.candidates
        known = self.outlook.scaled(self.history.losses[self.history.feasible])
        means, deviations, feasible = self.outlook.predict(self.candidates, signs, 1)
        gains = sum(
            _relative(self._gain(look, known, means, deviations, feasible)) for look in _LOOKS
        )
        listed = np.argsort(-gains, kind="stable")[: max(_SHORT_LIST, 4 * count)]
        shown = self.candidates[listed]
        means, largest, feasible = self.outlook.predict(shown, signs)
        covariances = self.outlook.covariances(shown)
        picked: list[int] = []
        while len(picked) < min(count, len(shown)):
            variances = np.diagonal(covariances, axis1=1, axis2=2).T
            deviations = np.minimum(np.sqrt(np.maximum(variances, 0.0)), largest)
            look = _LOOKS[(len(self.history) + len(picked)) % len(_LOOKS)]
            gain = self._gain(look, known, means, deviations, feasible)
            gain[picked] = -1.0
            best = int(gain.argmax())
            picked.append(best)
            known = np.vstack([known, means[best]])
            covariances = _conditioned(covariances, best, self.outlook.noise)
        return shown[picked]

    def _gain(
        self, look: _Look, known: Losses, means: Losses, deviations: Losses, feasible: Numbers
    ) -> Numbers:
        """Expected gain in hypervolume by each candidate times its chance to be feasible, (N,)."""
        if look == "linear":
            known, means, deviations = known.copy(), means.copy(), deviations.copy()
            for j, objective in enumerate(self.outlook.objectives):
                if objective.scale.best is None:
                    known[:, j], means[:, j] = np.exp(known[:, j]), np.exp(means[:, j])
                    deviations[:, j] *= means[:, j]
        # Worse than the front that there is, and than the one that may be hoped for.
        hopes = (means - deviations)[feasible > 0.5]
        ends = np.vstack([hopes[non_dominated(hopes)], known[non_dominated(known)]])
        if not len(ends):
            return feasible
        reference = ends.max(0) + _MARGIN * np.maximum(np.ptp(ends, axis=0), _LEAST_RANGE)
        return Dominated.by(known, reference).improvement(means, deviations) * feasible


def _relative(gains: Numbers) -> Numbers:
    found: Numbers = gains / max(float(gains.max(initial=0.0)), np.finfo(float).tiny)
    return found


def _conditioned(covariances: Losses, chosen: int, noise: Numbers) -> Losses:
    """Covariances (m, N, N) after one of the networks was observed."""
    columns = covariances[:, :, chosen]
    total = columns[:, chosen] + noise
    lost = columns[:, :, None] * columns[:, None] / np.maximum(total, _LEAST_RANGE)[:, None, None]
    found: Losses = covariances - lost
    return found
