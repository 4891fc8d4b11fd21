"""Registry of operators.

To add one, write a module here with a tuple ``PLUGINS``, as in `pointwise`; no list names it.
"""

from __future__ import annotations

from hwnas.kernels.operator import Operator
from hwnas.registry import Registry

__all__ = ["OPERATORS"]

OPERATORS: Registry[Operator] = Registry("operator", __package__)
"""Operators by name."""
