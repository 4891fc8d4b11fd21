"""Search spaces with their options, for `hwnas.search`.

Each function returns the name of a space with its options; the shape of the images and the number
of outputs come from the data. Instead of one of them, `hwnas.search` also takes a `SearchSpace`, a
factory of one, or a ``torch.nn.Module`` to make elastic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, overload

from hwnas.api.elastic_model import Elastic, ElasticModel, QuantisedModel, quantised_networks
from hwnas.api.options import named, named_with_options
from hwnas.errors import ConfigError
from hwnas.recipe import Named
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.cells.space import nasbench201
from hwnas.search_spaces.decoder.space import decoder
from hwnas.search_spaces.dense_head import DenseHead
from hwnas.search_spaces.edsr.space import edsr
from hwnas.search_spaces.experts.space import experts
from hwnas.search_spaces.hiera.space import hiera
from hwnas.search_spaces.hybrid.config import HybridStage
from hwnas.search_spaces.hybrid.space import hybrid
from hwnas.search_spaces.layers.binarisers import Binarisation
from hwnas.search_spaces.layers.quantisers import Granularity, Symmetry
from hwnas.search_spaces.mobilenet.config import Stage
from hwnas.search_spaces.mobilenet.space import mobilenet
from hwnas.search_spaces.quantised.settings import DENSE
from hwnas.search_spaces.resnet.config import ResNetStage
from hwnas.search_spaces.resnet.space import resnet
from hwnas.search_spaces.simplenet.config import Group
from hwnas.search_spaces.simplenet.space import simplenet
from hwnas.search_spaces.space.training_space import recipe_space
from hwnas.search_spaces.supernet.channels import channels
from hwnas.search_spaces.vit.space import vit

__all__ = [
    "EDSR",
    "Channels",
    "Decoder",
    "DenseHead",
    "EarlyExit",
    "Elastic",
    "Experts",
    "Group",
    "Hiera",
    "Hybrid",
    "HybridStage",
    "MobileNet",
    "NASBench201",
    "Quantised",
    "ResNet",
    "ResNetStage",
    "SimpleNet",
    "Stage",
    "TrainingSettings",
    "Union",
    "ViT",
    "labelled",
]

P = ParamSpec("P")


def _space(
    name: str, factory: Callable[Concatenate[tuple[int, int, int], int, P], SearchSpace]
) -> Callable[P, Named]:
    return named_with_options(name, factory, ("image_shape", "outputs", "maps", "upscale", "tasks"))


def _role(name: str, factory: Callable[P, Any]) -> Callable[P, Named]:
    return named_with_options(name, factory, ())


Channels = _space("channels", channels)
Decoder = _space("decoder", decoder)
EDSR = _space("edsr", edsr)
Experts = _space("experts", experts)
Hiera = _space("hiera", hiera)
Hybrid = _space("hybrid", hybrid)
MobileNet = _space("mobilenet", mobilenet)
NASBench201 = _space("nasbench201", nasbench201)
ResNet = _space("resnet", resnet)
SimpleNet = _space("simplenet", simplenet)
TrainingSettings = _role("recipe", recipe_space)
ViT = _space("vit", vit)


def _named_space(of: str, given: object) -> Named:
    """Return a space within another one, or raise if other processes cannot import it."""
    given = Named(given) if isinstance(given, str) else named(given)
    if not isinstance(given, Named):
        raise ConfigError(
            f"{of} has the space {given!r}, which other processes cannot import by a name; give a "
            "space of hwnas.spaces, or a model that is defined in a module"
        )
    return given


def _table(of: str, given: object) -> dict[str, Any]:
    return _named_space(of, given).table


def labelled(label: str, space: Named | str) -> Named:
    """Return a member of a `Union` with a name for its choices.

    Args:
        label: Name of the member, instead of the name of its space.
        space: Space of this module, or the name of a space.
    """
    table = _table("labelled", space)
    return Named(table.pop("name"), {**table, "label": label})


def Union(
    *members: Named | str, preset: str | None = None, resolution: Sequence[int] | None = None
) -> Named:
    """Return the union of several spaces of networks.

    Args:
        *members: Spaces of this module, or names of spaces. To name a member in the choices, give
            `labelled`.
        preset: ``"cpu"``, in place of members: residual networks that CPUs run fast on small
            images.
        resolution: Options for the input's height and width in pixels, for members that have none
            of their own.
    """
    options: dict[str, Any] = {}
    if members:
        options["members"] = [_table("Union", each) for each in members]
    if preset is not None:
        options["preset"] = preset
    if resolution is not None:
        options["resolution"] = tuple(resolution)
    return Named("union", options)


@overload
def Quantised(
    network: Named | str | None = None,
    *,
    weight_bits: Sequence[int] = (2, 4, 8),
    activation_bits: Sequence[int] = (4, 8),
    granularity: Sequence[Granularity] = ("channel",),
    symmetry: Sequence[Symmetry] = ("symmetric",),
    binarisation: Binarisation | None = None,
    sparsity: Sequence[str] = (DENSE,),
) -> Named: ...
@overload
def Quantised(
    network: ElasticModel,
    *,
    weight_bits: Sequence[int] = (2, 4, 8),
    activation_bits: Sequence[int] = (4, 8),
    granularity: Sequence[Granularity] = ("channel",),
    symmetry: Sequence[Symmetry] = ("symmetric",),
    binarisation: Binarisation | None = None,
    sparsity: Sequence[str] = (DENSE,),
) -> QuantisedModel: ...
def Quantised(
    network: Named | str | ElasticModel | None = None,
    *,
    weight_bits: Sequence[int] = (2, 4, 8),
    activation_bits: Sequence[int] = (4, 8),
    granularity: Sequence[Granularity] = ("channel",),
    symmetry: Sequence[Symmetry] = ("symmetric",),
    binarisation: Binarisation | None = None,
    sparsity: Sequence[str] = (DENSE,),
) -> Named | QuantisedModel:
    """Return the space of the networks of another space, with searched bit widths and sparsity.

    Args:
        network: Space of this module, or the name of a space; `MobileNet` if None.
        weight_bits: Options for the bits of each block's weights, 1 to 8.
        activation_bits: Options for the bits of each block's inputs, 1 to 8.
        granularity: ``"tensor"``, ``"channel"`` or both: one scale for each layer's weights, or one
            for each of its output channels.
        symmetry: ``"symmetric"``, ``"asymmetric"`` or both: whether weights of 2 to 7 bits have
            a zero point.
        binarisation: Method for one bit: ``"bnn"``, ``"xnor"`` or ``"react"``; ``"xnor"`` if None.
        sparsity: Options for the zeros among each block's weights: N of M neighbours along the
            inputs that stay, such as ``"2of4"``, and ``"dense"``; the sparsest first.

    Returns:
        A named space, or a factory if ``network`` is a model without a name.
    """
    options: dict[str, Any] = {
        "weight_bits": tuple(weight_bits),
        "activation_bits": tuple(activation_bits),
        "granularity": tuple(granularity),
        "symmetry": tuple(symmetry),
    }
    if binarisation is not None:
        options["binarisation"] = binarisation
    if tuple(sparsity) != (DENSE,):
        options["sparsity"] = tuple(sparsity)
    if network is None:
        return Named("quantised", options)
    if not isinstance(network, ElasticModel):
        network = _named_space("Quantised", network)
    return quantised_networks(network, options)


def EarlyExit(
    network: Named | str | None = None,
    *,
    exit_share: Sequence[float] = (0, 0.3, 0.5, 0.7),
    places: int = 3,
) -> Named:
    """Return the space of the networks of another space, with an exit for easy images.

    Args:
        network: Space of this module, or the name of a space; `MobileNet` if None.
        exit_share: Options for the share of images that leave at the exit, from 0 (no exit) up to
            below 1.
        places: Largest number of places for the exit.
    """
    options: dict[str, Any] = {} if network is None else {"network": _table("EarlyExit", network)}
    return Named("early-exit", options | {"exit_share": tuple(exit_share), "places": places})


def __dir__() -> list[str]:
    return __all__
