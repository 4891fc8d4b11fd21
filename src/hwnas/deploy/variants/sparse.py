"""Sparse variants of a network: pruned, then fine-tuned and quantised if their name says so.

A name is ``sparse-STRUCTURE`` with further words, such as ``sparse-block16x16-25-searched-int8``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.onnx.graph import model_bytes
from hwnas.deploy.onnx.trainable import trainable_network
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.sparsity.conversion import SparseConversion
from hwnas.deploy.sparsity.pruning import PrunedNetwork, prune_network
from hwnas.deploy.sparsity.settings import SparsitySettings
from hwnas.deploy.variants.fake_quantisation import FakeQuantisation
from hwnas.deploy.variants.variant import ConvertedNetwork, VariantInputs
from hwnas.errors import ArtifactError, ConfigError
from hwnas.registry import Plugin
from hwnas.search_spaces.layers.sparsity_structure import Structure

__all__ = ["PLUGINS", "PREFIX", "Sparse"]

PREFIX = "sparse-"
"""Beginning of the names of sparse variants."""

_INT8, _ONE_SHOT = "int8", "oneshot"
_FEATURES = 1.0  # weight of the features against the outputs in distillation
_IMAGE_DIMENSIONS = 3


@dataclass(frozen=True)
class Sparse:
    """Pruned network; it is fine-tuned with the dense one as its teacher, unless one-shot.

    For int8, weights and inputs are rounded during the fine-tuning, which follows GPUSQ-ViT (Yu et
    al., CVPR 2023) in one stage instead of two, and the file is quantised afterwards. Zeros are
    exact in int8, since weights are rounded symmetrically.

    Attributes:
        settings: Structure, density and criterion.
        format: ``"fp32"`` or ``"int8"``.
        one_shot: True if the network is only pruned, for which its ONNX file is enough.
    """

    settings: SparsitySettings
    format: str = "fp32"
    one_shot: bool = False

    @classmethod
    def parse(cls, name: str) -> Sparse:
        """Return the variant of a name that begins with `PREFIX`.

        Raises:
            ConfigError: A part of the name is unknown, or the settings are impossible.
        """
        words = name.removeprefix(PREFIX).split("-")
        if len(set(words)) < len(words):
            raise ConfigError(f"{name} has a word twice; name each once")
        settings = SparsitySettings.parse([w for w in words if w not in (_INT8, _ONE_SHOT)])
        return cls(settings, _INT8 if _INT8 in words else "fp32", _ONE_SHOT in words)

    @property
    def name(self) -> str:
        """Name on the command line and in bundles."""
        ends = ((self.format == _INT8, _INT8), (self.one_shot, _ONE_SHOT))
        return PREFIX + "-".join([*self.settings.words, *(word for given, word in ends if given)])

    def lacks(self, material: VariantInputs) -> str:
        """Return what is missing to make the variant, and what to provide; empty if nothing is."""
        if self.one_shot or material.retrain is not None:
            return ""
        return (
            "fine-tuning needs the run that trained the network; give the folder of that run, or "
            f"name {self.name}-{_ONE_SHOT}, which is not fine-tuned"
        )

    def make(self, material: VariantInputs, to: Path) -> ConvertedNetwork:
        """Prune the network, and fine-tune and quantise it if the variant does.

        Raises:
            ArtifactError: No layer fits the structure, or the network cannot be converted.
            StorageError: The file cannot be written.
        """
        batches = [torch.from_numpy(batch) for batch in material.calibration]
        if self.one_shot:
            pruned = self._one_shot(material.model, batches, to)
        else:
            pruned = self._fine_tuned(material, batches, to)
        if self.format == _INT8:
            quantize_int8(to, to, material.calibration)
        return ConvertedNetwork(to, self._about(pruned, to))

    def _one_shot(self, model: Path, batches: Sequence[Tensor], to: Path) -> PrunedNetwork:
        network = trainable_network(model)
        if len(network.input_shape) != _IMAGE_DIMENSIONS:
            raise ArtifactError(
                f"{model} takes inputs of shape {network.input_shape}; sparse variants are made of "
                "networks for images (channels, height, width)"
            )
        pruned = prune_network(network, batches, self.settings)
        channels, height, width = network.input_shape
        export_onnx(network, (channels, height, width), to, batches[0])
        return pruned

    def _fine_tuned(
        self, material: VariantInputs, batches: Sequence[Tensor], to: Path
    ) -> PrunedNetwork:
        assert material.retrain is not None
        rounding = FakeQuantisation() if self.format == _INT8 else None
        conversion = SparseConversion(self.settings, batches, rounding)
        material.retrain(conversion, to, _FEATURES)
        assert conversion.pruned is not None
        return conversion.pruned

    def _about(self, pruned: PrunedNetwork, file: Path) -> dict[str, Any]:
        bits = 8 if self.format == _INT8 else 32
        dense = sum(mask.numel() for mask in pruned.masks.values()) * bits / 8
        packed = _packed_bytes(pruned, self.settings.structure, bits)
        return {
            "density": pruned.density,
            "densities": pruned.densities,
            "dense_layers": list(pruned.dense),
            "bytes_without_zeros": round(model_bytes(file) - dense + packed),
        }


def _packed_bytes(pruned: PrunedNetwork, structure: Structure, bits: int) -> float:
    """Return the size of the weights that stay, with their positions, in bytes."""
    kept = sum(int(mask.sum()) for mask in pruned.masks.values())
    weights = sum(mask.numel() for mask in pruned.masks.values())
    return (kept * bits + structure.place_bits(weights, kept)) / 8


PLUGINS = (
    Plugin(
        "variant",
        "sparse-2of4",
        Sparse.parse("sparse-2of4"),
        "Two of every four weights are zero; more words choose others, as in sparse-block16x16-25",
    ),
)
