"""Exponential moving average (EMA) of weights, which a training may return in their place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

__all__ = ["MovingAverage"]


class MovingAverage:
    """Exponential moving average of all weights and running statistics of a network.

    The decay rises from 0.1 to its full value, so that the first weights are soon forgotten. After
    n updates it is ``min(decay, (1 + n) / (10 + n))``, as in TensorFlow's
    ``ExponentialMovingAverage``.

    Args:
        network: Network on its device; its tensors must stay the same objects.
        decay: Full value of the decay, in (0, 1).
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._decay = decay
        state = network.state_dict()
        self._current = {name: t for name, t in state.items() if t.is_floating_point()}
        self.tensors = {name: tensor.clone() for name, tensor in self._current.items()}

    def update(self, step: int) -> None:
        """Update the average with the network's weights after ``step`` updates."""
        average = get_ema_multi_avg_fn(min(self._decay, (1 + step) / (10 + step)))  # type: ignore[no-untyped-call]
        average(list(self.tensors.values()), list(self._current.values()), step)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load saved averages.

        Raises:
            KeyError: An average is missing.
        """
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def give(self) -> None:
        """Copy the averages into the network."""
        for name, tensor in self._current.items():
            tensor.copy_(self.tensors[name])
