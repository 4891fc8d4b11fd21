"""Compared methods of supernet training, as changes of a recipe's ``[train]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["METHODS", "RIVAL"]

RIVAL = "uniform"
"""Baseline of the other methods: one random network a step (Guo et al., ECCV 2020)."""

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
"""Settings by method. First the sampling rules with their defaults: rules with a teacher distil
from it, the others learn from labels. Then AlphaNet's loss, and a moving average of the weights."""
