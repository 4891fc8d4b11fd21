"""Registry of the variants that an exported network can be converted to before it is shipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.targets.number_format import to_float16
from hwnas.deploy.variants.conversion import Conversion
from hwnas.deploy.variants.fake_quantisation import FakeQuantisation
from hwnas.deploy.variants.mixed import mixed_int8
from hwnas.deploy.variants.sparsity import TwoOfFour

__all__ = ["VARIANTS", "ConvertedNetwork", "Variant", "VariantInputs"]


@dataclass(frozen=True)
class VariantInputs:
    """Inputs that variants are made from.

    Attributes:
        model: Network in single precision, an ONNX file.
        calibration: Inputs (N, ...) that ranges are taken from; random ones if there are no images,
            which is enough to time a variant.
        loss: Function that returns what an ONNX file loses in the first metric against ``model``,
            in the metric's unit, on the images that choices are based on; None if there are no
            images.
        max_loss: Largest loss allowed for a variant.
        retrain: Function that fine-tunes the network under a conversion and writes it as ONNX; None
            if there is no network to train.
    """

    model: Path
    calibration: Sequence[NDArray[np.float32]]
    loss: Callable[[Path], float] | None = None
    max_loss: float = 0.0
    retrain: Callable[[Conversion, Path], Path] | None = None


@dataclass(frozen=True)
class ConvertedNetwork:
    """Converted network.

    Attributes:
        model: ONNX file.
        about: Decisions made during the conversion, such as which layers stayed in floating point.
    """

    model: Path
    about: Mapping[str, Any] = field(default_factory=dict, hash=False)


class Variant(Protocol):
    """Conversion that makes a network smaller or faster."""

    @property
    def name(self) -> str:
        """Name on the command line and in bundles."""

    @property
    def format(self) -> str:
        """Number format that a runtime must support for it."""

    def lacks(self, material: VariantInputs) -> str:
        """Return what is missing to make the variant, and what to provide; empty if nothing is."""

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        """Make the variant from material that lacks nothing.

        Args:
            material: Material of the network.
            to: ONNX file to write, if a new one is made.

        Raises:
            ArtifactError: The network cannot be converted to this variant.
            StorageError: The file cannot be written.
        """


@dataclass(frozen=True)
class _AsItIs:
    """Unchanged file; the runtime computes in the variant's format."""

    name: str
    format: str

    def lacks(self, material: VariantInputs) -> str:
        return ""

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        return ConvertedNetwork(material.model)


@dataclass(frozen=True)
class _Converted:
    """File with all numbers in another format; ranges are taken from calibration images."""

    name: str
    convert: Callable[[VariantInputs, Path], Path]

    @property
    def format(self) -> str:
        return self.name

    def lacks(self, material: VariantInputs) -> str:
        return ""

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        return ConvertedNetwork(self.convert(material, to))


@dataclass(frozen=True)
class _MixedInt8:
    """Mixed precision: as many int8 layers as keep the loss within its limit."""

    name: str = "int8-mixed"
    format: str = "int8"

    def lacks(self, material: VariantInputs) -> str:
        if material.loss is None:
            return "its int8 layers are chosen on images with targets; give --data"
        return ""

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        assert material.loss is not None
        kept = mixed_int8(
            material.model, to, material.calibration, material.loss, material.max_loss
        )
        return ConvertedNetwork(to, {"in_floating_point": list(kept)})


@dataclass(frozen=True)
class _Retrained:
    """Network fine-tuned under a conversion, and quantised afterwards if the format is int8."""

    name: str
    format: str
    conversion: Callable[[], Conversion]

    def lacks(self, material: VariantInputs) -> str:
        if material.retrain is None:
            return "fine-tuning needs the run that trained the network; give the folder of that run"
        return ""

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        assert material.retrain is not None
        trained = material.retrain(self.conversion(), to)
        if self.format == "int8":
            quantize_int8(trained, to, material.calibration)
        return ConvertedNetwork(to)


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        _AsItIs("fp32", "fp32"),
        _AsItIs("bf16", "bf16"),
        _Converted("fp16", lambda material, to: to_float16(material.model, to)),
        _Converted("int8", lambda m, to: quantize_int8(m.model, to, m.calibration)),
        _MixedInt8(),
        _Retrained("int8-qat", "int8", FakeQuantisation),
        _Retrained("sparse-2of4", "fp32", TwoOfFour),
    )
}
"""Variants by their names on the command line and in bundles."""
