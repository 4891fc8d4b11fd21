"""Registry of operators."""

from __future__ import annotations

from hwnas.kernels.operator import Operator
from hwnas.registry import Registry

__all__ = ["OPERATORS"]

OPERATORS: Registry[Operator] = Registry("operator", __package__)
"""Operators by name."""
