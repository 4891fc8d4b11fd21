"""Optimisers of trainings, by their names in recipes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import nn

from hwnas.errors import ConfigError
from hwnas.plugin import resolve
from hwnas.search.training.config import TrainConfig
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["OPTIMIZERS", "check_layer_rates", "frozen", "make_optimizer"]

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, fused=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
}
"""Factories by name; the arguments are groups of parameters, ``lr`` and options of the recipe."""

_ALL_FROZEN = "train.layer_rates freezes all weights; leave some to be trained"


def make_optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimiser of a network; only weights of two or more dimensions decay.

    Each group of parameters has a ``"scale"``, its learning rate as a share of that of the
    training. Frozen weights are left out.

    Raises:
        ConfigError: The optimiser is unknown, or does not accept its options, or all weights are
            frozen.
    """
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if scale := config.layer_rate(_name(name)):
            groups.setdefault((scale, parameter.dim() > 1), []).append(parameter)
    if not groups:
        raise ConfigError(_ALL_FROZEN)
    given = [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if decays else 0.0,
            "lr": scale * config.learning_rate,
            "scale": scale,
        }
        for (scale, decays), parameters in sorted(
            groups.items(), key=operator.itemgetter(0), reverse=True
        )
    ]
    factory = resolve("train.optimizer", config.optimizer, OPTIMIZERS)
    try:
        return factory(given, lr=config.learning_rate, **config.optimizer_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"train.optimizer {config.optimizer!r} with train.optimizer_options "
            f"{dict(config.optimizer_options)} cannot be made: {error}"
        ) from error


@contextmanager
def frozen(network: nn.Module, config: TrainConfig) -> Iterator[None]:
    """Let the weights that a training freezes have no gradients for the duration of a block."""
    held = [
        parameter
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and config.layer_rate(_name(name)) == 0
    ]
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)


def check_layer_rates(config: TrainConfig, space: SearchSpace) -> None:
    """Raise if a pattern of ``train.layer_rates`` matches no weight of a space's networks.

    Raises:
        ConfigError: A pattern matches none, or all weights are frozen.
    """
    if not config.layer_rates:
        return
    with blueprint():
        network = space.shared_network()
    names = [name for name, _ in network.named_parameters()]
    for pattern in config.layer_rates:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"train.layer_rates: no weight matches {pattern!r}; the weights are called "
                f"{names[0]}, {names[len(names) // 2]}, {names[-1]} and so on"
            )
    if not any(config.layer_rate(name) for name in names):
        raise ConfigError(_ALL_FROZEN)


def _name(name: str) -> str:
    """Return the name in the largest network of a weight of a network or a supernet."""
    return name.removeprefix("shared.")
