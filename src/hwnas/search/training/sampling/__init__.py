"""Sampling rules, which draw the networks of a supernet that a training step trains."""

from hwnas.search.training.sampling.registry import (
    SAMPLING,
    check_sampling,
    networks_a_step,
    sampling_rule,
)
from hwnas.search.training.sampling.rule import Losses, Sampling, SamplingPlugin

__all__ = [
    "SAMPLING",
    "Losses",
    "Sampling",
    "SamplingPlugin",
    "check_sampling",
    "networks_a_step",
    "sampling_rule",
]
