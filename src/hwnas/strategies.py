"""Strategies with their options, for `hwnas.search`; one of your own is its class, by its name."""

from __future__ import annotations

from hwnas.api.options import named_with_options
from hwnas.search.strategies.gdas import GDAS as _GDAS
from hwnas.search.strategies.pc_darts import PCDarts as _PCDarts
from hwnas.search.strategies.proxyless import Proxyless as _Proxyless
from hwnas.search.strategies.reinforce import PolicyGradient as _PolicyGradient

__all__ = ["GDAS", "PCDarts", "PolicyGradient", "Proxyless"]

GDAS = named_with_options("gdas", _GDAS, ())
PCDarts = named_with_options("pc-darts", _PCDarts, ())
PolicyGradient = named_with_options("reinforce", _PolicyGradient, ())
Proxyless = named_with_options("proxyless", _Proxyless, ())
