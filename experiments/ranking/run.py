"""Which method of supernet training ranks networks as training each of them alone does?

Networks spread evenly over MACs are trained alone, each with several seeds. They are also scored
with the weights of supernets; each method trains the same number of supernets, for the same time on
the same images. All scores use the same validation images. The agreement of two stand-alone
trainings is the ceiling for any supernet.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from experiments.ranking.agreement import Alone, Numbers, of_alone, of_method, of_supernet
from experiments.ranking.methods import METHODS, RIVAL
from experiments.readme_table import across
from experiments.record import Row
from experiments.setting import Setting, cores, main
from hwnas.errors import ConfigError
from hwnas.hashing import content_hash
from hwnas.plugin import closest
from hwnas.search import Fidelity, SupernetEvaluator, SupernetTraining, train_supernet
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.evaluation.ranking import spread_over_macs
from hwnas.search.evaluation.scoring import Evaluation, recalibrate, score
from hwnas.search.training import NetworkStep, fit, load_weights
from hwnas.search_spaces import Architecture, Candidate, SearchSpace
from hwnas.stages.run_inputs import RunInputs

ALONE = "alone"
_DIVISION_SEED = 0  # all trainings use the same images, whatever their seed
_RECALIBRATION_IMAGES = 2048
"""Images for BN recalibration, of networks trained alone and of subnets of a supernet alike."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", type=int, default=16)
    parser.add_argument("--pool", type=int, default=300, help="random networks to choose from")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train each network alone")
    parser.add_argument("--supernet-seeds", type=int, nargs="+", default=[0, 1], metavar="N")
    parser.add_argument(
        "--methods", nargs="+", default=list(METHODS), metavar="NAME", help=", ".join(METHODS)
    )


def work(arguments: argparse.Namespace) -> None:
    if len(arguments.seeds) < 2:
        raise ConfigError("--seeds has one seed; the ceiling needs two stand-alone trainings")
    for name in arguments.methods:
        if name not in METHODS:
            raise ConfigError(f"unknown method {name!r}; {closest(name, METHODS)}")
    config = {name: getattr(arguments, name) for name in ("networks", "pool", "epochs")}
    setting = Setting(arguments, {**config, "recalibrated_on": _RECALIBRATION_IMAGES})
    run_inputs = setting.run_inputs(_DIVISION_SEED)
    networks = spread_over_macs(run_inputs.space, arguments.networks, arguments.pool)
    with cores(run_inputs.recipe) as at_once:
        observe_alone(setting, run_inputs, networks, arguments.epochs, at_once)
        table = [scores(setting, networks, ALONE, seed) for seed in setting.seeds]
        alone = Alone(np.array(table), setting.seeds[0])
        macs = [run_inputs.space.workload(network).macs for network in networks]
        setting.answer(of_alone(alone, macs))
        # Ordered by seed, so that an interrupted run leaves a table of all methods.
        for seed, method in itertools.product(arguments.supernet_seeds, arguments.methods):
            observe_supernet(setting, run_inputs, networks, method, seed)
            shared = scores(setting, networks, method, seed)
            setting.answer(of_supernet(alone, shared, method, seed))
    seeds = arguments.supernet_seeds
    rival = all_scores(setting, networks, RIVAL, seeds) if RIVAL in arguments.methods else None
    for method in arguments.methods:
        shared = rival if method == RIVAL else all_scores(setting, networks, method, seeds)
        assert shared is not None
        setting.answer(of_method(alone, shared, rival, method))
    print(across(setting.answers.rows))


def observe_alone(
    setting: Setting,
    run_inputs: RunInputs,
    networks: Sequence[Architecture],
    epochs: int,
    at_once: int,
) -> None:
    """Train each network with each seed, unless the result is recorded already."""
    missing = [
        (network, seed)
        for seed, network in itertools.product(setting.seeds, networks)
        if setting.observations.find(ALONE, network.id, seed) is None
    ]
    shared = run_inputs, epochs, setting.work
    trained = map_tasks(train_alone, shared, missing, at_once)
    for (network, seed), (found, seconds) in zip(missing, trained, strict=True):
        print(f"seed {seed}: trained {network.id} alone", flush=True)
        setting.observations.put(
            [row(ALONE, run_inputs.space, network, found, seed, seconds=seconds)]
        )


def observe_supernet(
    setting: Setting,
    run_inputs: RunInputs,
    networks: Sequence[Architecture],
    method: str,
    seed: int,
) -> None:
    """Score each network with a supernet's weights, unless the result is recorded already."""
    missing = [n for n in networks if setting.observations.find(method, n.id, seed) is None]
    if not missing:
        return
    print(f"seed {seed}: the supernet {method}", flush=True)
    folder = setting.work / f"{method}-{seed}"
    evaluator, epochs = supernet_evaluator(run_inputs, method, seed, folder)
    for network in missing:
        found = evaluator.evaluate(Candidate.of(network), Fidelity())
        setting.observations.put(
            [row(method, run_inputs.space, network, found, seed, epochs=epochs)]
        )


def train_alone(
    shared: tuple[RunInputs, int, Path], network: Architecture, seed: int
) -> tuple[Evaluation, float]:
    """Train a network from scratch; return its validation accuracy and the seconds of training.

    All networks are trained for the same number of epochs. In equal time, the large ones would
    complete a fifth of the epochs of the small ones, and the ranking would be one of speeds.
    """
    run_inputs, epochs, folder = shared
    torch.manual_seed(seed)
    space, task, data = run_inputs.space, run_inputs.task, run_inputs.data
    shape = space.input_shape(network)
    module = space.build(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    config = replace(run_inputs.recipe.train, epochs=epochs, budget_minutes=None)
    run = content_hash(run_inputs.hash, config, seed, network.id)
    step = NetworkStep(module, task, shape)
    checkpoint = folder / f"{network.id}-{seed}.safetensors"
    end = fit(module, step, data.train, config, seed, checkpoint=checkpoint, run=run)
    recalibrate(module, task, data.train.first(_RECALIBRATION_IMAGES), shape)
    checkpoint.unlink(missing_ok=True)
    return score(module, task, data.validation, shape, "validation"), end.seconds


def supernet_evaluator(
    run_inputs: RunInputs, method: str, seed: int, folder: Path
) -> tuple[SupernetEvaluator, float]:
    """Train or resume the supernet; return an evaluator of its weights and the epochs trained."""
    space, task, data = run_inputs.space, run_inputs.task, run_inputs.data
    config = run_inputs.recipe.train.adjusted(METHODS[method])
    run = content_hash(run_inputs.hash, config, seed)
    seen: list[float] = []
    training = SupernetTraining(space, task, data, config, seed, run, folder)
    path = train_supernet(training, lambda point: seen.append(point.epoch))
    arrays = {name: tensor.numpy() for name, tensor in load_weights(path).items()}
    evaluator = SupernetEvaluator(space, task, data, arrays, _RECALIBRATION_IMAGES)
    return evaluator, max(seen, default=0.0)


def row(
    metric: str,
    space: SearchSpace,
    network: Architecture,
    found: Evaluation,
    seed: int,
    **details: float,
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
        {"macs": space.workload(network).macs, "architecture": network.to_json(), **details},
    )


def scores(setting: Setting, networks: Sequence[Architecture], metric: str, seed: int) -> Numbers:
    """Return the recorded accuracies of the networks."""
    values = {row.key: row.value for row in setting.observations.rows}
    return np.array([values[metric, network.id, seed] for network in networks], dtype=float)


def all_scores(
    setting: Setting, networks: Sequence[Architecture], method: str, seeds: Sequence[int]
) -> Numbers:
    """Return the recorded accuracies of all supernets of a method, (supernets, networks)."""
    return np.array([scores(setting, networks, method, seed) for seed in seeds])


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, seeds=(0, 1, 2), recipe=here / "recipe.toml")
