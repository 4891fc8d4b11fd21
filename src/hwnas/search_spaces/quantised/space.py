"""Space of the networks of another space, each with a number format for every block.

The networks of all bit widths share the weights of one supernet, as in EQ-Net (Xu et al., "EQ-Net:
Elastic quantization neural networks", ICCV 2023): bit widths, granularity, symmetry and sparsity
are elastic dimensions beside depth, width and kernel size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.cost_model.operator_counts import OperatorCountTable, PartTable
from hwnas.search_spaces.layers.binarisers import Binarisation
from hwnas.search_spaces.layers.branches import BranchedDepthwise
from hwnas.search_spaces.layers.deformable import DeformableConv2d
from hwnas.search_spaces.layers.quantisers import ONE_BIT, Granularity, LayerPrecision, Symmetry
from hwnas.search_spaces.quantised.attached import (
    THRESHOLD,
    WEIGHT,
    attach,
    quantised_layers,
    set_precision,
)
from hwnas.search_spaces.quantised.block_formats import (
    BlockFormat,
    PackedWeights,
    block_formats,
    block_of,
)
from hwnas.search_spaces.quantised.settings import DENSE, QuantisationConfig, structure_of
from hwnas.search_spaces.quantised.workload import QuantisedWorkload, quantised_workload
from hwnas.search_spaces.registry import named_space
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.building import Segments, StageOutline
from hwnas.search_spaces.space.choices import Choice, Option
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.space.space_plugin import SMALL, SpacePlugin
from hwnas.search_spaces.supernet.block_specs import BlockSpec
from hwnas.search_spaces.supernet.blueprint import blueprint
from hwnas.search_spaces.supernet.shared_modules import SharedModule, SharedModuleSource

__all__ = ["PLUGINS", "QuantisedSpace", "quantised"]

_WHOLE = ("granularity", "symmetry")


class QuantisedSpace(SearchSpace):
    """Space of quantised networks: those of a space, with a number format for each of their blocks.

    A block is one of the `block_specs` of the space or, if it has none, a layer. Its choices are
    named after it (``"stages.0.1.weight_bits"``). Networks compute with rounded and pruned weights
    and rounded activations, in training, too.

    Args:
        networks: Space of the networks in single precision.
        config: Options of the number formats.

    Raises:
        ConfigError: There is nothing to quantise, no choice of a format has two options, no layer
            fits a sparsity structure, or there are blocks with branches.
    """

    name = "quantised"

    def __init__(self, networks: SearchSpace, config: QuantisationConfig | None = None) -> None:
        self.networks, self.config = networks, config or QuantisationConfig()
        self.nests, self.pretrained = networks.nests, networks.pretrained
        with blueprint():
            shared = networks.shared_network()
        if any(isinstance(module, BranchedDepthwise) for module in shared.modules()):
            raise ConfigError(
                f"space {networks.name} has blocks with branches, which are merged after the "
                "training, so they cannot be rounded during it; leave those operators out"
            )
        if any(isinstance(module, DeformableConv2d) for module in shared.modules()):
            raise ConfigError(
                f"space {networks.name} has deformable blocks, which no runtime computes in int8; "
                "leave those operators out"
            )
        if not self.formats:
            raise ConfigError(
                f"space {networks.name} has no convolution or linear layer that can be quantised"
            )
        offered = {option for each in self.formats.values() for option in each.sparsity.options}
        for option in self.config.sparsity:
            if option not in offered | {DENSE}:
                raise ConfigError(
                    f"space.sparsity has {option!r}, but it fits no layer of space "
                    f"{networks.name} between the first and the last block; leave it out"
                )
        if len(self.choices) == len(networks.choices):
            raise ConfigError(
                "a space of quantised networks has one number format only; give two options, such "
                "as space.weight_bits = [4, 8]"
            )

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Choices of the networks, then those of the formats that have more than one option."""
        whole = [Choice(name, getattr(self.config, name)) for name in _WHOLE]
        blocks = [choice for each in self.formats.values() for choice in each]
        return *self.networks.choices, *(c for c in (*whole, *blocks) if len(c.options) > 1)

    @cached_property
    def formats(self) -> Mapping[str, BlockFormat]:
        """Choices of each block's number format, by the name of the block."""
        return block_formats(self.networks, self.config)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Fingerprint of the space of the networks, and the options of the formats."""
        options = dataclasses.asdict(self.config)
        if not self.config.binarises:  # as before the option was there
            del options["binarisation"]
        if not self.config.is_sparse:
            del options["sparsity"]
        return {"networks": self.networks.fingerprint, **options}

    def unquantised(self, architecture: Architecture) -> Architecture:
        """Return the network as one of the space in single precision."""
        values = dict(self.check(architecture).values)
        own = {c.name: values[c.name] for c in self.networks.choices if c.name in values}
        return self.networks.architecture(own)

    def precision_of(self, architecture: Architecture) -> Callable[[str], LayerPrecision]:
        """Return a function from the name of a layer of a network to its number format."""
        values = dict(self.check(architecture).values)
        granularity, symmetry = (values.get(name, getattr(self.config, name)[0]) for name in _WHOLE)
        found = {
            block: LayerPrecision(
                int(_option(each.weights, values)),
                int(_option(each.inputs, values)),
                granularity,
                symmetry,
                self.config.binarisation,
                structure_of(str(_option(each.sparsity, values))),
            )
            for block, each in self.formats.items()
        }
        return lambda layer: found[block_of(layer, found)]

    def build(self, architecture: Architecture) -> nn.Module:
        """Return the network with quantisers: float32 (N, *input_shape) -> (N, outputs)."""
        precision_of = self.precision_of(architecture)
        network = attach(
            self.networks.build(self.unquantised(architecture)),
            lambda layer: precision_of(layer).has_thresholds,
        )
        set_precision(network, precision_of)
        return network

    def shared_network(self) -> nn.Module:
        """See `SearchSpace.shared_network`."""
        network = attach(
            self.networks.shared_network(),
            lambda layer: block_of(layer, self.formats) in self._with_thresholds,
        )
        set_precision(network, self.precision_of(self.largest()))
        return network

    @cached_property
    def block_specs(self) -> tuple[BlockSpec, ...]:
        """Specifications of the blocks, which have quantisers."""
        return tuple(self._with_quantisers(block) for block in self.networks.block_specs)

    def _with_quantisers(self, block: BlockSpec) -> BlockSpec:
        decided_by = dict(block.decided_by)
        if block.name in self._with_thresholds:
            decided_by["thresholds"] = _thresholds_of(block.name)
        return dataclasses.replace(
            block, make=partial(_attached, block.make), decided_by=decided_by
        )

    def shared_modules(self, shared: Container[str]) -> SharedModuleSource:
        """See `SearchSpace.shared_modules`; blocks are kept for all bit widths."""
        return _WithPrecision(self, super().shared_modules(shared))

    def values(self, architecture: Architecture) -> Mapping[str, Any]:
        """See `SearchSpace.values`."""
        found = self.networks.values(self.unquantised(architecture))
        chosen = dict(architecture.values)
        bits = {each: self.formats[each].inputs for each in self._with_thresholds}
        return {
            **found,
            **{_thresholds_of(b): _option(c, chosen) == ONE_BIT for b, c in bits.items()},
        }

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """See `SearchSpace.segments`."""
        found = self.networks.segments(self.unquantised(architecture))
        with blueprint():
            network = self.build(architecture)
        renamed = dict(found)
        for name, layer, _, of_input in quantised_layers(network):
            if f"{name}.weight" in found:
                pieces = renamed.pop(f"{name}.weight")
                renamed[f"{name}.{WEIGHT}"] = pieces
                if of_input.threshold is not None:
                    renamed[f"{name}.{THRESHOLD}"] = _of_inputs(layer, pieces)
        return renamed

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return channels, height and width of one input image."""
        return self.networks.input_shape(self.unquantised(architecture))

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """Return the stages of the network in single precision."""
        return self.networks.outline(self.unquantised(architecture))

    def teacher(self) -> nn.Module | None:
        """Return the trained network in single precision that the weights come from, if any."""
        return self.networks.teacher()

    def workload(self, architecture: Architecture, batch: int = 1) -> QuantisedWorkload:
        """Return the workload of one network, with the number formats of its layers."""
        own = self.unquantised(architecture)
        with blueprint():
            network = self.networks.build(own)
        shape = self.networks.input_shape(own)
        return quantised_workload(network, shape, batch, self.precision_of(architecture))

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """Return the parts of the networks in single precision."""
        return self.networks.parts(self._own(codes))

    def steps(self, codes: npt.NDArray[np.int64]) -> OperatorCountTable | None:
        """Return the operator counts of the networks in single precision."""
        return self.networks.steps(self._own(codes))

    def counted(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the exact costs of the networks; ``weight_bytes`` counts packed weights."""
        found = self.networks.counted(self._own(codes))
        if "weight_bytes" not in found or not self.block_specs:
            return {}
        chosen = {choice.name: codes[:, i] for i, choice in enumerate(self.choices)}
        saved = self._packed.saved_bits(self._own(codes), chosen)
        return found | {"weight_bytes": found["weight_bytes"] - saved // 8}

    @cached_property
    def _with_thresholds(self) -> frozenset[str]:
        """Names of the blocks whose inputs have learned thresholds in some network."""
        if self.config.binarisation != "react":
            return frozenset()
        return frozenset(n for n, each in self.formats.items() if ONE_BIT in each.inputs.options)

    @cached_property
    def _packed(self) -> PackedWeights:
        return PackedWeights(self.networks, self.formats)

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the depths of the networks."""
        return self.networks.depth(self._own(codes))

    def _own(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return codes[:, : len(self.networks.choices)]


class _WithPrecision:
    """Source of modules that have the bit widths of their networks."""

    def __init__(self, space: QuantisedSpace, source: SharedModuleSource) -> None:
        self._space, self._source = space, source

    def of(self, architecture: Architecture) -> SharedModule:
        """Return the module of a network, without weights."""
        shared = self._source.of(architecture)
        set_precision(shared.module, self._space.precision_of(architecture))
        return shared


def _thresholds_of(block: str) -> str:
    """Return the name of the value that says whether a block has thresholds."""
    return f"{block}.has_thresholds"


def _attached(
    make: Callable[..., nn.Module], thresholds: bool = False, **arguments: Any
) -> nn.Module:
    return attach(make(**arguments), lambda layer: thresholds)


def _of_inputs(layer: nn.Module, weight: Segments) -> Segments:
    """Return the segments of a layer's input channels, given those of its weight."""
    dim = 0 if getattr(layer, "groups", 1) > 1 else 1  # depthwise: channels in are channels out
    return tuple((0, pieces) for each, pieces in weight if each == dim)


def _option(choice: Choice, values: Mapping[str, Option]) -> Option:
    return values.get(choice.name, choice.options[0])


def quantised(
    image_shape: tuple[int, int, int],
    outputs: int,
    network: Mapping[str, Any] | None = None,
    weight_bits: tuple[int, ...] = (2, 4, 8),
    activation_bits: tuple[int, ...] = (4, 8),
    granularity: tuple[Granularity, ...] = ("channel",),
    symmetry: tuple[Symmetry, ...] = ("symmetric",),
    binarisation: Binarisation = "xnor",
    sparsity: tuple[str, ...] = (DENSE,),
    folder: Path = Path(),
    maps: bool = False,
    upscale: int | None = None,
) -> QuantisedSpace:
    """Return the space of a recipe's ``[space] name = "quantised"``.

    Args:
        image_shape: Height, width and channels of the data's images.
        outputs: Length of the output vector, or number of maps, e.g. the number of classes.
        network: Table of the space of the networks, like ``[space]`` itself; MobileNets if None.
        weight_bits: Options for the bits of each block's weights: 1 to 8, and 32 for single
            precision.
        activation_bits: Options for the bits of each block's inputs, likewise.
        granularity: ``"tensor"``, ``"channel"`` or both: one scale for each layer's weights, or one
            for each of its output channels.
        symmetry: ``"symmetric"``, ``"asymmetric"`` or both: whether the weights have a zero point.
        binarisation: Method for tensors of one bit: ``"bnn"`` for signs without a scale, ``"xnor"``
            for signs times a mean absolute value, ``"react"`` for that and learned thresholds.
        sparsity: Options for the zeros among each block's weights: ``"2of4"`` if of each four
            neighbours along the inputs the two largest stay, or other numbers, and ``"dense"``.
            Layers that a structure does not fit stay dense.
        folder: Folder that relative paths start from.
        maps: Whether the networks have to give maps.
        upscale: Number of times that the maps have to be as large as the images.

    Raises:
        ConfigError: A name or an option is unknown or out of range.
    """
    config = QuantisationConfig(
        *(tuple(weight_bits), tuple(activation_bits), tuple(granularity), tuple(symmetry)),
        binarisation,
        tuple(sparsity),
    )
    options = dict(network or {})
    name = str(options.pop("name", "mobilenet"))
    space = named_space(name, image_shape, outputs, options, folder, "space.network", maps, upscale)
    return QuantisedSpace(space, config)


PLUGINS = (
    SpacePlugin(
        "space",
        "quantised",
        quantised,
        "Networks of another space, with searched bit widths (EQ-Net) and sparsity",
        examples={"": SMALL},
    ),
)
