"""Variants of post-training quantisation: scale transfer, rotation, error-compensating rounding.

All need images, but no training, and give an ordinary int8 file, which runs as fast as that of
`int8`: they change which weights are stored, not which operators run. Scale transfer and rotation
change the network in single precision before it is quantised, without changing its outputs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.deploy.quantization.error_compensation import compensate_rounding
from hwnas.deploy.quantization.float_graph import FloatGraph
from hwnas.deploy.quantization.grids import has_grids
from hwnas.deploy.quantization.quantize import Int8Quantizer, prepare, quantisation_errors
from hwnas.deploy.quantization.rotation import rotate
from hwnas.deploy.quantization.scale_transfer import equalise
from hwnas.deploy.variants.variant import ConvertedNetwork, Variant, VariantInputs
from hwnas.errors import ArtifactError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "PostTraining"]

_NOWHERE = {
    "equalised_places": "scales can be moved: no channels are both written and read by layers "
    "with weights, with nothing between but ReLU, pooling, sums, gates and attention",
    "rotated_places": "channels can be rotated: none are both written and read by layers with "
    "weights, with nothing between but sums, averages, LayerNorm and attention",
}


@dataclass(frozen=True)
class PostTraining:
    """Int8 quantisation after changes of the network that keep its outputs.

    Attributes:
        name: Name of the variant.
        rotates: True if channels are rotated.
        equalises: True if scales are moved between layers.
        compensates: True if weights are rounded by GPTQ instead of to nearest.
        format: Number format.
    """

    name: str
    rotates: bool = False
    equalises: bool = False
    compensates: bool = False
    format: str = "int8"

    def lacks(self, material: VariantInputs) -> str:
        """Return what is missing: real images, as on random ones it is no better than int8.

        The weights also have to be free, not those of a training with few bits.
        """
        if material.loss is None:
            return "what it gains over int8 depends on images; give --data"
        if has_grids(material.model):
            return "the network was trained with the integers of its weights; use int8"
        return ""

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        """Make the variant; see `Variant.make`.

        Raises:
            ArtifactError: The network cannot be quantised, or there is no place in it where scales
                can be moved or channels rotated.
            StorageError: The file cannot be written.
        """
        about: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder, quantisation_errors(material.model):
            plain = material.model
            if self.rotates or self.equalises:
                plain = Path(folder, "changed.onnx")
                about |= self._change(material, plain)
            with Int8Quantizer(plain, material.calibration) as quantizer:
                quantizer.write(to)
                if self.compensates:
                    ratios = compensate_rounding(
                        to, quantizer.prepared, material.calibration, quantizer.largest
                    )
                    mean = float(np.mean(list(ratios.values()))) if ratios else 1.0
                    about |= {"compensated_layers": len(ratios), "mean_error_ratio": mean}
        return ConvertedNetwork(to, about)

    def _change(self, material: VariantInputs, to: Path) -> Mapping[str, int]:
        """Write the network with moved scales and rotated channels; return in how many places."""
        prepare(material.model, to)
        graph = FloatGraph(to, material.calibration[0])
        places = {}
        if self.rotates:
            places["rotated_places"] = rotate(graph)
        if self.equalises:
            places["equalised_places"] = equalise(graph, material.calibration)
        if not any(places.values()):
            raise ArtifactError(
                f"{material.model} has no place where {_NOWHERE[next(iter(places))]}; use int8 "
                "or int8-gptq"
            )
        graph.write(to)
        return places


def _plugin(variant: Variant, summary: str) -> Plugin[Variant]:
    return Plugin("variant", variant.name, variant, summary)


PLUGINS = (
    _plugin(
        PostTraining("int8-gptq", compensates=True),
        "int8 with weights whose rounding errors compensate each other (GPTQ)",
    ),
    _plugin(
        PostTraining("int8-equalised", equalises=True),
        "int8 after moving scales from layer to layer (SmoothQuant)",
    ),
    _plugin(
        PostTraining("int8-rotated", rotates=True),
        "int8 after rotating channels between layers (QuaRot)",
    ),
    _plugin(
        PostTraining("int8-combined", rotates=True, equalises=True, compensates=True),
        "int8-rotated, int8-equalised and int8-gptq in one",
    ),
)
