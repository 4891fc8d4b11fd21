"""Number formats of the blocks of a space's networks, as choices, and the bits that they save."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.layers.quantisers import FLOAT_BITS
from hwnas.search_spaces.quantised.attached import quantisable
from hwnas.search_spaces.quantised.settings import QuantisationConfig
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec, Key
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["BlockFormat", "PackedWeights", "block_formats", "block_of"]


@dataclass(frozen=True)
class BlockFormat:
    """Choices of a block's bit widths.

    Attributes:
        weights: Choice of the bits of its weights.
        inputs: Choice of the bits of the inputs of its layers.
    """

    weights: Choice
    inputs: Choice


def block_formats(networks: SearchSpace, config: QuantisationConfig) -> Mapping[str, BlockFormat]:
    """Return the choices of each block of a space's networks, by the name of the block.

    A block is one of the `places` of the space with a layer that can be quantised, or such a layer
    if the space has no places. The first and the last block have other options.
    """
    places = {place.name: place for place in networks.places}
    with blueprint():
        largest = networks.build(networks.largest())
    names = list(dict.fromkeys(block_of(name, places) for name, _ in quantisable(largest)))
    found = {}
    for name in names:
        when = _presence(networks, places.get(name))
        weights, inputs = config.weight_bits, config.activation_bits
        if name in (names[0], names[-1]):
            weights, inputs = config.at_the_ends(weights), config.at_the_ends(inputs)
        found[name] = BlockFormat(
            Choice(f"{name}.weight_bits", weights, when),
            Choice(f"{name}.activation_bits", inputs, when),
        )
    return found


def block_of(layer: str, blocks: Container[str]) -> str:
    """Return the innermost block that contains a layer; the layer itself if there is none."""
    name = layer
    while name and name not in blocks:
        name = name.rpartition(".")[0]
    return name or layer


def _presence(networks: SearchSpace, place: BlockSpec | None) -> ChoiceCondition | None:
    """Return the condition that a network has the block at a place."""
    for choice in networks.choices:
        if place is not None and choice.name == place.depth:
            depths = [int(option) for option in choice.options]
            return ChoiceCondition.deeper(place.depth, depths, place.position - 1)
    return None


@dataclass(frozen=True)
class PackedWeights:
    """Count of the bits that packed weights save, for many networks at once.

    Attributes:
        networks: Space of the networks in single precision, which has `places`.
        formats: Choices of the blocks, by name.
    """

    networks: SearchSpace
    formats: Mapping[str, BlockFormat]
    _sizes: dict[tuple[str, Key], int] = field(default_factory=dict, repr=False)

    def saved_bits(
        self, networks: npt.NDArray[np.int64], chosen: Mapping[str, npt.NDArray[np.int64]]
    ) -> npt.NDArray[np.int64]:
        """Return the bits of all weights in single precision, less those of the formats, (N,).

        Args:
            networks: Codes of the networks in single precision, (N, choices).
            chosen: Index of the option, (N,), of each choice with several options, by its name.
        """
        own, index = np.unique(networks, axis=0, return_inverse=True)
        values = [self.networks.values(self.networks.decode(code)) for code in own]
        saved = np.zeros(len(networks), dtype=np.int64)
        for place in self.networks.places:
            if place.name in self.formats:
                choice = self.formats[place.name].weights
                bits = np.array(choice.options)[chosen.get(choice.name, 0)]
                saved += self._weights(place, values)[index.ravel()] * (FLOAT_BITS - bits)
        return saved

    def _weights(
        self, place: BlockSpec, values: Sequence[Mapping[str, Any]]
    ) -> npt.NDArray[np.int64]:
        """Return the number of weights in the layers at a place, in each of some networks."""
        return np.array(
            [self._size(place, place.key(each)) if place.taken(each) else 0 for each in values]
        )

    def _size(self, place: BlockSpec, key: Key) -> int:
        if (place.name, key) not in self._sizes:
            with blueprint():
                layers = list(quantisable(place.module(key)))
            self._sizes[place.name, key] = sum(layer.weight.numel() for _, layer in layers)
        return self._sizes[place.name, key]
