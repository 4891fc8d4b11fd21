"""Training of single networks for equal time each: the baselines of a search."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.sides import Network
from hwnas.atomic import write_json
from hwnas.deploy import export_onnx
from hwnas.hashing import content_hash
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.evaluation.scoring import Evaluation, recalibrate, score
from hwnas.search.training import NetworkStep, Teacher, TrainConfig, fit, save_weights
from hwnas.search_spaces.cost_model.workload import trace
from hwnas.stages.run_inputs import RunInputs

__all__ = ["Alone", "for_seconds", "seconds_each", "train_alone", "weights_of"]

_RECALIBRATION_IMAGES = 2048


@dataclass(frozen=True)
class Alone:
    """Network to be trained on its own.

    Attributes:
        name: Name of its files.
        build: Function that creates it with its initial weights; random weights come from torch's
            global generator.
        input_shape: Channels, height and width.
        about: Description of the network, as JSON; a different description is a different network.
        settings: Training settings of this network that differ from those of the others.
        traceable: Whether a trace of one run has its operators; see `SearchSpace.traceable`.
    """

    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, int, int]
    about: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    traceable: bool = False


def for_seconds(run_inputs: RunInputs, seconds: float) -> TrainConfig:
    """Return the training config of the recipe, with a budget of ``seconds``."""
    return replace(run_inputs.recipe.train, epochs=None, budget_minutes=seconds / 60)


def seconds_each(seconds: float, count: int, at_once: int) -> float:
    """Return the wall-clock seconds of each training, if all trainings share a budget equally.

    Args:
        seconds: Wall-clock budget of all trainings.
        count: Number of networks.
        at_once: Number of trainings in parallel.
    """
    return seconds / math.ceil(count / at_once)


def weights_of(folder: Path, name: str) -> Path:
    """Return the path at which `train_alone` keeps the weights of a network."""
    return folder / f"{name}.safetensors"


def train_alone(
    side: str,
    networks: Sequence[Alone],
    run_inputs: RunInputs,
    trainings: Sequence[TrainConfig],
    folder: Path,
    at_once: int,
    teacher: Teacher | None = None,
) -> tuple[list[Network], float]:
    """Train, test and export networks, in parallel on the available cores if Ray is running.

    Args:
        side: Side of the comparison that the networks belong to.
        networks: Networks to train.
        run_inputs: Data and task; weights are initialised from the recipe's seed.
        trainings: Trainings of each network, one after the other.
        folder: Folder for checkpoints and results; finished networks in it are not trained again.
        at_once: Number of networks trained in parallel, on one core each.
        teacher: Network that they learn from by distillation; None to learn from labels alone.

    Returns:
        The networks, and the wall-clock seconds of their training in parallel.
    """
    shared = side, run_inputs, tuple(trainings), folder, teacher
    found = list(map_tasks(_trained, shared, [(network,) for network in networks], at_once))
    spent = sum(seconds for _, seconds in found) / min(at_once, len(networks))
    return [network for network, _ in found], spent


def _trained(
    shared: tuple[str, RunInputs, tuple[TrainConfig, ...], Path, Teacher | None], network: Alone
) -> tuple[Network, float]:
    side, run_inputs, trainings, folder, teacher = shared
    trainings = tuple(config.adjusted(network.settings) for config in trainings)
    done, onnx = folder / f"{network.name}.json", folder / f"{network.name}.onnx"
    recipe, about = run_inputs.recipe, dict(network.about)
    run = content_hash(run_inputs.data.fingerprint, repr(run_inputs.task), trainings,
                       recipe.seed, network.name, network.input_shape, about)  # fmt: skip
    found: dict[str, Any] = json.loads(done.read_text(encoding="utf-8")) if done.exists() else {}
    if found.get("run") != run or not onnx.exists():
        print(f"seed {recipe.seed}: training {side} {network.name}", flush=True)
        found = {"run": run, **_train(network, run_inputs, trainings, run, onnx, teacher)}
        write_json(done, found)
    metric = run_inputs.task.metrics[0].name
    scores = {
        split: Evaluation.from_json(found[split]).values[metric] for split in ("validation", "test")
    }
    trained = Network(
        side,
        network.name,
        onnx,
        scores["validation"],
        scores["test"],
        found["macs"],
        found["params"],
        about,
    )
    return trained, float(found["seconds"])


def _train(
    network: Alone,
    run_inputs: RunInputs,
    trainings: Sequence[TrainConfig],
    run: str,
    onnx: Path,
    teacher: Teacher | None,
) -> dict[str, object]:
    """Train, test and export a network; an interrupted training resumes from its checkpoint."""
    recipe, task, data = run_inputs.recipe, run_inputs.task, run_inputs.data
    shape = network.input_shape
    torch.manual_seed(recipe.seed)
    module = network.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seconds, checkpoints = 0.0, []
    for number, config in enumerate(trainings):
        checkpoint = onnx.with_name(f"{network.name}.{number}.checkpoint")
        step = NetworkStep.of(module, task, shape, config, teacher)
        end = fit(module, step, data.train, config, recipe.seed, checkpoint=checkpoint, run=run)
        seconds += end.seconds
        checkpoints.append(checkpoint)
    recalibrate(module, task, data.train.first(_RECALIBRATION_IMAGES), shape)
    validation = score(module, task, data.validation, shape, "validation")
    test = score(module, task, data.test, shape, "test")
    workload = trace(module, shape)
    save_weights(weights_of(onnx.parent, network.name), module.state_dict())
    export_onnx(module, shape, onnx, traceable=network.traceable)
    for checkpoint in checkpoints:
        checkpoint.unlink(missing_ok=True)
    return {
        "seconds": seconds,
        "validation": validation.to_json(),
        "test": test.to_json(),
        "macs": workload.macs,
        "params": workload.params,
    }
