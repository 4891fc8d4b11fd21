"""Is the accuracy of networks of searched bit widths predicted from their options?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.stats

from hwnas.predictors.models.surrogate import Surrogate
from hwnas.search.samplers.base.computed_features import features_of_space
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.quantised import QuantisedSpace
from hwnas.search_spaces.tabular import Codes

__all__ = ["ASKED", "LABELLED", "agreements"]

LABELLED, ASKED = 60, 60
"""Number of networks that the predictors learn from, and of those whose accuracy they predict."""


def agreements(space: QuantisedSpace, codes: Codes, accuracies: np.ndarray) -> Mapping[str, float]:
    """Return Kendall's tau of predicted and true accuracies on the networks that were not learnt.

    The predictors are the surrogate of the search, which sees architecture and bit widths (a
    quantisation-aware accuracy predictor, as in EQ-Net); the same without the bit widths; and two
    counts, bit operations and the size of the weights.

    Args:
        space: Space of the networks.
        codes: Codes of the networks, (LABELLED + ASKED, choices).
        accuracies: Their accuracies, (LABELLED + ASKED,).
    """
    truth = accuracies[LABELLED:]
    plain = codes[:, : len(space.networks.choices)]
    workloads = [space.workload(space.decode(code)) for code in codes[LABELLED:]]
    guesses = {
        "architecture and bits": _predicted(space, codes, accuracies),
        "architecture": _predicted(space.networks, plain, accuracies),
        "bit operations": np.array([each.bit_operations for each in workloads]),
        "weight bytes": np.array([each.weight_bytes for each in workloads]),
    }
    return {
        name: float(scipy.stats.kendalltau(guess, truth).statistic)
        for name, guess in guesses.items()
    }


def _predicted(space: SearchSpace, codes: Codes, accuracies: np.ndarray) -> np.ndarray:
    features = features_of_space(space)
    learnt = Surrogate.fitted(features.parts(codes[:LABELLED]), accuracies[:LABELLED])
    return learnt.predict(features.parts(codes[LABELLED:]))[0]
