"""Fine-tuning of a network by a compiled program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from hwnas.deploy.finetuning.memory import OptimizerMemory
from hwnas.deploy.finetuning.program import TrainingProgram
from hwnas.deploy.finetuning.scheme import TrainedTensor
from hwnas.errors import ConfigError

__all__ = ["Batches", "FineTuningSettings", "ProgramTrainer", "fine_tune", "network_tensors"]

Batches = Iterator[tuple[Tensor, Tensor]]
"""Inputs of the network (batch, C, H, W) and classes int64 (batch,), without an end."""

_LARGEST_NORM = 1.0  # of all gradients together; normalisations are folded, so steps may be too far


@dataclass(frozen=True)
class FineTuningSettings:
    """Settings of a fine-tuning.

    Attributes:
        steps: Number of batches, at least 1.
        learning_rate: Learning rate of the first step; it falls to 0 along half a cosine.
        optimizer: ``"sgd"`` (momentum 0.9) or ``"adam"``.
        seed: Seed of the order of the images.
    """

    steps: int = 100
    learning_rate: float = 0.01
    optimizer: str = "sgd"
    seed: int = 0

    def __post_init__(self) -> None:
        OptimizerMemory.of(self.optimizer)
        if self.steps < 1:
            raise ConfigError(f"steps is {self.steps}; expected at least 1")
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {self.learning_rate}; expected more than 0")


def network_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a network by name, sharing its memory."""
    parameters = {name: tensor.detach() for name, tensor in network.named_parameters()}
    return {**parameters, **dict(network.named_buffers())}


class ProgramTrainer:
    """Optimiser that changes the trained tensors of a network in place.

    Args:
        tensors: Parameters and buffers of the network, as from `network_tensors`.
        program: Program that computes the gradients.
        settings: Settings of the fine-tuning.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        program: TrainingProgram,
        settings: FineTuningSettings,
    ) -> None:
        self._tensors, self._program, self._settings = tensors, program, settings
        self._trained = {each: nn.Parameter(_part(tensors, each)) for each in program.tensors}
        self._optimizer = _optimizer([*self._trained.values()], settings)

    def step(self, number: int, images: Tensor, targets: Tensor) -> dict[TrainedTensor, Tensor]:
        """Train on a batch, and return the gradients.

        Args:
            number: Number of the step, from 0.
            images: Inputs of the network, (batch, C, H, W).
            targets: Classes, int64 (batch,).

        Raises:
            ConfigError: The loss is not a number.
        """
        rate = self._settings.learning_rate
        loss, values = self._program.forward(self._tensors, images, targets)
        if not math.isfinite(float(loss)):
            raise ConfigError(
                f"the loss is not a number at step {number} of the fine-tuning; give a learning "
                f"rate below {rate:g}"
            )
        gradients = self._program.backward(values)
        for tensor, parameter in self._trained.items():
            parameter.grad = gradients[tensor]
        clip_grad_norm_(self._trained.values(), _LARGEST_NORM, foreach=False)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * (1 + math.cos(math.pi * number / self._settings.steps)) / 2
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return gradients


def fine_tune(
    network: nn.Module,
    program: TrainingProgram,
    batches: Batches,
    settings: FineTuningSettings,
    advance: Callable[[float], None] = lambda share: None,
) -> None:
    """Fine-tune a network in place.

    Args:
        network: Network that the program was compiled of.
        program: Program of the scheme.
        batches: Batches of the program's size.
        settings: Settings of the fine-tuning.
        advance: Function that gets the share of the steps that are done.

    Raises:
        ConfigError: The loss is not a number.
    """
    trainer = ProgramTrainer(network_tensors(network), program, settings)
    for number in range(settings.steps):
        trainer.step(number, *next(batches))
        advance((number + 1) / settings.steps)


def _part(tensors: Mapping[str, Tensor], trained: TrainedTensor) -> Tensor:
    whole = tensors[trained.parameter]
    return trained.layer.part(whole, trained.width) if trained.width else whole


def _optimizer(
    parameters: list[nn.Parameter], settings: FineTuningSettings
) -> torch.optim.Optimizer:
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, settings.learning_rate, foreach=False)
    return torch.optim.SGD(parameters, settings.learning_rate, momentum=0.9, foreach=False)
