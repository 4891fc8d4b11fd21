"""Features and known costs of a search space's networks, computed before any evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from hwnas.deploy.targets.target import Target
from hwnas.predictors import CostSource, DevicePredictor
from hwnas.predictors.estimate import NORMAL_90
from hwnas.predictors.features.blocks import Blocks, blocks_of_steps
from hwnas.predictors.features.shipped_scores import shipped_scores
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers.base.space_features import PredictedObjective, SpaceFeatures
from hwnas.search_spaces import OperatorCountTable, SearchSpace
from hwnas.search_spaces.space.precision import FORMAT_CHOICE
from hwnas.search_spaces.tabular import Codes

__all__ = ["features_of_space"]

T = TypeVar("T")


def features_of_space(
    space: SearchSpace,
    objectives: Sequence[Objective] = (),
    costs: Mapping[str, CostSource] | None = None,
) -> SpaceFeatures:
    """Return a sampler's description of a space: its options, features, proxies and known costs.

    Known costs have the values that the search records: predicted costs on devices and counted
    costs. A cost on a device is learnt instead if the space cannot list the parts of its networks
    (`SearchSpace.parts`), or if its cost source is not a `DevicePredictor`. For networks of a
    published table, the zero-cost proxy scores that ship with hwnas are known. A network of such a
    table is not allowed if its output does not depend on its input.

    Args:
        space: Space of the candidates; its encoding gives the codes.
        objectives: Objectives of the search.
        costs: Cost sources by the label of a metric on a target.
    """
    known = _Known(space, tuple(objectives), costs or {})
    return SpaceFeatures(
        {choice.name: choice.options for choice in space.choices},
        statistics=known.statistics if known.has_steps else None,
        scores=known.scores if known.has_scores else None,
        size=known.size if known.has_steps else None,
        predict=known.predict,
        allowed=known.allowed,
        known_limits=frozenset(o.label for o in known.predictable.values() if o.limit is not None),
        canonical=space.canonical,
        macs=known.macs if known.has_steps else None,
    )


@dataclass
class _Known:
    """Functions of codes that make up the `SpaceFeatures` of a space."""

    space: SearchSpace
    objectives: tuple[Objective, ...]
    costs: Mapping[str, CostSource]
    predictable: dict[int, Objective] = field(init=False)
    """Objectives with a known cost, by their index."""
    has_steps: bool = field(init=False)
    has_scores: bool = field(init=False)

    def __post_init__(self) -> None:
        self._steps = _Remembered(self._taken)
        self._blocks = _Remembered(self._looked_at)
        self._values = _Remembered(self._known_costs)
        one = np.zeros((1, len(self.space.choices)), dtype=np.int64)
        self.has_steps = self.space.steps(one) is not None
        published = self.space.published(one)
        self.has_scores = published is not None and shipped_scores(*published) is not None
        counted = self.space.counted(one)
        self.predictable = {
            j: o
            for j, o in enumerate(self.objectives)
            if o.metric in counted or (self.has_steps and o.all_targets and self._predicts(o))
        }

    def statistics(self, codes: Codes) -> Numbers:
        """Return the physical features of the networks and, where known, their depth, (N, F)."""
        [features] = self._blocks(codes).values()
        depth = self.space.depth(codes)
        return features if depth is None else np.column_stack([features, depth])

    def size(self, codes: Codes) -> Numbers:
        """Return the mean of log multiply-accumulates and log parameters, (N,)."""
        counted = self.space.counted(codes)
        return np.asarray(np.log([counted["macs"], counted["params"]]).mean(0))

    def macs(self, codes: Codes) -> Numbers:
        """Return the multiply-accumulates of an image, (N,)."""
        return self.space.counted(codes)["macs"].astype(np.float64)

    def scores(self, codes: Codes) -> Numbers:
        """Return the zero-cost proxies of the untrained networks, (N, S)."""
        published = self.space.published(codes)
        assert published is not None
        found = shipped_scores(*published)
        assert found is not None
        return found

    def predict(self, codes: Codes) -> dict[int, PredictedObjective]:
        """Return the values of the objectives with a known cost, by index."""
        none = np.zeros(len(codes))
        return {j: PredictedObjective(value, none) for j, (value, _) in self._values(codes).items()}

    def allowed(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return a mask of the networks that meet the limits on known costs and use their input."""
        kept = np.ones(len(codes), dtype=bool)
        published = self.space.published(codes)
        if published is not None:
            table, rows = published
            kept &= table.connected(rows)
        for j, (_, seen) in self._values(codes).items():
            objective = self.objectives[j]
            if objective.limit is not None:
                sign = objective.loss(1.0)
                kept &= sign * seen <= sign * objective.limit
        return kept

    def _taken(self, codes: Codes) -> OperatorCountTable:
        steps = self.space.steps(codes)
        assert steps is not None
        return steps

    def _looked_at(self, codes: Codes) -> Blocks:
        return blocks_of_steps(self._steps(codes))

    def _logs(self, label: str, codes: Codes) -> tuple[Numbers, Numbers]:
        """Return mean and standard deviation of the logarithms of costs on a device, each (N,)."""
        predictor = self.costs[label]
        assert isinstance(predictor, DevicePredictor)
        return predictor.logs(predictor.blocks(self._steps(codes), self._blocks(codes)))

    def _known_costs(self, codes: Codes) -> dict[int, tuple[Numbers, Numbers]]:
        """Return each known cost and the value that its limit applies to, both (N,), by index."""
        counted = self.space.counted(codes) if len(codes) else {}
        logs: dict[str, tuple[Numbers, Numbers]] = {}
        found = {}
        for j, objective in self.predictable.items():
            if not len(codes):
                found[j] = np.zeros(0), np.zeros(0)
            elif objective.all_targets:
                for label in objective.costs:
                    if label not in logs:
                        logs[label] = self._logs(label, codes)
                each = [logs[label] for label in objective.costs]
                runs = self._runs(objective, codes) if objective.reduce == "min" else None
                found[j] = _reduced(objective, each, runs)
            else:
                value = counted[objective.metric].astype(np.float64)
                found[j] = value, value
        return found

    def _runs(self, objective: Objective, codes: Codes) -> npt.NDArray[np.bool_]:
        """Return whether each target of an objective is in the format of each network, (T, N)."""
        names = [choice.name for choice in self.space.choices]
        if FORMAT_CHOICE not in names:
            return np.ones((len(objective.all_targets), len(codes)), dtype=bool)
        place = names.index(FORMAT_CHOICE)
        own = np.array(self.space.choices[place].options)[codes[:, place]]
        formats = [Target.parse(target).format for target in objective.all_targets]
        return np.array([own == number_format for number_format in formats])

    def _predicts(self, objective: Objective) -> bool:
        sources = [self.costs.get(label) for label in objective.costs]
        return all(isinstance(source, DevicePredictor) for source in sources)


def _reduced(
    objective: Objective,
    logs: Sequence[tuple[Numbers, Numbers]],
    runs: npt.NDArray[np.bool_] | None,
) -> tuple[Numbers, Numbers]:
    """Return the costs and the upper ends of their 90% intervals, as `Objective.estimate` does.

    Args:
        objective: Objective with targets.
        logs: Result of `_logs` for each target.
        runs: Result of `_runs` for the least cost; None for other reductions.
    """
    means = np.array([np.exp(mean) for mean, _ in logs])
    uppers = np.array([np.exp(mean + NORMAL_90 * std) for mean, std in logs])
    if runs is not None:
        best = np.where(runs, means, np.inf).argmin(0)[np.newaxis]
        return np.take_along_axis(means, best, 0)[0], np.take_along_axis(uppers, best, 0)[0]
    reduce = np.sum if objective.reduce == "sum" else np.max
    return np.asarray(reduce(means, axis=0)), np.asarray(reduce(uppers, axis=0))


class _Remembered(Generic[T]):
    """Function of codes with a cache of its last result, since several callers pass equal codes."""

    def __init__(self, function: Callable[[Codes], T]) -> None:
        self._function = function
        self._last: tuple[bytes, T] | None = None

    def __call__(self, codes: Codes) -> T:
        key = codes.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, self._function(codes)
        return self._last[1]
