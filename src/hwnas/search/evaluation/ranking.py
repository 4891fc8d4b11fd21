"""Ranking check of a supernet: its scores against those of networks trained alone."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy
from torch import Tensor

from hwnas.atomic import appending, storage_errors, write_json
from hwnas.errors import ConfigError, DivergedError, NonFiniteOutput
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.evaluate import Evaluator, SupernetEvaluator, TrainEvaluator
from hwnas.search.evaluation.scoring import Fidelity
from hwnas.search.tasks.task import Task
from hwnas.search.training import SupernetTraining, TrainConfig
from hwnas.search_spaces import Architecture, Candidate, SearchSpace

__all__ = ["Ranking", "RankingCheck", "compare_rankings", "spread_over_macs"]

_POOL = 300
_TOP = 3
_FEWEST = 2
_ALONE, _RESULT = "ranking.jsonl", "ranking.json"
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """Agreement of scores from shared weights with scores of networks that were trained alone.

    Attributes:
        tau: Kendall's tau-b between both, in [-1, 1]; 0 if either gives all networks the same
            score.
        regret: Best score of the networks trained alone, less the best of these scores among the
            supernet's top three; at least 0, in the metric's unit.
        networks: Number of networks compared.
        metric: Name of the metric.
    """

    tau: float
    regret: float
    networks: int
    metric: str

    @property
    def summary(self) -> str:
        """Summary in one line, for a log."""
        return (
            f"the supernet ranks {self.networks} networks with Kendall's tau {self.tau:.2f} to the "
            f"ranking after training each alone; the best of its top {_TOP} is {self.regret:.4f} "
            f"worse in {self.metric} than the best of all"
        )


def compare_rankings(
    shared: Scores, alone: Scores, metric: str = "score", maximize: bool = True
) -> Ranking:
    """Compare two scores of the same networks.

    Args:
        shared: Scores with a supernet's weights, (N,).
        alone: Scores after training each network alone, (N,).
        metric: Name of the metric.
        maximize: Whether higher scores are better.
    """
    sign = 1.0 if maximize else -1.0
    favourites = np.argsort(-sign * shared, kind="stable")[:_TOP]
    regret = (sign * alone).max() - (sign * alone)[favourites].max()
    tau = float(scipy.stats.kendalltau(shared, alone).statistic)
    return Ranking(0.0 if math.isnan(tau) else tau, float(regret), len(alone), metric)


@dataclass(frozen=True)
class RankingCheck:
    """Ranking check of a supernet; called with the supernet's weights.

    The check trains some networks alone and compares their scores with the supernet's. The networks
    are spread evenly over MACs. Each is trained for the same number of epochs, since in equal time
    small networks would be trained for more epochs. Scores are kept in the folder, so an
    interrupted check continues with the networks that are left.

    Attributes:
        space: Search space of the networks.
        task: Task whose first metric is compared.
        data: Data set: training images to learn from, validation images to score.
        train: Training settings of each network.
        networks: Number of networks to compare.
        seed: Seed of all random draws.
        folder: Folder for ``ranking.jsonl`` (a line per network) and ``ranking.json`` (the result);
            nothing is written if None.
    """

    space: SearchSpace
    task: Task
    data: ImageData
    train: TrainConfig
    networks: int
    seed: int = 0
    folder: Path | None = None

    @classmethod
    def of(cls, training: SupernetTraining) -> RankingCheck:
        """Return the check that ``[train] ranking_check`` asks for."""
        config = training.config
        alone = replace(config, epochs=config.ranking_epochs, budget_minutes=None, patience=None)
        return cls(
            training.space,
            training.task,
            training.data,
            alone,
            config.ranking_check,
            training.seed,
            training.folder,
        )

    def __call__(self, weights: Mapping[str, Tensor]) -> Ranking:
        """Score all networks with the supernet's weights and alone, and compare the scores.

        Args:
            weights: State dict of ``Supernet.shared``.

        Raises:
            ConfigError: The space has too few networks, or the weights are of another supernet.
            NonFiniteOutput: Fewer than two networks have both scores. Networks that diverged or
                output NaN or infinity are left out of the comparison.
        """
        metric = self.task.metrics[0]
        chosen = spread_over_macs(self.space, self.networks, max(_POOL, self.networks))
        arrays = {name: tensor.numpy() for name, tensor in weights.items()}
        supernet = SupernetEvaluator(self.space, self.task, self.data, arrays)
        shared = np.array([self._scored(supernet, network) for network in chosen])
        alone = np.array([self._alone(network) for network in chosen])
        both = np.isfinite(shared) & np.isfinite(alone)
        if both.sum() < _FEWEST:
            raise NonFiniteOutput(
                f"only {both.sum()} of {len(chosen)} networks of the ranking check have scores, "
                "the others diverged or output NaN or infinity; lower train.learning_rate, or set "
                "train.ranking_check = 0"
            )
        found = compare_rankings(
            shared[both], alone[both], metric.name, metric.direction == "maximize"
        )
        if self.folder is not None:
            write_json(self.folder / _RESULT, asdict(found))
        return found

    @cached_property
    def _trainer(self) -> TrainEvaluator:
        return TrainEvaluator(self.space, self.task, self.data, self.train, self.seed)

    def _alone(self, network: Architecture) -> float:
        known = self._recorded.get(network.id)
        if known is not None:
            return known
        score = self._scored(self._trainer, network)
        if self.folder is not None:
            line = {"network": network.id, "training": self._trainer.key, "score": score}
            path = self.folder / _ALONE
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            with appending(path) as file:
                file.write(json.dumps(line) + "\n")
        return score

    @cached_property
    def _recorded(self) -> dict[str, float]:
        """Scores of networks that an earlier session trained alone with the same inputs."""
        path = None if self.folder is None else self.folder / _ALONE
        scores: dict[str, float] = {}
        if path is None or not path.exists():
            return scores
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
                if row["training"] == self._trainer.key:
                    scores[row["network"]] = float(row["score"])
            except (ValueError, KeyError, TypeError):
                continue  # line left incomplete by a kill
        return scores

    def _scored(self, evaluator: Evaluator, network: Architecture) -> float:
        """Return the first metric; NaN if the network diverged or its outputs are not finite."""
        try:
            found = evaluator.evaluate(Candidate.of(network), Fidelity())
        except (DivergedError, NonFiniteOutput):
            return math.nan
        return found.values[self.task.metrics[0].name]


def spread_over_macs(space: SearchSpace, count: int, drawn: int) -> list[Architecture]:
    """Return the networks of a random pool that are nearest to evenly spaced MACs, smallest first.

    Args:
        space: Search space of the networks.
        count: Number of networks to return.
        drawn: Number of random networks in the pool; the draws are the same in every call.

    Raises:
        ConfigError: The pool has fewer than ``count`` different networks.
    """
    rng = random.Random(0)
    pool = {space.sample(rng) for _ in range(drawn)}
    if len(pool) < count:
        raise ConfigError(
            f"{drawn} random networks of space {space.name} include {len(pool)} different ones, "
            f"fewer than the {count} to compare; compare fewer, or draw more"
        )
    macs = _macs(space, sorted(pool))
    chosen: list[Architecture] = []
    for wanted in np.linspace(min(macs.values()), max(macs.values()), count):
        chosen.append(min(macs, key=lambda network: (abs(macs[network] - wanted), network)))
        del macs[chosen[-1]]
    return chosen


def _macs(space: SearchSpace, networks: list[Architecture]) -> dict[Architecture, int]:
    counted = space.counted(np.stack([space.encode(network) for network in networks]))
    if counted:
        return dict(zip(networks, counted["macs"].tolist(), strict=True))
    return {network: space.workload(network).macs for network in networks}
