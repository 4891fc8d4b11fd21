"""Multi-objective Bayesian optimisation with BoTorch's qLogNEHVI, as a baseline and a strategy.

Shapes: n networks of P positions, m objectives, D dimensions of a relaxed network.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hwnas.errors import ConfigError
from hwnas.predictors.features.blocks import places
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.registry import Plugin
from hwnas.search.objectives.front import Losses, non_dominated, reference_point
from hwnas.search.samplers.base.batch import BatchSampler, History
from hwnas.search.samplers.base.pool import random_start
from hwnas.search.samplers.base.space_features import SpaceFeatures
from hwnas.search_spaces.tabular import Codes

__all__ = ["PLUGINS", "QLogNEHVI"]

_START = 20
_STEPS = 50  # optimiser iterations from each starting point
_DRAWN = 64  # Monte Carlo samples of an expectation
_NEIGHBOURS_AT_RANDOM = 200


class QLogNEHVI(BatchSampler):
    """Sampler that maximises the noisy expected hypervolume improvement of a relaxed network.

    The acquisition function is qLogNEHVI (Daulton, Balandat and Bakshy, NeurIPS 2021, in the form
    of Ament et al., NeurIPS 2023); for a single objective it is the noisy expected improvement.
    Each objective and each limit has one of BoTorch's Gaussian processes. A position is relaxed to
    one number in 0..1 if the options of the space are ordered, else to one number for each option.
    The proposal is the nearest network that was not proposed before. A batch takes seconds, and the
    time grows with the cube of the number of trials, so the sampler is meant for hundreds of
    trials.

    Args:
        seed: Seed of the random numbers.
        batch: Number of proposals that are planned together, greedily.
        features: Description of the space; made from a study's trials if None. Predicted costs are
            used for limits only.
        start: Number of random networks before the first model is fitted, at least 2.
        restarts: Number of points from which the acquisition function is optimised.
        raw_samples: Number of random points among which these starting points are chosen.

    Raises:
        ConfigError: BoTorch is not installed.
    """

    def __init__(
        self,
        seed: int = 0,
        batch: int = 4,
        features: SpaceFeatures | None = None,
        start: int = _START,
        restarts: int = 4,
        raw_samples: int = 64,
    ) -> None:
        if find_spec("botorch") is None:
            raise ConfigError(
                "sampler qlognehvi: botorch is not installed; run: pip install 'hwnas[botorch]'"
            )
        super().__init__(seed, batch, features)
        self.start, self.restarts, self.raw_samples = max(start, 2), restarts, raw_samples

    def plan(
        self, features: SpaceFeatures, history: History, count: int, rng: np.random.Generator
    ) -> Codes:
        """See `BatchSampler.plan`."""
        if len(history) < self.start:
            return random_start(features, history, count, rng)
        with _reproducible(int(rng.integers(2**31))):
            found = self._optimised(features, history, count, int(rng.integers(2**31)))
        return _nearest(features, history, found, rng)

    def _optimised(
        self, features: SpaceFeatures, history: History, count: int, seed: int
    ) -> Numbers:
        """Return the relaxed networks that maximise the acquisition function, (count, D)."""
        from botorch.optim.optimize import optimize_acqf

        known = torch.from_numpy(_relaxed(features, history.codes))
        found, _ = optimize_acqf(
            _acquisition(known, history, features.known_limits, seed),
            torch.stack([torch.zeros_like(known[0]), torch.ones_like(known[0])]),
            q=count,
            num_restarts=self.restarts,
            raw_samples=self.raw_samples,
            sequential=True,
            options={"maxiter": _STEPS},
        )
        relaxed: Numbers = found.numpy()
        return relaxed


@contextlib.contextmanager
def _reproducible(seed: int) -> Iterator[None]:
    """Seed torch's global generator, from which BoTorch draws, and silence warnings."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        yield


def _acquisition(known: Tensor, history: History, known_limits: frozenset[str], seed: int) -> Any:
    """Return the acquisition function over relaxed networks; BoTorch maximises objectives."""
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement
    from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
    from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective
    from botorch.acquisition.objective import LinearMCObjective
    from botorch.sampling.normal import SobolQMCNormalSampler

    m = len(history.signs)
    unknown = [i for i, label in enumerate(history.limits) if label not in known_limits]
    violations = history.violations[:, unknown]
    outcomes = torch.from_numpy(np.hstack([-history.losses, violations]))
    # BoTorch takes a constraint as satisfied where its value is at most 0.
    limits = [lambda drawn, j=m + i: drawn[..., j] for i in range(violations.shape[1])] or None
    common: dict[str, Any] = {
        "model": _model(known, outcomes),
        "X_baseline": known,
        "sampler": SobolQMCNormalSampler(torch.Size([_DRAWN]), seed=seed),
        "constraints": limits,
        "prune_baseline": True,
    }
    if m == 1:
        first = torch.eye(outcomes.shape[1], dtype=outcomes.dtype)[0]
        return qLogNoisyExpectedImprovement(objective=LinearMCObjective(first), **common)
    return qLogNoisyExpectedHypervolumeImprovement(
        ref_point=_reference(history).tolist(),
        objective=IdentityMCMultiOutputObjective(outcomes=list(range(m))),
        **common,
    )


def _model(known: Tensor, outcomes: Tensor) -> Any:
    """Fit an independent Gaussian process to each column of outcomes (n, outputs)."""
    from botorch.fit import fit_gpytorch_mll
    from botorch.models.gp_regression import SingleTaskGP
    from botorch.models.model_list_gp_regression import ModelListGP
    from gpytorch.mlls.sum_marginal_log_likelihood import SumMarginalLogLikelihood

    model = ModelListGP(*(SingleTaskGP(known, column[:, None]) for column in outcomes.T))
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    return model


def _reference(history: History) -> Losses:
    """Return the reference point of the front, negated since BoTorch maximises."""
    losses = history.losses[history.feasible] if history.feasible.any() else history.losses
    point: Losses = -reference_point(losses[non_dominated(losses)])
    return point


def _relaxed(features: SpaceFeatures, codes: Codes) -> Numbers:
    """Relax networks (n, P) to numbers in 0..1, (n, D)."""
    if features.ordered:
        found: Numbers = codes / np.maximum(features.sizes - 1, 1)
        return found
    return places(codes, features.sizes.tolist())


def _nearest(
    features: SpaceFeatures, history: History, wanted: Numbers, rng: np.random.Generator
) -> Codes:
    """Return the nearest network to each relaxed one among those not proposed, if any is left."""
    if features.listed:
        near = features.all_codes()
    else:
        near = np.vstack([_neighbours(features, point) for point in wanted])
        near = np.vstack([near, features.draw(_NEIGHBOURS_AT_RANDOM, rng)])
    left = history.unseen(near[features.allowed(near)])
    places = _relaxed(features, left)
    picked: list[int] = []
    for point in wanted[: len(left)]:
        apart = ((places - point) ** 2).sum(1)
        apart[picked] = np.inf
        picked.append(int(apart.argmin()))
    return left[picked]


def _neighbours(features: SpaceFeatures, point: Numbers) -> Codes:
    """Return the network that a point rounds to and all that differ from it in one position."""
    code = np.zeros(len(features.sizes), dtype=np.int64)
    if features.ordered:
        code[:] = np.rint(point * (features.sizes - 1))
    else:
        parts = np.split(point, np.cumsum(features.sizes)[:-1])
        code[:] = [part.argmax() for part in parts]
    found = [code]
    for position, size in enumerate(features.sizes):
        for option in range(size):
            found.append(code.copy())
            found[-1][position] = option
    return features.canonical(np.array(found))


PLUGINS = (
    Plugin(
        "sampler",
        "qlognehvi",
        QLogNEHVI,
        "Noisy expected hypervolume improvement of BoTorch",
        extra="botorch",
    ),
)
