"""Features and known costs of a space's networks, available to samplers before any evaluation.

Shapes: N networks as codes of P positions; a position holds the index of a parameter's option.
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
from hwnas.predictors.features.blocks import Blocks, BlockScaling, counts, places
from hwnas.predictors.models.gaussian_process import Numbers, Parts
from hwnas.search_spaces.tabular import Codes

__all__ = ["LISTED", "PredictedObjective", "SpaceFeatures"]

LISTED = 20_000
"""Largest number of networks of a space that is enumerated."""

_SAMPLE = 2000  # random networks from which the scales of features are computed
_NEAR = 2.0  # inverse length scale of the second radial part over the statistics
_STATISTICS, _SCORES = "statistics", "scores"


@dataclass(frozen=True)
class PredictedObjective:
    """Predicted values of one objective for N networks.

    Attributes:
        values: Predicted values, (N,), in the objective's unit.
        deviations: Standard deviations of the logarithm of the evaluated value, (N,); 0 where the
            prediction is exactly the evaluated value.
    """

    values: Numbers
    deviations: Numbers


@dataclass(frozen=True)
class SpaceFeatures:
    """Search space as codes, with the features and known costs of its networks.

    Attributes:
        options: Options of each parameter of a trial, by the parameter's name, in the order of the
            codes' positions.
        statistics: Function from codes to counted features, (N, F), such as logarithms of
            multiply-accumulates; None if there are none.
        scores: Function from codes to zero-cost proxies of the untrained networks, (N, S), larger
            being better; None if there are none.
        size: Function from codes to the sizes of the networks, one number each, (N,); None if
            unknown.
        predict: Function from codes to the objectives that can be predicted without an
            evaluation, by the objective's index.
        allowed: Function from codes to whether each network meets the limits on predicted
            objectives, (N,) bool.
        known_limits: Labels of the limits that ``allowed`` checks.
        canonical: Function that maps the codes of equal networks to the same code, e.g. to index 0
            where a choice has no effect; each network is then proposed once.
        alike: Function like ``canonical`` that is used for the features only. It may merge networks
            that are proposed separately, such as isomorphic rows of a table that were each trained.
        rows: Codes of all networks, where not every code is a network; else None.
        ordered: True if the index of an option grows with the option's size.
        macs: Function from codes to multiply-accumulates of an image, (N,); None if unknown.
    """

    options: Mapping[str, Sequence[Any]]
    statistics: Callable[[Codes], Numbers] | None = None
    scores: Callable[[Codes], Numbers] | None = None
    size: Callable[[Codes], Numbers] | None = None
    predict: Callable[[Codes], Mapping[int, PredictedObjective]] = lambda codes: {}
    allowed: Callable[[Codes], npt.NDArray[np.bool_]] = lambda codes: np.ones(len(codes), bool)
    known_limits: frozenset[str] = frozenset()
    canonical: Callable[[Codes], Codes] = lambda codes: codes
    alike: Callable[[Codes], Codes] | None = None
    rows: Codes | None = None
    ordered: bool = True
    macs: Callable[[Codes], Numbers] | None = None

    @classmethod
    def of_distributions(cls, distributions: Mapping[str, BaseDistribution]) -> SpaceFeatures:
        """Return the description of a study's space: its options, without features or costs.

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
                    f"parameter {name!r} is {distribution}; this sampler supports categorical and "
                    "integer parameters"
                )
        return cls(options)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of options of each position, (P,)."""
        return np.array([len(options) for options in self.options.values()], dtype=np.int64)

    @property
    def count(self) -> float:
        """Number of codes, counting every code of equal networks."""
        return float(len(self.rows)) if self.rows is not None else float(np.prod(self.sizes * 1.0))

    @property
    def listed(self) -> bool:
        """True if the space is small enough to enumerate."""
        return self.rows is not None or self.count <= LISTED

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distributions of a trial's parameters, by name."""
        return {
            name: CategoricalDistribution(tuple(options)) for name, options in self.options.items()
        }

    def code(self, parameters: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        """Return the canonical code (P,) of a trial's parameters."""
        row = [list(options).index(parameters[name]) for name, options in self.options.items()]
        code: npt.NDArray[np.int64] = self.canonical(np.array([row], dtype=np.int64))[0]
        return code

    def parameters(self, code: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the parameters of a trial from its code (P,)."""
        pairs = zip(self.options.items(), code.tolist(), strict=True)
        return {name: options[index] for (name, options), index in pairs}

    def draw(self, count: int, rng: np.random.Generator) -> Codes:
        """Draw codes at random, with replacement."""
        if self.rows is not None:
            return self.rows[rng.integers(len(self.rows), size=count)]
        return self.canonical(rng.integers(self.sizes, size=(count, len(self.sizes))))

    def levels(self, codes: Codes) -> Numbers:
        """Return the index of each choice relative to its last option, in [0, 1], (N, P)."""
        return np.asarray(codes / np.maximum(self.sizes - 1, 1))

    def effective(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return a mask of positions with an effect, (N, P); never of those with one option."""
        found = np.zeros(codes.shape, dtype=bool)
        for position in np.flatnonzero(self.sizes > 1):
            for option in (0, 1):  # at least one of them differs from the network's option
                changed = codes.copy()
                changed[:, position] = option
                found[:, position] |= (self.canonical(changed) != codes).any(1)
        return found

    def all_codes(self) -> Codes:
        """Return the codes of all networks, each network once; for small spaces."""
        if self.rows is not None:
            return self.rows
        grid = np.indices(tuple(self.sizes)).reshape(len(self.sizes), -1).T
        found: Codes = np.unique(self.canonical(grid.astype(np.int64)), axis=0)
        return found

    def parts(self, codes: Codes) -> Parts:
        """Return the inputs of a surrogate's kernel for some networks."""
        blocks = self._blocks(codes)
        scaled = {name: self._scales[name](block) for name, block in blocks.items()}
        radial = {f"{name} radial": block for name, block in scaled.items()}
        if _STATISTICS in scaled:
            radial["statistics near"] = _NEAR * scaled[_STATISTICS]
        return Parts(scaled, radial)

    def proxy(self, codes: Codes) -> Numbers:
        """Return a training-free ranking score of the networks, (N,), larger being better.

        It is the sum of the zero-cost proxies, each standardised. Without proxies it is the size of
        the networks; without sizes it is the mean level of their options.
        """
        if self.scores is not None:
            return np.asarray(self._scales[_SCORES](self.scores(codes)).sum(1))
        if self.size is not None:
            return self.size(codes)
        return np.asarray(self.levels(codes).mean(1))

    @cached_property
    def _scales(self) -> dict[str, BlockScaling]:
        sample = self.draw(_SAMPLE, np.random.default_rng(0))
        return {name: BlockScaling.over(block) for name, block in self._blocks(sample).items()}

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
        """Number of each position's group; positions with the same options share a group."""
        options = [tuple(each) for each in self.options.values()]
        return [options.index(each) for each in options]
