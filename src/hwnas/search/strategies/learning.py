"""Training of a supernet together with distributions over its networks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from hwnas.atomic import write_text
from hwnas.errors import ArtifactError
from hwnas.search.data.split import Split
from hwnas.search.strategies.additive_cost import AdditiveCost
from hwnas.search.strategies.distribution import ArchitectureDistribution, Table
from hwnas.search.strategies.strategy import Strategy, StrategyStep
from hwnas.search.tasks.task import Task
from hwnas.search.training import TrainConfig
from hwnas.search.training.schedule import Schedule
from hwnas.search_spaces import Supernet

__all__ = ["DISTRIBUTIONS", "DistributionLearning", "LearnedDistribution", "read_distributions"]

DISTRIBUTIONS = "distributions.json"
_CHILD = "distribution"
_SPLIT_SEED = 1


@dataclass(frozen=True)
class DistributionLearning:
    """Strategy that learns distributions while a supernet is trained.

    Attributes:
        strategy: Strategy.
        cost: Expected cost; None if no objective is a cost.
    """

    strategy: Strategy
    cost: AdditiveCost | None = None

    def begin(
        self, supernet: Supernet, task: Task, split: Split, config: TrainConfig, seed: int
    ) -> tuple[StrategyStep, Split]:
        """Return the step, and the images that the weights are trained on.

        Raises:
            ConfigError: There are too few images for a batch of each kind.
        """
        strategy = self.strategy
        rows = np.random.default_rng([seed, _SPLIT_SEED]).permutation(len(split))
        count = strategy.held_out_images(len(rows), config.batch_size)
        held_out, others = np.split(rows, [count])
        distribution = ArchitectureDistribution(supernet.space, strategy.directions)
        device = next(supernet.parameters()).device
        setattr(supernet, _CHILD, distribution.to(device))
        parts = [replace(split, positions=split.positions[part]) for part in (held_out, others)]
        schedule = Schedule(config, parts[0], seed + 1)
        noise = config.quantisation == "noise"
        step = StrategyStep(supernet, distribution, strategy, task, schedule, self.cost, noise)
        return step, parts[1]

    def save(self, supernet: Supernet, folder: Path) -> None:
        """Write the distributions."""
        distribution: nn.Module = getattr(supernet, _CHILD)
        assert isinstance(distribution, ArchitectureDistribution)
        limits = self.strategy.limits
        weights = self.strategy.cost_weights or distribution.cost_weights.tolist()
        rows = []
        for k, (weight, table) in enumerate(zip(weights, distribution.tables(), strict=True)):
            row = {"cost_weight": weight, "network": distribution.most_probable(k).id}
            if limits is not None:
                row["cost_limit"] = limits[k]
            if self.cost is not None:
                row["expected_cost"] = float(self.cost.relative(distribution.probabilities[k]))
            rows.append(row | {"probabilities": table})
        write_text(
            folder / DISTRIBUTIONS, json.dumps({"schema": 1, "distributions": rows}, indent=1)
        )


@dataclass(frozen=True)
class LearnedDistribution:
    """Distribution that a training wrote.

    Attributes:
        cost_weight: Weight of the relative cost against the loss.
        network: Id of the most probable network.
        probabilities: Probability of each option, by the name of the choice.
        expected_cost: Expected cost, relative to that of equally probable options; None if no
            objective is a cost.
        cost_limit: Largest expected cost that was asked for; None if the weight was given.
    """

    cost_weight: float
    network: str
    probabilities: Table
    expected_cost: float | None = None
    cost_limit: float | None = None


def read_distributions(folder: Path) -> Sequence[LearnedDistribution]:
    """Read the distributions that a training wrote into its folder.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    path = folder / DISTRIBUTIONS
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["distributions"]
        return [LearnedDistribution(**row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"{path} cannot be read ({type(error).__name__}); delete it, and resume the run"
        ) from error
