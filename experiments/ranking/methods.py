"""The ways to train a supernet that are compared, as changes of a recipe's ``[train]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["METHODS", "RIVAL"]

RIVAL = "uniform"
"""What the others have to beat: one random network a step (Guo et al., ECCV 2020)."""

METHODS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {"sampling": "uniform"},
    "fair": {"sampling": "fair"},
    "progressive": {"sampling": "progressive"},
    "sandwich": {"sampling": "sandwich"},
    "teacher": {"sampling": "teacher"},
    "attentive-best": {"sampling": "attentive-best"},
    "attentive-worst": {"sampling": "attentive-worst"},
    "sandwich-alpha": {"sampling": "sandwich", "distillation_loss": "alpha"},
    "teacher-alpha": {"sampling": "teacher", "distillation_loss": "alpha"},
    "teacher-ema": {"sampling": "teacher", "ema": 0.99},
}
"""Rules of sampling, each as it comes: those that have a teacher distil from it, the others learn
from labels. Then AlphaNet's loss, and a moving average of the weights."""
