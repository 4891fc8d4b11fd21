"""Artifact of a bundle: an ONNX file with the variant, runtime and number format that it is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwnas.deploy.export.comparison import TOLERANCE
from hwnas.deploy.targets.target import Device, Target

__all__ = ["GOLDEN_OUTPUTS", "ROUNDED_TOLERANCE", "Artifact"]

GOLDEN_OUTPUTS = "outputs"
"""Name, in golden.npz, of the golden outputs of the network in single precision."""
ROUNDED_TOLERANCE = 0.05
"""Tolerance for formats with fewer bits: processors round sums differently, and each difference is
a whole rounding step."""


@dataclass(frozen=True)
class Artifact:
    """ONNX file of a bundle, with the runtime that runs it.

    Attributes:
        file: Name of the ONNX file in the bundle.
        variant: Name of the variant, a key of `hwnas.deploy.variants.VARIANTS`.
        runtime: Runtime in which the file was evaluated and timed.
        number_format: Number format in which the runtime computes.
        golden: Name of the artifact's golden outputs in golden.npz.
        tolerance: Largest allowed difference from the golden outputs, as a share of the largest
            output.
        beside: Names of the files that the runtime reads beside the ONNX file.
    """

    file: str
    variant: str
    runtime: str
    number_format: str = "fp32"
    golden: str = GOLDEN_OUTPUTS
    tolerance: float = TOLERANCE
    beside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Variant and runtime, such as ``"int8@openvino"``; unique in a bundle."""
        return f"{self.variant}@{self.runtime}"

    def target(self, batch: int = 1, threads: int = 1) -> Target:
        """Return this machine as a target, with the artifact's runtime and number format."""
        return Target(Device.here(self.runtime, batch, threads), self.number_format)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` is the inverse."""
        return {
            "format": "onnx",
            "runtime": self.runtime,
            "variant": self.variant,
            "number_format": self.number_format,
            "files": [self.file, *self.beside],
            "golden": {"outputs": self.golden, "tolerance": self.tolerance},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Artifact:
        """Read an entry of bundle.json's ``artifacts``.

        Raises:
            KeyError, TypeError, ValueError: The entry is damaged.
            ConfigError: The runtime or the number format is not known.
        """
        golden = data.get("golden", {})
        found = cls(
            data["files"][0],
            str(data["variant"]),
            str(data["runtime"]),
            str(data.get("number_format", "fp32")),
            str(golden.get("outputs", GOLDEN_OUTPUTS)),
            float(golden.get("tolerance", TOLERANCE)),
            tuple(data["files"][1:]),
        )
        found.target()
        return found
