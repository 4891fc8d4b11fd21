"""Fine-tuning of a run's network for a variant of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hwnas.deploy.variants.conversion import Conversion
from hwnas.deploy.variants.variant import Retrain
from hwnas.search.engine.devices import device_here
from hwnas.search.evaluation.evaluate import train_network
from hwnas.search.training import NetworkStep, Teacher, TrainConfig
from hwnas.search_spaces import Architecture
from hwnas.search_spaces.layers.branches import merged_branches
from hwnas.stages.finalists.exporting import export_network
from hwnas.stages.run_inputs import RunInputs

__all__ = ["retraining"]

_RECALIBRATION_IMAGES = 2048


def retraining(
    run_inputs: RunInputs,
    architecture: Architecture,
    weights: Mapping[str, Tensor],
    config: TrainConfig,
) -> Retrain:
    """Return a function that fine-tunes a network under a conversion, with itself as the teacher.

    Args:
        run_inputs: Data, task and space of the run that the network is from.
        architecture: Architecture of the network.
        weights: Trained weights of the network.
        config: Training settings of the fine-tuning, such as its length and learning rate.
    """

    def retrain(conversion: Conversion, to: Path, features: float = 0.0) -> Path:
        space, task, data = run_inputs.space, run_inputs.task, run_inputs.data
        shape = space.input_shape(architecture)
        torch.manual_seed(run_inputs.recipe.seed)
        network = space.build(architecture)
        network.load_state_dict(weights)
        network = merged_branches(network.eval())
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        device = device_here(run_inputs.recipe.deploy.gpus_per_worker)
        teacher = Teacher(copy.deepcopy(network).eval(), shape).to(device)
        conversion.begin(network)
        network.to(device)  # with what the conversion added
        step = NetworkStep.of(network, task, shape, config, teacher, features)
        seed = run_inputs.recipe.seed
        train_network(step, data, config, seed, recalibration_images=_RECALIBRATION_IMAGES)
        conversion.end(network.cpu())
        return export_network(run_inputs, architecture, network, to).path

    return retrain
