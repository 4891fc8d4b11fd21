"""One of the forms in which a bundle's network ships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwnas.deploy.agreement import TOLERANCE
from hwnas.deploy.device import Device, Target

__all__ = ["GOLDEN_OUTPUTS", "ROUNDED_TOLERANCE", "Artifact"]

GOLDEN_OUTPUTS = "outputs"
"""Their name in golden.npz, of the network in single precision."""
ROUNDED_TOLERANCE = 0.05
"""For what rounds to fewer bits: processors round sums differently, and a step is a step."""


@dataclass(frozen=True)
class Artifact:
    """A file, and what runs it.

    Attributes:
        file: Name of the ONNX file in the bundle.
        variant: A name of `hwnas.deploy.variants.VARIANTS`.
        runtime: The runtime that it was judged and timed in.
        number_format: The one that the runtime computes in.
        golden: Name of its golden outputs in golden.npz.
        tolerance: How far outputs may be from these, as a share of the largest.
        beside: Names of files that the runtime finds beside the ONNX file.
    """

    file: str
    variant: str
    runtime: str
    number_format: str = "fp32"
    golden: str = GOLDEN_OUTPUTS
    tolerance: float = TOLERANCE
    beside: tuple[str, ...] = ()

    def target(self, batch: int = 1, threads: int = 1) -> Target:
        """This machine, with the runtime and the format that the file ships for."""
        return Target(Device.here(self.runtime, batch, threads), self.number_format)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` is the inverse."""
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
            KeyError, TypeError, ValueError: It is damaged.
            ConfigError: Its runtime or number format is not known.
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
