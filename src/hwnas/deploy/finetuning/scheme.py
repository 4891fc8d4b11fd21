"""Update scheme: which weights and biases of a network are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hwnas.deploy.finetuning.layers import SHARES, TrainableLayer
from hwnas.errors import ConfigError
from hwnas.plugin import closest

__all__ = ["LayerUpdate", "TrainedTensor", "UpdateScheme", "bias_only", "full", "last_layer"]


@dataclass(frozen=True)
class LayerUpdate:
    """Part of a layer that is trained.

    Attributes:
        weight: Share of the input channels whose weights are trained, the first ones; 0 or one of
            `SHARES`.
        bias: Whether the bias is trained, if the layer has one.
    """

    weight: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        if self.weight not in (0, *SHARES):
            raise ConfigError(
                f"the trained share of a weight is {self.weight}; expected one of 0, "
                f"{', '.join(map(str, SHARES))}"
            )


@dataclass(frozen=True)
class TrainedTensor:
    """Bias, weight or part of a weight that is trained.

    Attributes:
        layer: Layer that it belongs to.
        width: Number of input channels whose weights are trained; 0 for the bias.
    """

    layer: TrainableLayer
    width: int = 0

    @property
    def parameter(self) -> str:
        """Name of the parameter that it is, or is a part of."""
        if self.width:
            return self.layer.weight
        assert self.layer.bias is not None
        return self.layer.bias

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return self.layer.elements(self.width) if self.width else self.layer.bias_elements


@dataclass(frozen=True)
class UpdateScheme:
    """Parts of a network that are trained; all others are frozen.

    Attributes:
        layers: Update of each layer of which something is trained, by the layer's name.
    """

    layers: Mapping[str, LayerUpdate] = field(default_factory=dict)

    def tensors(self, layers: Sequence[TrainableLayer]) -> tuple[TrainedTensor, ...]:
        """Return the trained tensors, in the order of a network's layers.

        Raises:
            ConfigError: The network has no layer of a name.
        """
        known = {layer.name for layer in layers}
        for name in self.layers:
            if name not in known:
                raise ConfigError(f"the network has no layer {name!r}; {closest(name, known)}")
        found = []
        for layer in layers:
            update = self.layers.get(layer.name, LayerUpdate(bias=False))
            if update.weight:
                found.append(TrainedTensor(layer, layer.width(update.weight)))
            if update.bias and layer.bias is not None:
                found.append(TrainedTensor(layer))
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object: the update of each layer, by name."""
        return {name: asdict(update) for name, update in self.layers.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UpdateScheme:
        """Return the scheme of the JSON object that `to_json` made."""
        return cls({name: LayerUpdate(**update) for name, update in data.items()})


def full(layers: Sequence[TrainableLayer]) -> UpdateScheme:
    """Return the scheme that trains everything."""
    return UpdateScheme({layer.name: LayerUpdate(1.0) for layer in layers})


def bias_only(layers: Sequence[TrainableLayer]) -> UpdateScheme:
    """Return the scheme that trains all biases."""
    return UpdateScheme({each.name: LayerUpdate() for each in layers if each.bias is not None})


def last_layer(layers: Sequence[TrainableLayer]) -> UpdateScheme:
    """Return the scheme that trains the last layer of the network with a bias, the classifier."""
    name = [layer.name for layer in layers if layer.bias is not None][-1:]
    return UpdateScheme({name[0] if name else layers[-1].name: LayerUpdate(1.0)})
