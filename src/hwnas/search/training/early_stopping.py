"""Early stopping: end of a training that gets no better, with the best of its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hwnas.search.training.averaging import MovingAverage

__all__ = ["EarlyStopping"]

_SCORE, _EPOCH, _WEIGHTS = "score", "epoch", "weights."


class EarlyStopping:
    """Best score of a network during its training, and the weights that it was reached with.

    Args:
        network: Network on its device; its tensors must stay the same objects.
        validate: Function that returns the score of a network on images that it does not learn
            from; higher is better.
        patience: Number of epochs without a better score after which the training is over.
    """

    def __init__(
        self, network: nn.Module, validate: Callable[[nn.Module], float], patience: int
    ) -> None:
        self._network, self._validate, self._patience = network, validate, patience
        self._best, self._epoch = -math.inf, 0.0
        self._weights: dict[str, Tensor] = {}

    def over(self, epoch: float) -> bool:
        """Return whether the training is over, after a number of epochs."""
        return epoch - self._epoch >= self._patience

    @torch.no_grad()
    def look(self, epoch: float, average: MovingAverage | None) -> None:
        """Score the network, which is then as before; keep its weights if none were better.

        Args:
            epoch: Number of epochs so far.
            average: Moving average of the weights that the training would end with, if any.
        """
        state = self._network.state_dict()
        before = {name: tensor.clone() for name, tensor in state.items()}
        if average is not None:
            average.give()
        found = self._validate(self._network)
        if found > self._best:
            self._best, self._epoch = found, epoch
            self._weights = {name: tensor.cpu().clone() for name, tensor in state.items()}
        for name, tensor in state.items():
            tensor.copy_(before[name])
        self._network.train()

    @torch.no_grad()
    def give(self) -> None:
        """Copy the best weights, if there are any, into the network."""
        state = self._network.state_dict()
        for name, tensor in self._weights.items():
            state[name].copy_(tensor)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """State of this object as tensors, for a checkpoint."""
        numbers = {_SCORE: self._best, _EPOCH: self._epoch}
        named = {name: torch.tensor(each, dtype=torch.float64) for name, each in numbers.items()}
        return named | {_WEIGHTS + name: tensor for name, tensor in self._weights.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a saved state.

        Raises:
            KeyError: The score, its epoch or a weight is missing.
        """
        self._best, self._epoch = tensors[_SCORE].item(), tensors[_EPOCH].item()
        kept = any(name.startswith(_WEIGHTS) for name in tensors)
        names = self._network.state_dict() if kept else ()
        self._weights = {name: tensors[_WEIGHTS + name] for name in names}
