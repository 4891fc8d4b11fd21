"""Latency by Bayesian linear regression on the logarithms of physical features."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from hwnas.deploy.device import Target
from hwnas.errors import ConfigError
from hwnas.predictors.estimate import Estimate
from hwnas.predictors.features import features
from hwnas.predictors.options import mean_cost_of_options
from hwnas.search_spaces import SearchSpace, Workload

__all__ = ["MINIMUM_MEASUREMENTS", "LatencyRegression"]

MINIMUM_MEASUREMENTS = 3


@dataclass(frozen=True)
class LatencyRegression:
    """Latency of one target, learnt from networks that were timed on it.

    The logarithm of the latency is linear in `hwnas.predictors.features` with Gaussian noise; the
    precisions of weights and noise maximise the marginal likelihood (MacKay, Neural Computation
    1992, as scikit-learn's ``BayesianRidge`` does it).

    Attributes:
        target: What the latencies were measured on.
        workloads: The networks that were timed.
        latencies_ms: Their measured latencies, in milliseconds.
    """

    target: Target
    workloads: tuple[Workload, ...] = ()
    latencies_ms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.workloads) != len(self.latencies_ms):
            raise ConfigError(
                f"got {len(self.workloads)} workloads and {len(self.latencies_ms)} latencies; "
                "expected one latency for each workload"
            )
        for latency in self.latencies_ms:
            if not (math.isfinite(latency) and latency > 0):
                raise ConfigError(f"a latency is {latency} ms; expected a positive number")

    def adapt(
        self, workloads: Sequence[Workload], latencies_ms: Sequence[float]
    ) -> LatencyRegression:
        """A new predictor that has learnt these measurements as well."""
        return replace(
            self,
            workloads=(*self.workloads, *workloads),
            latencies_ms=(*self.latencies_ms, *map(float, latencies_ms)),
        )

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        """Predicted latencies.

        Args:
            workloads: Networks.
            targets: For each workload, the target of this predictor.

        Raises:
            ConfigError: A target is another one, or fewer than three networks were timed.
        """
        if len(workloads) != len(targets):
            raise ConfigError(f"got {len(workloads)} workloads and {len(targets)} targets")
        for target in targets:
            if target != self.target:
                raise ConfigError(
                    f"this predictor was fitted on {self.target.name}, not on {target.name}"
                )
        if not workloads:
            return []
        log_mean, log_std = self._model.predict(features(workloads), return_std=True)
        return [
            self._estimate(float(mean), float(std))
            for mean, std in zip(log_mean, log_std, strict=True)
        ]

    def choice_costs(self, space: SearchSpace, target: Target) -> dict[str, dict[str, float]]:
        """Expected latency in ms of each option, all else being equal."""
        return mean_cost_of_options(self, space, target, random.Random(0))

    def leave_one_out(self) -> list[Estimate]:
        """The prediction of each timed network by a predictor fitted on all the others."""
        estimates = []
        for i, workload in enumerate(self.workloads):
            others = replace(
                self,
                workloads=self.workloads[:i] + self.workloads[i + 1 :],
                latencies_ms=self.latencies_ms[:i] + self.latencies_ms[i + 1 :],
            )
            estimates += others.cost([workload], [self.target])
        return estimates

    @cached_property
    def _model(self) -> Pipeline:
        if len(self.workloads) < MINIMUM_MEASUREMENTS:
            raise ConfigError(
                f"{len(self.workloads)} networks were timed on {self.target.name}; a latency "
                f"predictor needs at least {MINIMUM_MEASUREMENTS}"
            )
        logs: npt.NDArray[np.float64] = np.log(np.array(self.latencies_ms))
        return make_pipeline(StandardScaler(), BayesianRidge()).fit(features(self.workloads), logs)

    def _estimate(self, log_mean: float, log_std: float) -> Estimate:
        """A log-normal distribution as its median and half the width of its one-sigma interval."""
        median = math.exp(log_mean)
        return Estimate(
            "latency_ms", median, median * math.sinh(log_std), "predicted", self.target.name
        )
