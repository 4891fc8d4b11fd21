"""Optimisers of trainings, by their names in recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

from hwnas.errors import ConfigError
from hwnas.plugin import resolve
from hwnas.search.training.config import TrainConfig

__all__ = ["OPTIMIZERS", "make_optimizer"]

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
}
"""Factories by name; the arguments are groups of parameters, ``lr`` and options of the recipe."""


def make_optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimiser of a network; only weights of two or more dimensions decay.

    Raises:
        ConfigError: The optimiser is unknown, or does not accept its options.
    """
    parameters = list(network.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    given = [group for group in groups if group["params"]]
    factory = resolve("train.optimizer", config.optimizer, OPTIMIZERS)
    try:
        return factory(given, lr=config.learning_rate, **config.optimizer_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"train.optimizer {config.optimizer!r} with train.optimizer_options "
            f"{dict(config.optimizer_options)} cannot be made: {error}"
        ) from error
