"""Cost prediction for a device on which no network was measured, from a description of the device.

A description consists of numbers: times of the probes of a fingerprint, or data of a spec sheet. A
Gaussian process over known devices learns how the costs of each network depend on the description.
Its kernel is linear in the standardised descriptions, so that a prediction is a mean of known
devices, weighted by their similarity to the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hwnas.errors import ConfigError
from hwnas.predictors.devices.fingerprint import PROBES, Fingerprint
from hwnas.predictors.devices.shipped import shipped_fingerprints, shipped_prior
from hwnas.predictors.estimate import Estimate
from hwnas.predictors.features.blocks import blocks_of_steps
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.methods import Rows
from hwnas.search_spaces import OperatorCountTable

__all__ = ["ColdStart", "from_fingerprint"]

_RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 1e6)  # the last one gives the mean of devices


@dataclass(frozen=True, eq=False)
class ColdStart:
    """Descriptions of known devices and the costs of networks on them.

    Attributes:
        descriptions: Logarithms of D positive numbers of each known device, of shape (K, D).
        logs: Logarithms of the costs of N networks on the devices, of shape (N, K).
        families: Family of each device; when the ridge is chosen, no device helps to predict
            another one of its family.
    """

    descriptions: Numbers
    logs: Numbers
    families: Sequence[str]

    def __post_init__(self) -> None:
        count = self.logs.shape[1]
        if not len(self.descriptions) == len(self.families) == count:
            raise ConfigError(
                f"{len(self.descriptions)} descriptions and {len(self.families)} families of "
                f"{count} devices; expected one of each"
            )

    def predict(self, description: Numbers) -> tuple[Numbers, float]:
        """Return log costs (N,) on a device of this description (D,), and their deviation."""
        return self.logs @ self.weights(description), self._deviations[self.ridge]

    def weights(self, description: Numbers) -> Numbers:
        """Return the weights of the known devices, of shape (K,), with sum 1."""
        return self._weights(np.arange(len(self.families)), description, self.ridge)

    @property
    def ridge(self) -> float:
        """Ridge that predicts known devices best; with a larger one, descriptions matter less."""
        return min(self._deviations, key=lambda ridge: self._deviations[ridge])

    @cached_property
    def _deviations(self) -> dict[float, float]:
        """Root mean square error in log cost of predicting known families from others, by ridge."""
        found = {}
        for ridge in _RIDGES:
            errors = []
            for family in dict.fromkeys(self.families):
                alike = np.array([each == family for each in self.families])
                others = np.flatnonzero(~alike)
                if not len(others):
                    return {_RIDGES[-1]: float(self.logs.std())}
                for device in np.flatnonzero(alike):
                    weights = self._weights(others, self.descriptions[device], ridge)
                    error = self.logs[:, others] @ weights - self.logs[:, device]
                    errors.append(float(np.mean(error**2)))
            found[ridge] = float(np.sqrt(np.mean(errors)))
        return found

    def _weights(self, devices: Rows, description: Numbers, ridge: float) -> Numbers:
        """Return the weights of some known devices, with sum 1."""
        known = self.descriptions[devices]
        description = np.clip(description, known.min(0), known.max(0))  # no extrapolation
        centre, spread = known.mean(0), np.maximum(known.std(0), 1e-6)
        scaled = (known - centre) / spread / np.sqrt(known.shape[1])
        asked = (description - centre) / spread / np.sqrt(known.shape[1])
        gram = scaled @ scaled.T + ridge * np.eye(len(devices))
        likeness = np.linalg.solve(gram, scaled @ asked)
        weights: Numbers = likeness + (1 - likeness.sum()) / len(devices)
        return weights


def from_fingerprint(fingerprint: Fingerprint, steps: OperatorCountTable) -> list[Estimate]:
    """Predict latencies on a target of which only the fingerprint is known.

    Args:
        fingerprint: Fingerprint of the target.
        steps: Operator counts of N networks, at batch 1.
    """
    known, transfer_prior = shipped_fingerprints(), shipped_prior()
    described = np.array([_described(known[source.name]) for source in transfer_prior.sources])
    families = [source.family for source in transfer_prior.sources]
    start = ColdStart(described, transfer_prior.logs(blocks_of_steps(steps)), families)
    logs, spread = start.predict(_described(fingerprint))
    return [
        Estimate.log_normal("latency_ms", float(log), spread, fingerprint.target) for log in logs
    ]


def _described(fingerprint: Fingerprint) -> Numbers:
    described: Numbers = np.log([fingerprint.probes_ms[name] for name in PROBES])
    return described
