"""Does the supernet rank networks as training each of them alone does?

Networks that are spread evenly over MACs are trained alone, each with two or more seeds, and scored
with the weights of a supernet that was trained on the same images. All are scored on the same
validation images. How well two stand-alone trainings agree is the ceiling for any supernet.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import kendalltau

from experiments.record import Row
from experiments.setting import Setting, cores, main
from hwnas.errors import ConfigError
from hwnas.search import Fidelity, SupernetEvaluator, SupernetTraining, train_supernet
from hwnas.search.cluster import map_tasks
from hwnas.search.evaluate import Evaluation, recalibrate, score
from hwnas.search.ranking import spread_over_macs
from hwnas.search.training import NetworkStep, fit, load_weights
from hwnas.search_spaces import Architecture, Candidate, SearchSpace
from hwnas.stages.job import Ingredients, content_hash

ALONE = "alone"
_DIVISION_SEED = 0  # all trainings see the same images, whatever their seed
# 10,000 images to train on and 6,000 to score on, so that the score's own noise stays small.
_OVERRIDES = ["data.train_limit=16000", "data.validation_fraction=0.375"]
_RECALIBRATION_IMAGES = 2048
_TOP = 3
Numbers = npt.NDArray[np.float64]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", type=int, default=16)
    parser.add_argument("--pool", type=int, default=300, help="random networks to choose them from")
    parser.add_argument("--epochs", type=int, default=14, help="training of each network alone")
    parser.add_argument("--supernet-seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument(
        "--sampling", nargs="+", default=["sandwich"], metavar="RULE", help="of the supernets"
    )


def work(arguments: argparse.Namespace) -> None:
    if len(arguments.seeds) < 2:
        raise ConfigError("--seeds has one seed; the ceiling needs two stand-alone trainings")
    config = {name: getattr(arguments, name) for name in ("networks", "pool", "epochs")}
    setting = Setting(arguments, config, _OVERRIDES)
    ingredients = setting.ingredients(_DIVISION_SEED)
    networks = spread_over_macs(ingredients.space, arguments.networks, arguments.pool)
    with cores(ingredients.recipe) as at_once:
        observe_alone(setting, ingredients, networks, arguments.epochs, at_once)
        alone = Alone.of(setting.observations.rows, networks, setting.seeds)
        macs = [ingredients.space.workload(network).macs for network in networks]
        setting.answer(compare_alone(alone, macs))
        for rule, seed in itertools.product(arguments.sampling, arguments.supernet_seeds):
            observe_supernet(setting, ingredients, networks, rule, seed)
            name = supernet(rule)
            shared = scores(setting.observations.rows, networks, name, seed)
            setting.answer(compare_supernet(alone, shared, name, seed))
    setting.show()


def observe_alone(
    setting: Setting,
    ingredients: Ingredients,
    networks: Sequence[Architecture],
    epochs: int,
    at_once: int,
) -> None:
    """Train each network with each seed, unless that is recorded."""
    missing = [
        (network, seed)
        for seed, network in itertools.product(setting.seeds, networks)
        if setting.observations.find(ALONE, network.id, seed) is None
    ]
    shared = ingredients, epochs, setting.work
    trained = map_tasks(train_alone, shared, missing, at_once)
    for (network, seed), found in zip(missing, trained, strict=True):
        print(f"seed {seed}: trained {network.id} alone", flush=True)
        setting.observations.put([row(ALONE, ingredients.space, network, found, seed)])


def observe_supernet(
    setting: Setting,
    ingredients: Ingredients,
    networks: Sequence[Architecture],
    rule: str,
    seed: int,
) -> None:
    """Score each network with a supernet's weights, unless that is recorded."""
    name = supernet(rule)
    missing = [n for n in networks if setting.observations.find(name, n.id, seed) is None]
    if not missing:
        return
    print(f"seed {seed}: the {name}", flush=True)
    evaluator = supernet_evaluator(ingredients, rule, seed, setting.work / f"{name}-{seed}")
    for network in missing:
        found = evaluator.evaluate(Candidate.of(network), Fidelity())
        setting.observations.put([row(name, ingredients.space, network, found, seed)])


def supernet(rule: str) -> str:
    """What rows call a supernet that was trained by a sampling rule."""
    return "supernet" if rule == "sandwich" else f"supernet-{rule}"


def train_alone(
    shared: tuple[Ingredients, int, Path], network: Architecture, seed: int
) -> Evaluation:
    """Accuracy on the validation images after training from scratch for some epochs.

    The same number for all: in equal time the large ones would come to a fifth of the epochs that
    the small ones do, and the ranking would be one of training speeds.
    """
    ingredients, epochs, folder = shared
    torch.manual_seed(seed)
    space, task, data = ingredients.space, ingredients.task, ingredients.data
    shape = space.input_shape(network)
    module = space.build(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    config = replace(ingredients.recipe.train, epochs=epochs, budget_minutes=None)
    run = content_hash(ingredients.hash, config, seed, network.id)
    step = NetworkStep(module, task, shape)
    checkpoint = folder / f"{network.id}-{seed}.safetensors"
    fit(module, step, data.train, config, seed, checkpoint=checkpoint, run=run)
    recalibrate(module, task, data.train.first(_RECALIBRATION_IMAGES), shape)
    checkpoint.unlink(missing_ok=True)
    return score(module, task, data.validation, shape, "validation")


def supernet_evaluator(
    ingredients: Ingredients, rule: str, seed: int, folder: Path
) -> SupernetEvaluator:
    """Train the supernet, or go on with it, and make an evaluator of its weights."""
    space, task, data = ingredients.space, ingredients.task, ingredients.data
    config = replace(ingredients.recipe.train, sampling=rule)
    run = content_hash(ingredients.hash, config, seed)
    weights = load_weights(
        train_supernet(SupernetTraining(space, task, data, config, seed, run, folder))
    )
    arrays = {name: tensor.numpy() for name, tensor in weights.items()}
    return SupernetEvaluator(space, task, data, arrays)


def row(
    metric: str, space: SearchSpace, network: Architecture, found: Evaluation, seed: int
) -> Row:
    (name,) = found.values
    return Row(
        metric,
        network.id,
        seed,
        found.values[name],
        "fraction",
        found.n,
        {"standard_error": found.standard_errors[name]},
        {"macs": space.workload(network).macs, "architecture": network.to_json()},
    )


@dataclass(frozen=True)
class Alone:
    """Accuracies of the networks after training alone.

    Attributes:
        networks: In the order of the columns.
        accuracies: Of shape (seeds, networks), in fractions.
        seed: The first one; rows that hold for all of them are recorded under it.
    """

    networks: Sequence[Architecture]
    accuracies: Numbers
    seed: int

    @classmethod
    def of(
        cls, rows: Sequence[Row], networks: Sequence[Architecture], seeds: Sequence[int]
    ) -> Alone:
        """What the recorded rows say."""
        table = [scores(rows, networks, ALONE, seed) for seed in seeds]
        return cls(networks, np.array(table), seeds[0])

    @property
    def mean(self) -> Numbers:
        """Accuracy of each network over the seeds."""
        return self.accuracies.mean(0)

    @property
    def ceiling(self) -> float:
        """Kendall's tau between two trainings, in the mean over pairs."""
        pairs = itertools.combinations(self.accuracies, 2)
        return float(np.mean([_tau(a, b) for a, b in pairs]))

    def taus(self, shared: Numbers) -> list[float]:
        """Kendall's tau of other scores with each training."""
        return [_tau(shared, one) for one in self.accuracies]


def scores(
    rows: Sequence[Row], networks: Sequence[Architecture], metric: str, seed: int
) -> Numbers:
    """Recorded accuracies of the networks."""
    values = {row.key: row.value for row in rows}
    return np.array([values[metric, network.id, seed] for network in networks], dtype=float)


def compare_alone(alone: Alone, macs: Sequence[int]) -> list[Row]:
    """What any supernet is judged against: the ceiling, and what MACs alone say."""
    n, mean = len(alone.networks), alone.mean
    by_macs = float(np.mean(alone.taus(np.array(macs, dtype=float))))
    reach = {"least": float(mean.min()), "most": float(mean.max())}
    wide = Row("range_of_accuracy", ALONE, alone.seed, float(np.ptp(mean)), "fraction", n, reach)
    return [
        Row("tau_between_seeds", ALONE, alone.seed, alone.ceiling, "tau", n),
        wide,
        Row("tau_quotient", "macs", alone.seed, by_macs / alone.ceiling, "ratio", n),
    ]


def compare_supernet(alone: Alone, shared: Numbers, name: str, seed: int) -> list[Row]:
    """Rank correlation with the stand-alone trainings, and the cost of trusting it."""
    n, mean, taus = len(alone.networks), alone.mean, alone.taus(shared)
    tau = float(np.mean(taus))
    regret = float(mean.max() - mean[np.argsort(-shared)[:_TOP]].max())
    spread = {"least": min(taus), "most": max(taus)}
    return [
        Row("tau", name, seed, tau, "tau", n, spread),
        Row("tau_to_mean_of_seeds", name, seed, _tau(shared, mean), "tau", n),
        Row("tau_quotient", name, seed, tau / alone.ceiling, "ratio", n),
        Row(f"regret_top{_TOP}", name, seed, regret, "fraction", n),
    ]


def _tau(a: Numbers, b: Numbers) -> float:
    return float(kendalltau(a, b).statistic)


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, work, add_options, seeds=(0, 1))
