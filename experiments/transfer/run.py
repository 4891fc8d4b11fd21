"""Is a supernet better after the same minutes if it starts from one that saw other images?

A supernet is trained on CIFAR-10 once. For each seed, a supernet of the same space is then trained
on 500 photographs a class, once from random weights and once from those of the first supernet
(``train.weights``). The largest network, the smallest and eight random ones are scored on the test
photographs with the weights that they inherit.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.hashing import content_hash
from hwnas.search.evaluation.scoring import recalibrate, score
from hwnas.search.training import SupernetTraining, load_weights, train_supernet
from hwnas.search_spaces import Architecture, SearchSpace
from hwnas.stages.run_inputs import RunInputs

_RANDOM = 8
_FIRST = "npz:$HWNAS_DATA/images/cifar10_jpeg.npz"
_FIRST_SIDE = 32


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"first_minutes": arguments.first_minutes})
    left = [s for s in setting.seeds if setting.answers.find("accuracy_gain", "mean", s) is None]
    if left:
        first = first_training(setting, arguments.first_minutes)
        for seed in left:
            scratch, transfer = (
                scores(setting, seed, name, settings)
                for name, settings in (("scratch", []), ("transfer", [f"train.weights={first}"]))
            )
            setting.observations.put(observed(scratch, transfer, seed))
            setting.answer(answers(scratch, transfer, seed))
    setting.show()


def first_training(setting: Setting, minutes: float) -> Path:
    """Train the supernet on CIFAR-10, unless this was done before, and return its weights."""
    filled_in = [
        f"data.source={_FIRST}",
        f"data.size={_FIRST_SIDE}",
        "data.train_limit=50000",
        f"space.resolution=[{_FIRST_SIDE}]",
        f"train.budget_minutes={minutes}",
    ]
    print("training the first supernet", flush=True)
    return trained(setting, 0, "first", filled_in)[1]


def trained(
    setting: Setting, seed: int, name: str, filled_in: Sequence[str]
) -> tuple[RunInputs, Path]:
    """Train a supernet; return what it was trained on, and the file of its weights."""
    experiment, folder = setting.experiment(seed, filled_in), setting.work / f"{name}-{seed}"
    i = RunInputs.prepare(experiment.recipe, experiment.folder)
    run = content_hash(i.hash, i.recipe.train.identity, list(filled_in))
    training = SupernetTraining(
        i.space, i.task, i.data, i.recipe.train, seed, run, folder.absolute(), i.start
    )
    return i, train_supernet(training)


def scores(
    setting: Setting, seed: int, name: str, filled_in: Sequence[str]
) -> dict[Architecture, float]:
    """Return the test accuracy of each network with the weights that it inherits."""
    print(f"seed {seed}: training from {name}", flush=True)
    i, weights = trained(setting, seed, name, filled_in)
    supernet = i.space.supernet()
    supernet.shared.load_state_dict(load_weights(weights))
    found = {}
    for architecture in networks(i.space):
        network, shape = supernet.extract(architecture), i.space.input_shape(architecture)
        recalibrate(network, i.task, i.data.train.first(512), shape)
        found[architecture] = score(network, i.task, i.data.test, shape, "test").values["accuracy"]
    return found


def networks(space: SearchSpace) -> list[Architecture]:
    """Return the largest network, the smallest and random ones."""
    rng = random.Random(0)
    drawn = [space.sample(rng) for _ in range(_RANDOM)]
    return list(dict.fromkeys([space.largest(), space.smallest(), *drawn]))


def observed(
    scratch: Mapping[Architecture, float], transfer: Mapping[Architecture, float], seed: int
) -> list[Row]:
    """Return the accuracy of every network with both trainings."""
    return [
        Row("test_accuracy", f"{side} {network.id}", seed, accuracy, "fraction", 1)
        for side, found in (("scratch", scratch), ("transfer", transfer))
        for network, accuracy in found.items()
    ]


def answers(
    scratch: Mapping[Architecture, float], transfer: Mapping[Architecture, float], seed: int
) -> list[Row]:
    """Return the mean accuracy of both trainings, and the gain of the mean and of both ends."""
    gains = np.array([transfer[network] - scratch[network] for network in scratch])
    n = len(gains)
    return [
        Row("test_accuracy", "scratch", seed, fmean(scratch.values()), "fraction", n),
        Row("test_accuracy", "transfer", seed, fmean(transfer.values()), "fraction", n),
        Row("accuracy_gain", "mean", seed, float(gains.mean()), "fraction", n),
        Row("accuracy_gain", "largest", seed, float(gains[0]), "fraction", 1),
        Row("accuracy_gain", "smallest", seed, float(gains[1]), "fraction", 1),
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--first-minutes", type=float, default=15.0, help="training time on CIFAR-10, in minutes"
    )


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, _options, recipe=here / "recipe.toml")
