"""Search spaces with their options, for `hwnas.search`.

Each function returns the name of a space with its options; the shape of the images and the number
of outputs come from the data. Instead of one of them, `hwnas.search` also takes a `SearchSpace`, a
factory of one, or a ``torch.nn.Module`` to make elastic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from torch import nn

from hwnas.api.elastic_model import ElasticModel, elastic_model
from hwnas.api.options import named_with_options
from hwnas.recipe import Named
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.cells.space import nasbench201
from hwnas.search_spaces.dense_head import DenseHead
from hwnas.search_spaces.hybrid.config import HybridStage
from hwnas.search_spaces.hybrid.space import hybrid
from hwnas.search_spaces.mobilenet.config import Stage
from hwnas.search_spaces.mobilenet.space import mobilenet
from hwnas.search_spaces.resnet.config import ResNetStage
from hwnas.search_spaces.resnet.space import resnet
from hwnas.search_spaces.simplenet.config import Group
from hwnas.search_spaces.simplenet.space import simplenet
from hwnas.search_spaces.space.training_space import recipe_space
from hwnas.search_spaces.supernet.channels import channels
from hwnas.search_spaces.vit.space import vit

__all__ = [
    "Channels",
    "DenseHead",
    "Elastic",
    "Group",
    "Hybrid",
    "HybridStage",
    "MobileNet",
    "NASBench201",
    "ResNet",
    "ResNetStage",
    "SimpleNet",
    "Stage",
    "TrainingSettings",
    "Union",
    "ViT",
]

P = ParamSpec("P")


def _space(
    name: str, factory: Callable[Concatenate[tuple[int, int, int], int, P], SearchSpace]
) -> Callable[P, Named]:
    return named_with_options(name, factory, ("image_shape", "outputs", "maps"))


def _role(name: str, factory: Callable[P, Any]) -> Callable[P, Named]:
    return named_with_options(name, factory, ())


Channels = _space("channels", channels)
Hybrid = _space("hybrid", hybrid)
MobileNet = _space("mobilenet", mobilenet)
NASBench201 = _space("nasbench201", nasbench201)
ResNet = _space("resnet", resnet)
SimpleNet = _space("simplenet", simplenet)
TrainingSettings = _role("recipe", recipe_space)
ViT = _space("vit", vit)


def Union(
    *members: Named, preset: str | None = None, resolution: Sequence[int] | None = None
) -> Named:
    """Return the union of several spaces of networks.

    Args:
        *members: Spaces of this module; the option ``label`` names a member in its choices.
        preset: ``"cpu"``, in place of members: residual networks that CPUs run fast on small
            images.
        resolution: Options for the input's height and width in pixels, for members that have none
            of their own.
    """
    options: dict[str, Any] = {}
    if members:
        options["members"] = [each.table for each in members]
    if preset is not None:
        options["preset"] = preset
    if resolution is not None:
        options["resolution"] = tuple(resolution)
    return Named("union", options)


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
    return elastic_model(model, weights, widths, step, min_depth, keep, pretrained)
