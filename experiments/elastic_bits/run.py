"""Is a network of few bits as accurate within a supernet of all bit widths as trained alone?

Networks with bit widths drawn at random are scored with the weights of a supernet, and each of them
is trained alone for as many epochs. The supernet is trained in four ways: with both parts of EQ-Net
(guidance from networks of more bits, and a penalty on the distribution of the weights), with each
of them, and with none.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import scipy.stats
import torch

from experiments.elastic_bits.predictor import ASKED, LABELLED, agreements
from experiments.record import Row
from experiments.setting import Setting, cores, main
from hwnas.hashing import content_hash
from hwnas.search.data.split import Split
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.evaluation.evaluate import train_network
from hwnas.search.evaluation.scoring import Evaluation, recalibrate, score
from hwnas.search.training import NetworkStep, SupernetTraining, load_weights, train_supernet
from hwnas.search_spaces import Architecture, Supernet
from hwnas.search_spaces.quantised import QuantisedSpace
from hwnas.stages.run_inputs import RunInputs

METHODS: Mapping[str, Mapping[str, Any]] = {
    "both": {"sampling": "bit-groups", "teacher": "previous", "weight_distribution": 0.1},
    "guidance": {"sampling": "bit-groups", "teacher": "previous"},
    "distribution": {"weight_distribution": 0.1},
    "none": {},
}
"""Training settings of the supernets, by name."""
ALONE = "alone"
_RECALIBRATION_IMAGES = 2048


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", type=int, default=10, metavar="N")


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {"networks": arguments.networks})
    for seed in setting.seeds:
        i = setting.run_inputs(seed)
        networks = drawn(i, seed, arguments.networks)
        with cores(i.recipe) as at_once:
            observe_alone(setting, i, networks, seed, at_once)
            for method in METHODS:
                observe_supernet(setting, i, networks, method, seed)
            setting.answer(answers(setting, networks, seed))
            setting.answer(predicted(setting, i, seed))
    setting.show()


def drawn(i: RunInputs, seed: int, count: int) -> list[Architecture]:
    """Return the smallest and the largest network, and random ones."""
    rng = random.Random(seed)
    return [i.space.smallest(), i.space.largest(), *(i.space.sample(rng) for _ in range(count - 2))]


def observe_alone(
    setting: Setting, i: RunInputs, networks: Sequence[Architecture], seed: int, at_once: int
) -> None:
    """Train each network alone, unless its accuracy is recorded already."""
    missing = [n for n in networks if setting.observations.find(ALONE, n.id, seed) is None]
    found = map_tasks(trained_alone, (i, seed), [(network,) for network in missing], at_once)
    for network, evaluation in zip(missing, found, strict=True):
        print(f"seed {seed}: trained {network.id} alone", flush=True)
        setting.observations.put([row(ALONE, i, network, evaluation, seed)])


def trained_alone(shared: tuple[RunInputs, int], network: Architecture) -> Evaluation:
    """Return the test accuracy of a network that is trained from scratch."""
    i, seed = shared
    torch.manual_seed(seed)
    module, shape = i.space.build(network), i.space.input_shape(network)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    config = i.recipe.train
    train_network(
        *(NetworkStep.of(module, i.task, shape, config), i.data, config, seed),
        recalibration_images=_RECALIBRATION_IMAGES,
    )
    return score(module, i.task, i.data.test, shape, "test")


def observe_supernet(
    setting: Setting, i: RunInputs, networks: Sequence[Architecture], method: str, seed: int
) -> None:
    """Score the networks with a supernet's weights, unless the results are recorded already."""
    missing = [n for n in networks if setting.observations.find(method, n.id, seed) is None]
    if not missing:
        return
    supernet = trained_supernet(setting, i, method, seed)
    for network in missing:
        found = scored(i, supernet, network, i.data.test)
        setting.observations.put([row(method, i, network, found, seed)])


def trained_supernet(setting: Setting, i: RunInputs, method: str, seed: int) -> Supernet:
    """Return a supernet with its weights, which are trained unless their file exists."""
    config = replace(i.recipe.train, **METHODS[method])
    run = content_hash(i.hash, config.identity, seed)
    folder = (setting.work / f"{method}-{seed}").absolute()
    training = SupernetTraining(i.space, i.task, i.data, config, seed, run, folder)
    file = folder / "weights.safetensors"
    if not file.exists():
        print(f"seed {seed}: training the supernet with {method}", flush=True)
        file = train_supernet(training)
    supernet = i.space.supernet()
    supernet.shared.load_state_dict(load_weights(file))
    return supernet


def scored(i: RunInputs, supernet: Supernet, network: Architecture, images: Split) -> Evaluation:
    """Return the accuracy of a network with a supernet's weights."""
    module, shape = supernet.extract(network), i.space.input_shape(network)
    recalibrate(module, i.task, i.data.train.first(_RECALIBRATION_IMAGES), shape)
    return score(module, i.task, images, shape, "test" if images is i.data.test else "validation")


def predicted(setting: Setting, i: RunInputs, seed: int) -> list[Row]:
    """Return how well accuracies in the first supernet are predicted, unless recorded already."""
    if setting.answers.find("predictor_tau", "architecture and bits", seed) is not None:
        return []
    print(f"seed {seed}: predicting accuracies", flush=True)
    supernet, rng = trained_supernet(setting, i, next(iter(METHODS)), seed), random.Random(seed + 1)
    networks = [i.space.sample(rng) for _ in range(LABELLED + ASKED)]
    accuracies = [
        scored(i, supernet, network, i.data.validation).values["accuracy"] for network in networks
    ]
    codes = np.array([i.space.encode(network) for network in networks])
    assert isinstance(i.space, QuantisedSpace)
    found = agreements(i.space, codes, np.array(accuracies))
    return [Row("predictor_tau", name, seed, tau, "ratio", ASKED) for name, tau in found.items()]


def row(method: str, i: RunInputs, network: Architecture, found: Evaluation, seed: int) -> Row:
    """Return the observation of one network."""
    size = i.space.workload(network).weight_bytes
    error = found.standard_errors["accuracy"]
    return Row(
        *(method, network.id, seed, found.values["accuracy"], "fraction", found.n),
        details={"standard_error": error, "weight_bytes": size},
    )


def answers(setting: Setting, networks: Sequence[Architecture], seed: int) -> list[Row]:
    """Return how far networks of each supernet are from those that are trained alone."""

    def accuracies(method: str) -> np.ndarray:
        rows = (setting.observations.find(method, network.id, seed) for network in networks)
        return np.array([row.value for row in rows if row is not None], dtype=float)

    alone, count, found = accuracies(ALONE), len(networks), []
    sizes = [setting.observations.find(ALONE, n.id, seed) for n in networks]
    smaller = np.array([-row.details["weight_bytes"] for row in sizes if row is not None])
    found.append(Row("accuracy", ALONE, seed, fmean(alone), "fraction", count))
    for method in METHODS:
        shared = accuracies(method)
        gap = median(alone - shared)
        found.append(Row("accuracy", method, seed, fmean(shared), "fraction", count))
        found.append(Row("median_gap", method, seed, gap, "fraction", count))
        tau = float(scipy.stats.kendalltau(shared, alone).statistic)
        found.append(Row("kendall_tau", method, seed, tau, "ratio", count))
    tau = float(scipy.stats.kendalltau(-smaller, alone).statistic)
    found.append(Row("kendall_tau", "weight bytes alone", seed, tau, "ratio", count))
    return found


if __name__ == "__main__":
    folder = Path(__file__).parent
    main(folder, __doc__, work, options, recipe=folder / "recipe.toml")
