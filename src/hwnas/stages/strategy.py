"""Stage that learns distributions over networks while the supernet is trained further."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.samplers import BaseSampler

from hwnas.predictors import CostSource
from hwnas.progress import ProgressCallback
from hwnas.search.evaluation.evaluate import weights_hash
from hwnas.search.objectives.candidate_costs import predict_costs
from hwnas.search.objectives.objective import Objective, stored_label
from hwnas.search.samplers.base.computed_features import features_of_space
from hwnas.search.strategies.additive_cost import AdditiveCost
from hwnas.search.strategies.learning import (
    DISTRIBUTIONS,
    DistributionLearning,
    read_distributions,
)
from hwnas.search.strategies.proposals import FromDistributions
from hwnas.search.strategies.strategy import Strategy
from hwnas.search.training import SupernetTraining, TrainingPoint, train_supernet
from hwnas.search.training.checkpoint import checkpoint_run
from hwnas.search.training.start import StartWeights
from hwnas.search.training.supernet import CHECKPOINT, ROWS, WEIGHTS
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.tabular import Codes
from hwnas.stages.goal import SearchGoal
from hwnas.stages.job import Job, RunStage

__all__ = ["learning", "proposing"]


def learning(
    job: Job,
    goal: SearchGoal,
    strategy: Strategy,
    costs: Mapping[str, CostSource],
) -> RunStage:
    """Return the stage that learns the distributions of a strategy.

    Args:
        job: Run.
        goal: Goal whose costs count.
        strategy: Strategy of the recipe.
        costs: Cost sources of the goal by label.
    """
    folder, weights = job.strategy_folder(goal), job.trained_weights
    checkpoint = folder / CHECKPOINT
    known = {f"costs@{stored_label(o.label)}": _key(o, costs) for o in _costly(goal)}
    identity = job.identity(
        "strategy", training=job.training.key, weights=weights_hash(weights), **known
    )

    def work(advance: ProgressCallback) -> None:
        def on_row(row: TrainingPoint) -> None:
            advance(row.share, f"epoch {row.epoch:.1f}, loss {row.loss:.3f}")
            if row.note:
                job.reporter.note(row.note)

        if checkpoint.exists() and checkpoint_run(checkpoint) != identity.key:
            checkpoint.unlink()
            (folder / ROWS).unlink(missing_ok=True)
        i, recipe = job.run_inputs, job.recipe
        config = strategy.training(recipe.train.of_supernet)
        beside = DistributionLearning(strategy, _expected_cost(i.space, goal, costs))
        start = StartWeights(weights)
        train_supernet(
            SupernetTraining(
                *(i.space, i.task, i.data, config, recipe.seed, identity.key, folder, start),
                learned=beside,
            ),
            on_row,
        )

    def made() -> bool:
        return (folder / WEIGHTS).exists() and (folder / DISTRIBUTIONS).exists()

    return RunStage(goal.stage("strategy"), identity, work, made)


def proposing(job: Job, goal: SearchGoal) -> Callable[..., BaseSampler]:
    """Return the factory of the sampler that proposes networks of the learned distributions."""
    tables = [each.probabilities for each in read_distributions(job.strategy_folder(goal))]

    def sampler(seed: int = 0, batch: int = 4, features: Any = None) -> BaseSampler:
        return FromDistributions(tables, seed, batch, features)

    return sampler


def _costly(goal: SearchGoal) -> Sequence[Objective]:
    return [objective for objective in goal.objectives if objective.is_cost]


def _key(objective: Objective, costs: Mapping[str, CostSource]) -> Any:
    """Return the identity of the sources of a cost."""
    return [objective.label, *(getattr(costs[label], "key", "") for label in objective.costs)]


def _expected_cost(
    space: SearchSpace, goal: SearchGoal, costs: Mapping[str, CostSource]
) -> AdditiveCost | None:
    """Return the expected cost relative to the mean of the space, summed over the objectives."""
    found = [
        AdditiveCost.fit(space, _function(space, objective, costs)) for objective in _costly(goal)
    ]
    return AdditiveCost.summed(found) if found else None


def _function(
    space: SearchSpace, objective: Objective, costs: Mapping[str, CostSource]
) -> Callable[[Codes], npt.NDArray[np.float64]]:
    """Return the function from codes of networks to their cost."""
    features = features_of_space(space, [objective], costs)

    def cost_of(codes: Codes) -> npt.NDArray[np.float64]:
        predicted = features.predict(codes)
        if 0 in predicted:
            return np.asarray(predicted[0].values)
        networks = [space.candidate(space.decode(code)) for code in codes]
        traced = predict_costs(space, networks, [objective], costs)
        return np.array([each.values[objective.label] for each in traced])

    return cost_of
