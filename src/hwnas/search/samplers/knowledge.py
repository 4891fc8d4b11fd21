"""What is known of a space's networks before any of them is evaluated, for samplers that ask.

Shapes: N networks as codes of P positions, that is the index of an option for each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from hwnas.errors import ConfigError
from hwnas.predictors.blocks import Blocks, Scale, counts, places
from hwnas.predictors.gaussian_process import Numbers, Parts
from hwnas.search_spaces.tabular import Codes

__all__ = ["LISTED", "Knowledge", "Price"]

LISTED = 20_000
"""A space of at most so many networks is looked at as a whole."""

_SAMPLE = 2000  # networks that features are scaled over
_NEAR = 2.0  # by how much a second radial part of the statistics looks closer
_STATISTICS, _SCORES = "statistics", "scores"


@dataclass(frozen=True)
class Price:
    """What an objective of N networks is expected to be.

    Attributes:
        values: Of shape (N,), in the objective's unit.
        deviations: Of the logarithms of what an evaluation gives, (N,); 0 where the values are
            what an evaluation gives.
    """

    values: Numbers
    deviations: Numbers


@dataclass(frozen=True)
class Knowledge:
    """Networks as codes, and what is known of them for nothing.

    Attributes:
        options: Of each parameter of a trial, by its name, in the order of the codes' positions.
        statistics: Gives what is counted of networks, (N, F), such as logarithms of
            multiply-accumulates; None where nothing is.
        scores: Gives zero-cost proxies of untrained networks, (N, S), more being better; None where
            there are none.
        size: Gives one number that says how large networks are, (N,); None where that is not known.
        price: Gives for codes what some objectives will be, by the objective's index.
        allowed: Whether codes keep the limits that prices tell of, (N,) bool.
        known_limits: Labels of those limits.
        canonical: Brings codes of equal networks to the same codes, e.g. to index 0 where a choice
            has no effect; they are proposed once.
        alike: The same for networks that only have to look equal to what learns, such as the rows
            of a table that were each trained.
        rows: All networks there are, where these are not all codes.
        ordered: Whether an option's index says how large it is.
        macs: Gives multiply-accumulates of an image, (N,); None where they are not known.
    """

    options: Mapping[str, Sequence[Any]]
    statistics: Callable[[Codes], Numbers] | None = None
    scores: Callable[[Codes], Numbers] | None = None
    size: Callable[[Codes], Numbers] | None = None
    price: Callable[[Codes], Mapping[int, Price]] = lambda codes: {}
    allowed: Callable[[Codes], npt.NDArray[np.bool_]] = lambda codes: np.ones(len(codes), bool)
    known_limits: frozenset[str] = frozenset()
    canonical: Callable[[Codes], Codes] = lambda codes: codes
    alike: Callable[[Codes], Codes] | None = None
    rows: Codes | None = None
    ordered: bool = True
    macs: Callable[[Codes], Numbers] | None = None

    @classmethod
    def of_distributions(cls, distributions: Mapping[str, BaseDistribution]) -> Knowledge:
        """What the distributions of a study's trials tell: only the options.

        Raises:
            ConfigError: A parameter is not discrete.
        """
        options: dict[str, Sequence[Any]] = {}
        for name, distribution in sorted(distributions.items()):
            if isinstance(distribution, CategoricalDistribution):
                options[name] = distribution.choices
            elif isinstance(distribution, IntDistribution) and not distribution.log:
                options[name] = range(distribution.low, distribution.high + 1, distribution.step)
            else:
                raise ConfigError(
                    f"parameter {name!r} is {distribution}; this sampler takes categorical ones "
                    "and integers"
                )
        return cls(options)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many options each position has, (P,)."""
        return np.array([len(options) for options in self.options.values()], dtype=np.int64)

    @property
    def count(self) -> float:
        """How many codes there are, those of equal networks counted each."""
        return float(len(self.rows)) if self.rows is not None else float(np.prod(self.sizes * 1.0))

    @property
    def listed(self) -> bool:
        """Whether there are so few networks that all of them may be looked at."""
        return self.rows is not None or self.count <= LISTED

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Of a trial's parameters."""
        return {
            name: CategoricalDistribution(tuple(options)) for name, options in self.options.items()
        }

    def code(self, parameters: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        """The code (P,) of a trial's parameters."""
        row = [list(options).index(parameters[name]) for name, options in self.options.items()]
        code: npt.NDArray[np.int64] = self.canonical(np.array([row], dtype=np.int64))[0]
        return code

    def parameters(self, code: npt.NDArray[np.int64]) -> dict[str, Any]:
        """The parameters of a trial with this code."""
        pairs = zip(self.options.items(), code.tolist(), strict=True)
        return {name: options[index] for (name, options), index in pairs}

    def draw(self, count: int, rng: np.random.Generator) -> Codes:
        """Codes at random, perhaps some of them more than once."""
        if self.rows is not None:
            return self.rows[rng.integers(len(self.rows), size=count)]
        return self.canonical(rng.integers(self.sizes, size=(count, len(self.sizes))))

    def levels(self, codes: Codes) -> Numbers:
        """How far up its options each choice is, in [0, 1], (N, P)."""
        return np.asarray(codes / np.maximum(self.sizes - 1, 1))

    def effective(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Which positions of networks have an effect, (N, P); of one option none has."""
        found = np.zeros(codes.shape, dtype=bool)
        for position in np.flatnonzero(self.sizes > 1):
            for option in (0, 1):  # one of them is another option than the network's
                changed = codes.copy()
                changed[:, position] = option
                found[:, position] |= (self.canonical(changed) != codes).any(1)
        return found

    def all_codes(self) -> Codes:
        """Every code, each network once; for small spaces."""
        if self.rows is not None:
            return self.rows
        grid = np.indices(tuple(self.sizes)).reshape(len(self.sizes), -1).T
        found: Codes = np.unique(self.canonical(grid.astype(np.int64)), axis=0)
        return found

    def parts(self, codes: Codes) -> Parts:
        """What the kernel of a surrogate reads of networks."""
        blocks = self._blocks(codes)
        scaled = {name: self._scales[name](block) for name, block in blocks.items()}
        radial = {f"{name} radial": block for name, block in scaled.items()}
        if _STATISTICS in scaled:
            radial["statistics near"] = _NEAR * scaled[_STATISTICS]
        return Parts(scaled, radial)

    def proxy(self, codes: Codes) -> Numbers:
        """How good networks look without any training, (N,), more being better.

        The mean of the scores, each in its own standard deviations; without any, how large the
        networks are; where that is not known either, the mean index of their options.
        """
        if self.scores is not None:
            return np.asarray(self._scales[_SCORES](self.scores(codes)).sum(1))
        if self.size is not None:
            return self.size(codes)
        return np.asarray(self.levels(codes).mean(1))

    @cached_property
    def _scales(self) -> dict[str, Scale]:
        sample = self.draw(_SAMPLE, np.random.default_rng(0))
        return {name: Scale.over(block) for name, block in self._blocks(sample).items()}

    def _blocks(self, codes: Codes) -> Blocks:
        seen = codes if self.alike is None else self.alike(codes)
        blocks = {"places": places(seen, self.sizes.tolist())}
        if len(set(self._groups)) < len(self.sizes):
            blocks["counts"] = counts(seen, self.sizes.tolist(), self._groups)
        if self.ordered and self.sizes.max() > 2:
            blocks["sizes"] = self.levels(seen)
        if self.statistics is not None:
            blocks[_STATISTICS] = self.statistics(codes)
        if self.scores is not None:
            blocks[_SCORES] = self.scores(codes)
        return blocks

    @cached_property
    def _groups(self) -> list[int]:
        """A number for each position; the options of positions with the same one are the same."""
        options = [tuple(each) for each in self.options.values()]
        return [options.index(each) for each in options]
