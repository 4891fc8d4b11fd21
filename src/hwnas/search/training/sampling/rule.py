"""Sampling rules of supernet training: their type, and their descriptor as plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hwnas.registry import Plugin
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["Losses", "Sampling", "SamplingPlugin"]

Sampling = Callable[..., list[Architecture]]
"""Function that draws the networks of one step. It is called with ``(space, rng, random_subnets)``
and with those of the following that it accepts:

- ``step``: index of the step, from 0;
- ``share``: share of the training that is done, in [0, 1);
- ``seed``: seed of the training;
- ``losses``: function that returns the losses of networks on the images of this step, see `Losses`.

It returns at least one architecture. If the first is the largest of the space, it is the teacher of
the others; otherwise all of them learn from labels alone. All random numbers come from ``rng``, or
from ``seed`` and ``step``, so that workers that train together draw the same networks.
"""

Losses = Callable[[Sequence[Architecture]], list[float]]
"""Function that returns the losses of networks on the labels of a step, before they are trained on
it, averaged over all workers. It costs a forward pass for each network."""


@dataclass(frozen=True)
class SamplingPlugin(Plugin[Sampling]):
    """Descriptor of a sampling rule.

    Attributes:
        beyond_random: Largest number of networks of a step in addition to ``random_subnets``; None
            if a step has one network, whatever ``random_subnets`` is.
        check: Function that raises a `ConfigError` if a space does not support the rule; None if
            every space does.
    """

    beyond_random: int | None = None
    check: Callable[[SearchSpace], None] | None = None
