"""Search space within a model that a Python program gives as an object."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from hwnas.search_spaces.any_model.analysis import elastic
from hwnas.search_spaces.any_model.sources import check_model_outputs, load_weights, made_model
from hwnas.search_spaces.any_model.space import ElasticSpace

__all__ = ["ElasticModel"]


@dataclass(frozen=True, eq=False)
class ElasticModel:
    """Factory of the space of all narrower and shallower networks within a model.

    Attributes:
        model: Model, or a function that makes it.
        weights: Safetensors file with the state of the model; None keeps its own weights.
        widths: Shares of the channels that may remain.
        step: Widths are multiples of this number.
        min_depth: Smallest share of each run of residual blocks that remains.
        keep: Names of modules that stay unchanged.
        pretrained: Whether the model is trained, so that the supernet may learn from it.
    """

    model: nn.Module | Callable[..., nn.Module]
    weights: Path | None = None
    widths: tuple[float, ...] = (0.5, 0.75, 1.0)
    step: int = 8
    min_depth: float = 0.5
    keep: tuple[str, ...] = ()
    pretrained: bool = False

    def __call__(self, image_shape: tuple[int, int, int], outputs: int) -> ElasticSpace:
        """Return the space for images (height, width, channels) and a number of outputs.

        Raises:
            ConfigError: The model cannot be made or made elastic, or has other outputs.
            ArtifactError: The weights are missing, damaged or of another model.
        """
        height, width, channels = image_shape
        name = type(self.model).__name__
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = copy.deepcopy(made_model(name, self.model, image_shape, outputs))
            example = torch.randn(2, channels, height, width)
        if self.weights is not None:
            load_weights(network, self.weights)
        space = elastic(
            network,
            example,
            widths=self.widths,
            step=self.step,
            min_depth=self.min_depth,
            keep=self.keep,
            pretrained=self.pretrained,
        )
        check_model_outputs(name, network, example, outputs)
        return space
