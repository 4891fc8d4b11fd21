"""Strategies with their options, for `hwnas.search`; one of your own is its class.

Each function returns the name of a strategy with its options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from hwnas.api.options import named_with_options
from hwnas.recipe import Named
from hwnas.search.strategies import Strategy
from hwnas.search.strategies.gdas import GDAS as _GDAS
from hwnas.search.strategies.pc_darts import PCDarts as _PCDarts
from hwnas.search.strategies.proxyless import Proxyless as _Proxyless
from hwnas.search.strategies.reinforce import PolicyGradient as _PolicyGradient

__all__ = ["GDAS", "PCDarts", "PolicyGradient", "Proxyless"]

P = ParamSpec("P")


def _strategy(name: str, factory: Callable[P, Strategy]) -> Callable[P, Named]:
    return named_with_options(name, factory, ())


GDAS = _strategy("gdas", _GDAS)
PCDarts = _strategy("pc-darts", _PCDarts)
PolicyGradient = _strategy("reinforce", _PolicyGradient)
Proxyless = _strategy("proxyless", _Proxyless)


def __dir__() -> list[str]:
    return __all__
