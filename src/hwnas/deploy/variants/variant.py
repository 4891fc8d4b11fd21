"""Interface of a variant, to which an exported network can be converted before it is shipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.variants.conversion import Conversion

__all__ = ["ConvertedNetwork", "Retrain", "Variant", "VariantInputs"]


class Retrain(Protocol):
    """Function that fine-tunes a network under a conversion, with the network as the teacher."""

    def __call__(self, conversion: Conversion, to: Path, features: float = 0.0) -> Path:
        """Fine-tune the network, and write it as ONNX.

        Args:
            conversion: Change of the network during the training.
            to: File to write.
            features: Weight of the distillation of features against that of outputs, 0 or more.
        """


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
    retrain: Retrain | None = None


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
