"""Search space within a model that a Python program gives, by its name or as an object."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from hwnas.api.object_names import importable_name
from hwnas.recipe import Named
from hwnas.search_spaces.any_model.analysis import elastic
from hwnas.search_spaces.any_model.sources import check_model_outputs, load_weights, made_model
from hwnas.search_spaces.any_model.space import ElasticSpace
from hwnas.search_spaces.quantised import QuantisationConfig, QuantisedSpace

__all__ = ["Elastic", "ElasticModel", "QuantisedModel", "quantised_networks"]


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


@dataclass(frozen=True, eq=False)
class QuantisedModel:
    """Factory of the space of the networks within a model, each with a number format.

    Attributes:
        networks: Factory of the space of the networks in single precision.
        config: Options of the number formats.
    """

    networks: ElasticModel
    config: QuantisationConfig

    def __call__(self, image_shape: tuple[int, int, int], outputs: int) -> QuantisedSpace:
        """Return the space for images (height, width, channels) and a number of outputs.

        Raises:
            ConfigError: See `ElasticModel`, and `QuantisedSpace`.
            ArtifactError: The weights are missing, damaged or of another model.
        """
        return QuantisedSpace(self.networks(image_shape, outputs), self.config)


def quantised_networks(
    networks: Named | ElasticModel, options: Mapping[str, Any]
) -> Named | QuantisedModel:
    """Return the space of the networks of another one, each with a number format.

    Args:
        networks: Space of the networks in single precision.
        options: Options of the number formats, attributes of `QuantisationConfig`.
    """
    if isinstance(networks, ElasticModel):
        return QuantisedModel(networks, QuantisationConfig(**options))
    return Named("quantised", {"network": networks.table, **options})


@overload
def Elastic(
    model: str,
    *,
    weights: str | Path | None = None,
    widths: Sequence[float] = (0.5, 0.75, 1.0),
    step: int = 8,
    min_depth: float = 0.5,
    keep: Sequence[str] = (),
    pretrained: bool | None = None,
) -> Named: ...
@overload
def Elastic(
    model: nn.Module | Callable[..., nn.Module],
    *,
    weights: str | Path | None = None,
    widths: Sequence[float] = (0.5, 0.75, 1.0),
    step: int = 8,
    min_depth: float = 0.5,
    keep: Sequence[str] = (),
    pretrained: bool | None = None,
) -> Named | ElasticModel: ...
def Elastic(
    model: str | nn.Module | Callable[..., nn.Module],
    *,
    weights: str | Path | None = None,
    widths: Sequence[float] = (0.5, 0.75, 1.0),
    step: int = 8,
    min_depth: float = 0.5,
    keep: Sequence[str] = (),
    pretrained: bool | None = None,
) -> Named | ElasticModel:
    """Return the space of all narrower and shallower networks within a model of your own.

    Args:
        model: Model that takes images (N, C, H, W) and returns logits (N, classes), or a map of
            them for each pixel; a function that makes it, called with those of ``image_shape``
            (height, width, channels) and ``outputs`` that it accepts; or ``"timm:NAME"`` or
            ``"hf:NAME"``.
        weights: Safetensors file with the state of the model; None keeps the model's own weights.
        widths: Shares of the channels that may remain, each in (0, 1].
        step: Widths are multiples of this number.
        min_depth: Smallest share of each run of residual blocks that remains, in [0, 1].
        keep: Names of modules that stay unchanged.
        pretrained: Whether the model is trained, so that the supernet may learn from it; None is
            true with ``weights``, and for a trained model of ``hf:``.

    Returns:
        A named space if the model has a name by which another process can import it; an
        `ElasticModel` otherwise, which has to be given again to continue the run.
    """
    name = model if isinstance(model, str) else importable_name(model)
    file = None if weights is None else Path(weights).expanduser().resolve()
    if name is None:
        assert not isinstance(model, str)
        given = file is not None if pretrained is None else pretrained
        return ElasticModel(model, file, tuple(widths), step, min_depth, tuple(keep), given)
    options: dict[str, Any] = {"model": name, "widths": tuple(widths), "step": step}
    options |= {"min_depth": min_depth, "keep": tuple(keep)}
    if file is not None:
        options["weights"] = str(file)
    if pretrained is not None:
        options["pretrained"] = pretrained
    return Named("elastic", options)
