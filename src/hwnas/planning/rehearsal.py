"""Rehearsal of a plan: networks like its candidates are trained briefly, as in the search.

The probe of `hwnas.planning.speed` times a few networks alone. The training time of the candidates
also depends on their layers, on the trainings that run at the same time, and on the image size,
which is smaller at first. The slowdown that a rehearsal measures therefore corrects the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hwnas.planning.speed import TrainingRates
from hwnas.search.data.image_data import Split
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.engine.devices import working_device
from hwnas.search.engine.threads import torch_threads
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers.base.batch import History
from hwnas.search.samplers.base.computed_features import features_of_space
from hwnas.search.samplers.stratified import Stratified
from hwnas.search.tasks.task import Task
from hwnas.search.training import NetworkStep, TrainConfig, fit
from hwnas.search.training.trainer import TrainingPoint
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["slowdown"]

_NETWORKS = 8
_SECONDS = 2.0  # of each training
_STEPS = 8  # of each training, if that takes longer
_PARTS = 4
_WARM_UP = 2  # steps that are not counted: the first choose algorithms

Shared = tuple[SearchSpace, Task, Split, TrainConfig]


def slowdown(
    space: SearchSpace,
    task: Task,
    split: Split,
    train: TrainConfig,
    rates: TrainingRates,
    most_macs: float,
    workers: int,
    gpus: float | None = 0.0,
) -> float:
    """Return the training time per image in a search, relative to that in the probe.

    Args:
        space: Space of the networks.
        task: Task that they learn.
        split: Training images.
        train: Training settings of the candidates.
        rates: Seconds per image according to the probe.
        most_macs: Multiply-accumulates of the largest candidate.
        workers: Number of networks that are trained at once; each is a Ray task if Ray is running.
        gpus: GPUs that each training reserves; see `map_tasks`.
    """
    networks = _candidates(space, most_macs)
    expected = [rates.seconds(space.workload(network).macs)[0] for network in networks]
    lengths = [max(_SECONDS, _STEPS * train.batch_size * seconds) for seconds in expected]
    tasks = list(zip(networks, lengths, strict=True))
    with torch_threads(1):
        shared = space, task, split, train
        found = list(map_tasks(_seconds_per_image, shared, tasks, workers, gpus))
    return float(np.mean(np.array(found) / expected))


def _candidates(space: SearchSpace, most_macs: float) -> Sequence[Architecture]:
    """Return networks like those that the sampler of a planned search proposes."""
    features = features_of_space(space, [Objective("macs", "minimize")])
    none = np.empty((0, 1))
    codes = np.empty((0, len(space.choices)), dtype=np.int64)
    history = History(codes, none, np.ones(1), (), np.empty((0, 0)), frozenset())
    sampler = Stratified(0, _NETWORKS, features, most_macs)
    planned = sampler.plan(features, history, _NETWORKS, np.random.default_rng(0))
    return [space.decode(code) for code in planned]


def _seconds_per_image(shared: Shared, network: Architecture, seconds: float) -> float:
    """Train a network for some seconds; return the mean seconds per image of a full training."""
    space, task, split, train = shared
    shape = space.input_shape(network)
    built = space.build(network)
    built.to(working_device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
    config = replace(train, epochs=None, budget_minutes=seconds / 60)
    points: list[TrainingPoint] = []
    fit(built, NetworkStep.of(built, task, shape, config), split, config, 0, on_row=points.append)
    return _mean_step(points) / config.batch_size


def _mean_step(points: Sequence[TrainingPoint]) -> float:
    """Return the mean seconds per step of a training whose length is given in steps.

    The length of a rehearsal is given in seconds, so it makes fewer steps where images are large.
    Each part of its progress therefore has the same weight, however many steps it has.
    """
    seconds = np.diff([0.0, *(point.seconds for point in points)])
    shares = np.array([point.share for point in points])
    if len(points) > _WARM_UP:
        seconds, shares = seconds[_WARM_UP:], shares[_WARM_UP:]
    parts = np.minimum((shares * _PARTS).astype(int), _PARTS - 1)
    return float(np.mean([seconds[parts == part].mean() for part in np.unique(parts)]))
