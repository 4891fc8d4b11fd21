"""Registry of the search strategies, and construction of one from its name in a recipe.

To add a strategy, write a module here with a tuple ``PLUGINS``, as in `gdas`, and a function
for Python in `hwnas.strategies`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hwnas.plugin import build
from hwnas.registry import Registry
from hwnas.search.strategies.strategy import Strategy

__all__ = ["STRATEGIES", "make_strategy"]

STRATEGIES: Registry[Callable[..., Strategy]] = Registry("search strategy", __package__)
"""Search strategies by name."""


def make_strategy(strategy: str | Strategy, options: Mapping[str, Any]) -> Strategy:
    """Return a strategy by its name, or one that is given.

    Raises:
        ConfigError: There is no such strategy, or an option is unknown or out of range.
    """
    if isinstance(strategy, Strategy):
        return strategy
    factory = STRATEGIES.find(strategy, "search.strategy")
    made: Strategy = build("search.strategy_options", factory, options)
    return made
