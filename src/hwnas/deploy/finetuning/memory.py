"""Memory of a training step, predicted from the lifetimes of its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hwnas.errors import ConfigError
from hwnas.plugin import closest

__all__ = ["OPTIMIZERS", "OptimizerMemory", "StepMemory", "TrainingMemory"]


@dataclass(frozen=True)
class OptimizerMemory:
    """Memory of an optimiser, as multiples of a trained tensor.

    Attributes:
        states: Tensors that it keeps for each trained tensor.
        temporaries: Tensors that exist while it updates one.
    """

    states: int
    temporaries: int

    @classmethod
    def of(cls, name: str) -> OptimizerMemory:
        """Return the memory of an optimiser by its name.

        Raises:
            ConfigError: There is none of this name.
        """
        if name not in OPTIMIZERS:
            raise ConfigError(f"unknown optimizer {name!r}; {closest(name, OPTIMIZERS)}")
        return OPTIMIZERS[name]


OPTIMIZERS: Mapping[str, OptimizerMemory] = {
    "sgd": OptimizerMemory(1, 0),  # momentum
    "adam": OptimizerMemory(2, 2),  # both moments; a root and a quotient
}
"""Memory of each optimiser."""


@dataclass(frozen=True)
class StepMemory:
    """Memory of the values of one training step, besides weights and the optimiser's state.

    Attributes:
        saved_bytes: Bytes kept from the forward to the backward pass.
        peak_bytes: Most bytes that exist at once: images, activations, temporaries and gradients.
    """

    saved_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of a training in bytes.

    Attributes:
        weights_bytes: Weights, biases and constants of the network.
        optimizer_bytes: State of the optimiser.
        gradients_bytes: Gradients of all trained tensors; part of the peak.
        saved_bytes: What is kept from the forward to the backward pass; part of the peak.
        peak_bytes: Most bytes that exist at once besides weights and the optimiser's state: images,
            activations, temporaries and gradients.
    """

    weights_bytes: int
    optimizer_bytes: int
    gradients_bytes: int
    saved_bytes: int
    peak_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of weights, state of the optimiser and peak."""
        return self.weights_bytes + self.optimizer_bytes + self.peak_bytes

    @classmethod
    def of(
        cls, weights_bytes: int, trained: Sequence[int], step: StepMemory, optimizer: str
    ) -> TrainingMemory:
        """Return the memory of a training.

        Args:
            weights_bytes: Size of the network's weights.
            trained: Size of each trained tensor, in bytes.
            step: Memory of one step.
            optimizer: Name of the optimiser, of `OPTIMIZERS`.
        """
        needs = OptimizerMemory.of(optimizer)
        gradients = sum(trained)
        update = gradients + needs.temporaries * max(trained, default=0)
        peak = max(step.peak_bytes, update)
        return cls(weights_bytes, needs.states * gradients, gradients, step.saved_bytes, peak)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with all parts and their total."""
        return {**asdict(self), "total_bytes": self.total_bytes}
