"""Cost prediction for a device from the known devices with the most similar descriptions.

`ColdStart` learns a linear mix of all known devices instead. ``experiments/spec_sheets`` compares
both on descriptions by spec sheets, of which there are few; the nearest devices predict better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwnas.errors import ConfigError
from hwnas.predictors.models.gaussian_process import Numbers

__all__ = ["NearestDevices"]

_LEAST_SPREAD = 1e-6
_LEAST_DISTANCE = 1e-6


@dataclass(frozen=True, eq=False)
class NearestDevices:
    """Descriptions of known devices, of which the nearest ones stand for a new device.

    Attributes:
        descriptions: Logarithms of D positive numbers of each known device, of shape (K, D).
        count: Number of nearest devices; devices with equal descriptions count as one.
    """

    descriptions: Numbers
    count: int = 3

    def __post_init__(self) -> None:
        if self.descriptions.ndim != 2 or not len(self.descriptions) or self.count < 1:
            raise ConfigError(
                f"{len(self.descriptions)} descriptions and the {self.count} nearest; expected at "
                "least one of each"
            )

    def distances(self, description: Numbers) -> Numbers:
        """Return the distance of each known device from a description (D,), of shape (K,).

        It is the Euclidean distance in units of the known devices' standard deviations.
        """
        spread = np.maximum(self.descriptions.std(0), _LEAST_SPREAD)
        found: Numbers = np.linalg.norm((self.descriptions - description) / spread, axis=1)
        return found

    def weights(self, description: Numbers) -> Numbers:
        """Return the weights of the known devices, of shape (K,), with sum 1.

        Nearer devices weigh more, by the inverse of their squared distance (Shepard, "A
        two-dimensional interpolation function for irregularly-spaced data", ACM 1968), so that a
        device with exactly this description stands alone.
        """
        distances = self.distances(description)
        _, place = np.unique(self.descriptions, axis=0, return_inverse=True)
        place = place.reshape(-1)
        order = np.argsort(distances, kind="stable")
        chosen = [*dict.fromkeys(place[order].tolist())][: self.count]
        weights = np.zeros(len(distances))
        for each in chosen:
            alike = place == each
            near = max(float(distances[alike][0]), _LEAST_DISTANCE)
            weights[alike] = near**-2 / alike.sum()
        found: Numbers = weights / weights.sum()
        return found
