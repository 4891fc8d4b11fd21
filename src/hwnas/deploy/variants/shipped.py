"""Variants that ship with hwnas: other number formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.quantization.weight_only import has_products, quantize_weights
from hwnas.deploy.targets.number_format import to_float16
from hwnas.deploy.variants.conversion import Conversion
from hwnas.deploy.variants.fake_quantisation import FakeQuantisation
from hwnas.deploy.variants.mixed import mixed_int8
from hwnas.deploy.variants.variant import ConvertedNetwork, Variant, VariantInputs
from hwnas.registry import Plugin

__all__ = ["PLUGINS"]


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
class _FewBitWeights:
    """Matrix products with weights of few bits; all else is in single precision."""

    bits: int
    format: str = "int8"

    @property
    def name(self) -> str:
        return f"int{self.bits}-weights"

    def lacks(self, material: VariantInputs) -> str:
        if not has_products(material.model):
            return "the network has no matrix product (MatMul) with constant weights; use int8"
        return ""

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        return ConvertedNetwork(quantize_weights(material.model, to, self.bits))


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


def _plugin(variant: Variant, summary: str) -> Plugin[Variant]:
    return Plugin("variant", variant.name, variant, summary)


PLUGINS = (
    replace(_plugin(_AsItIs("fp32", "fp32"), "Single precision"), usual=True),
    _plugin(_AsItIs("bf16", "bf16"), "bfloat16, in which the runtime computes"),
    _plugin(
        _Converted("fp16", lambda material, to: to_float16(material.model, to)), "Half precision"
    ),
    _plugin(
        _Converted("int8", lambda m, to: quantize_int8(m.model, to, m.calibration)),
        "Post-training quantisation of all layers",
    ),
    _plugin(_FewBitWeights(8), "Weights of matrix products in 8 bits, for ONNX Runtime"),
    _plugin(_FewBitWeights(4), "Weights of matrix products in 4 bits, for ONNX Runtime"),
    _plugin(_MixedInt8(), "As many int8 layers as keep the loss within its limit"),
    _plugin(_Retrained("int8-qat", "int8", FakeQuantisation), "Quantisation-aware fine-tuning"),
)
