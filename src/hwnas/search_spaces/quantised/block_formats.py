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

    A block is one of the `block_specs` of the space with a layer that can be quantised; if
    the space has no specifications, such a layer. The first and the last block have other options.
    """
    blocks = {block.name: block for block in networks.block_specs}
    with blueprint():
        largest = networks.build(networks.largest())
    names = list(dict.fromkeys(block_of(name, blocks) for name, _ in quantisable(largest)))
    found = {}
    for name in names:
        when = _presence(networks, blocks.get(name))
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


def _presence(networks: SearchSpace, block: BlockSpec | None) -> ChoiceCondition | None:
    """Return the condition that a network has the block."""
    for choice in networks.choices:
        if block is not None and choice.name == block.depth:
            depths = [int(option) for option in choice.options]
            return ChoiceCondition.deeper(block.depth, depths, block.position - 1)
    return None


@dataclass(frozen=True)
class PackedWeights:
    """Count of the bits that packed weights save, for many networks at once.

    Attributes:
        networks: Space of the networks in single precision, which has `block_specs`.
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
        for block in self.networks.block_specs:
            if block.name in self.formats:
                choice = self.formats[block.name].weights
                bits = np.array(choice.options)[chosen.get(choice.name, 0)]
                saved += self._weights(block, values)[index.ravel()] * (FLOAT_BITS - bits)
        return saved

    def _weights(
        self, block: BlockSpec, values: Sequence[Mapping[str, Any]]
    ) -> npt.NDArray[np.int64]:
        """Return the number of weights in the layers of a block, in each of some networks."""
        return np.array(
            [self._size(block, block.key(each)) if block.taken(each) else 0 for each in values]
        )

    def _size(self, block: BlockSpec, key: Key) -> int:
        if (block.name, key) not in self._sizes:
            with blueprint():
                layers = list(quantisable(block.module(key)))
            self._sizes[block.name, key] = sum(layer.weight.numel() for _, layer in layers)
        return self._sizes[block.name, key]
