"""Number formats of the blocks of a space's networks, as choices, and the bits that they save."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hwnas.search_spaces.layers.quantisers import FLOAT_BITS, LayerPrecision
from hwnas.search_spaces.quantised.attached import quantisable
from hwnas.search_spaces.quantised.settings import DENSE, QuantisationConfig, structure_of
from hwnas.search_spaces.space.choices import Choice, ChoiceCondition
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.supernet.block_specs import BlockSpec, Key
from hwnas.search_spaces.supernet.blueprint import blueprint

__all__ = ["BlockFormat", "PackedWeights", "block_formats", "block_of"]


_DEPTH = "depth"  # last word of the name of a choice of how many blocks there are


@dataclass(frozen=True)
class BlockFormat:
    """Choices of a block's number format.

    Attributes:
        weights: Choice of the bits of its weights.
        inputs: Choice of the bits of the inputs of its layers.
        sparsity: Choice of the zeros among its weights.
    """

    weights: Choice
    inputs: Choice
    sparsity: Choice

    def __iter__(self) -> Iterator[Choice]:
        return iter((self.weights, self.inputs, self.sparsity))


def block_formats(networks: SearchSpace, config: QuantisationConfig) -> Mapping[str, BlockFormat]:
    """Return the choices of each block of a space's networks, by the name of the block.

    A block is one of the `block_specs` of the space with a layer that can be quantised; if
    the space has no specifications, such a layer. The first and the last block have other options.
    A block is dense if none of its layers fits one of the sparsity structures.
    """
    blocks = {block.name: block for block in networks.block_specs}
    with blueprint():
        largest = networks.build(networks.largest())
    shapes: dict[str, list[Sequence[int]]] = {}
    for layer, module in quantisable(largest):
        shapes.setdefault(block_of(layer, blocks), []).append(module.weight.shape)
    names, of_layers = list(shapes), {} if blocks else _presence_of_layers(networks)
    found = {}
    for name in names:
        when = _presence(networks, blocks[name]) if name in blocks else of_layers.get(name)
        weights, inputs, sparsity = config.weight_bits, config.activation_bits, config.sparsity
        if name in (names[0], names[-1]):
            weights, inputs = config.at_the_ends(weights), config.at_the_ends(inputs)
            sparsity = (DENSE,)
        found[name] = BlockFormat(
            Choice(f"{name}.weight_bits", weights, when),
            Choice(f"{name}.activation_bits", inputs, when),
            Choice(f"{name}.sparsity", _that_fit(sparsity, shapes[name]), when),
        )
    return found


def _that_fit(sparsity: Sequence[str], shapes: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """Return the options of ``sparsity`` that fit one of some weights; dense if there is none."""

    def fits(option: str) -> bool:
        structure = structure_of(option)
        return structure is None or any(map(structure.fits_weight, shapes))

    return tuple(filter(fits, sparsity)) or (DENSE,)


def block_of(layer: str, blocks: Container[str]) -> str:
    """Return the innermost block that contains a layer; the layer itself if there is none."""
    name = layer
    while name and name not in blocks:
        name = name.rpartition(".")[0]
    return name or layer


def _presence(networks: SearchSpace, block: BlockSpec) -> ChoiceCondition | None:
    """Return the condition that a network has the block."""
    for choice in networks.choices:
        if choice.name == block.depth:
            depths = [int(option) for option in choice.options]
            return ChoiceCondition.deeper(block.depth, depths, block.position - 1)
    return None


def _presence_of_layers(networks: SearchSpace) -> Mapping[str, ChoiceCondition]:
    """Return the condition of each layer that shallow networks of a space lack, by its name."""
    largest, found = networks.largest().as_dict(), {}
    for choice in networks.choices:
        if not choice.name.endswith(_DEPTH):
            continue
        layers = []
        for option in choice.options:
            with blueprint():
                network = networks.build(networks.architecture({**largest, choice.name: option}))
            layers.append({name for name, _ in quantisable(network)})
        for name in layers[-1]:
            kept = [o for o, each in zip(choice.options, layers, strict=True) if name in each]
            if len(kept) < len(choice.options):
                found[name] = ChoiceCondition(choice.name, tuple(kept))
    return found


@dataclass(frozen=True)
class PackedWeights:
    """Count of the bits that packed weights save, for many networks at once.

    Attributes:
        networks: Space of the networks in single precision, which has `block_specs`.
        formats: Choices of the blocks, by name.
    """

    networks: SearchSpace
    formats: Mapping[str, BlockFormat]
    _sizes: dict[tuple[str, Key, LayerPrecision], int] = field(default_factory=dict, repr=False)

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
        none = np.zeros(len(networks), dtype=np.int64)
        for block in self.networks.block_specs:
            if block.name not in self.formats:
                continue
            each = self.formats[block.name]
            weights = chosen.get(each.weights.name, none)
            sparsity = chosen.get(each.sparsity.name, none)
            for w, s in {*zip(weights.tolist(), sparsity.tolist(), strict=True)}:
                here = (weights == w) & (sparsity == s)
                precision = LayerPrecision(
                    int(each.weights.options[w]),
                    structure=structure_of(str(each.sparsity.options[s])),
                )
                saved[here] += self._saved(block, values, precision)[index.ravel()[here]]
        return saved

    def _saved(
        self, block: BlockSpec, values: Sequence[Mapping[str, Any]], precision: LayerPrecision
    ) -> npt.NDArray[np.int64]:
        """Return the bits that the weights of a block save, in each of some networks."""
        return np.array(
            [
                self._size(block, block.key(each), precision) if block.taken(each) else 0
                for each in values
            ]
        )

    def _size(self, block: BlockSpec, key: Key, precision: LayerPrecision) -> int:
        if (block.name, key, precision) not in self._sizes:
            with blueprint():
                shapes = [layer.weight.shape for _, layer in quantisable(block.module(key))]
            self._sizes[block.name, key, precision] = sum(
                shape.numel() * FLOAT_BITS - precision.stored_bits(shape) for shape in shapes
            )
        return self._sizes[block.name, key, precision]
