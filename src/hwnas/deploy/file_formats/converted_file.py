"""Converted file of a bundle: what it was made from, and how near its outputs are."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.artifact import GOLDEN_OUTPUTS, ROUNDED_TOLERANCE
from hwnas.deploy.bundles.checksums import inside
from hwnas.deploy.export.comparison import TOLERANCE, relative_error
from hwnas.deploy.file_formats.file_format import SourceNetwork
from hwnas.deploy.file_formats.quality_check import QualityCheck
from hwnas.deploy.file_formats.registry import FILE_FORMATS, file_format
from hwnas.deploy.onnx.early_exit import unconditional
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.machine import versions
from hwnas.deploy.variants.quality import Quality
from hwnas.errors import ArtifactError

__all__ = ["ConvertedFile", "GoldenNumbers", "converted"]


@dataclass(frozen=True)
class GoldenNumbers:
    """Golden images of a bundle, and what its network makes of them.

    Attributes:
        pixels: uint8 (N, H, W, C), at the size of the network's input.
        images: The same as inputs of the network, (N, C, H, W).
        outputs: Outputs of the network, (N, ...): in single precision, or as it was quantised.
    """

    pixels: NDArray[np.uint8]
    images: NDArray[np.float32]
    outputs: NDArray[Any]

    def difference(self, session: Session, takes_pixels: bool) -> float:
        """Return the largest difference of a file's outputs, as a share of the largest output."""
        inputs: Any = self.pixels if takes_pixels else self.images
        return relative_error(session.run(inputs), self.outputs)


@dataclass(frozen=True)
class ConvertedFile:
    """Files of a network in another format than ONNX.

    Attributes:
        format: Name of the format, a key of `FILE_FORMATS`.
        files: Names of all files in the bundle, sorted.
        main: Name of the file, or folder, that a runtime loads.
        source: Name of the ONNX file that was converted.
        batch: Number of images that a run takes, where the format fixes it.
        difference: Largest difference from the outputs of the ONNX file for the golden images, as a
            share of the largest output; None if the file was not run.
        tolerance: Largest difference that is allowed.
        not_run: Why the file was not run where it was converted; None if it was.
        versions: Versions of the packages that converted.
        sizes: What the file takes on its device in bytes, by name; empty if unknown.
        quality: First metric of the file on images with targets; None if it was not evaluated.
        golden: Name, in golden.npz, of the outputs of the ONNX file that was converted.
    """

    format: str
    files: tuple[str, ...]
    main: str
    source: str
    batch: int = 1
    difference: float | None = None
    tolerance: float = TOLERANCE
    not_run: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    quality: Quality | None = None
    golden: str = GOLDEN_OUTPUTS

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` is the inverse."""
        quality = None if self.quality is None else self.quality.to_json()
        return {**asdict(self), "files": list(self.files), "quality": quality}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ConvertedFile:
        """Read an entry of bundle.json's ``converted``.

        Raises:
            KeyError, TypeError: The entry is damaged.
        """
        found = {**data, "files": tuple(data["files"])}
        found["golden"] = str(found.get("golden", GOLDEN_OUTPUTS))
        if (quality := found.get("quality")) is not None:
            found["quality"] = Quality.from_json(quality)
        return cls(**found)

    def cannot_run(self) -> str | None:
        """Return why the file is not run here, or None if it can be."""
        if self.format not in FILE_FORMATS:
            return f"there is no format {self.format!r}"
        form = FILE_FORMATS[self.format]
        if (reason := form.unavailable() or form.cannot_run()) is not None:
            return reason
        return "a program is run only where it was converted" if form.is_program else None

    def load(self, folder: Path) -> Session:
        """Load the file from the folder of its bundle, if `cannot_run` gives no reason against it.

        Raises:
            ArtifactError: The file is missing or damaged.
        """
        return FILE_FORMATS[self.format].load(inside(folder, self.main), self.batch)

    @property
    def takes_pixels(self) -> bool:
        """True if the file takes pixels instead of preprocessed images."""
        return FILE_FORMATS[self.format].takes_pixels

    def check(self, folder: Path, golden: GoldenNumbers) -> str:
        """Run the file on golden images, and return what was found in one line.

        Args:
            folder: Folder of the bundle.
            golden: Golden images, and what the network makes of them.

        Raises:
            ArtifactError: The file is damaged, or its outputs differ too much.
        """
        if (reason := self.cannot_run()) is not None:
            return f"not run here: {reason}"
        difference = golden.difference(self.load(folder), self.takes_pixels)
        if not difference <= self.tolerance:  # also true for NaN
            raise ArtifactError(
                f"outputs differ by {difference:.2g} of the largest output; at most "
                f"{self.tolerance:g} is allowed"
            )
        return f"{len(golden.pixels)} images agree within {difference:.1e} of the largest output"


def converted(
    name: str,
    network: SourceNetwork,
    folder: Path,
    golden: GoldenNumbers,
    check: QualityCheck | None = None,
) -> ConvertedFile:
    """Convert a network, and run the result where it runs here.

    Args:
        name: Name of the format.
        network: Network to convert.
        folder: Empty folder for the files.
        golden: Golden images, and what the network makes of them.
        check: Evaluation on images with targets; None for none.

    Raises:
        ConfigError: There is no such format, or its converter is not installed.
        ArtifactError: The converter refuses the file, the outputs differ too much, or the loss is
            larger than allowed.
    """
    form, model, batch = file_format(name), network.model, network.batch
    named = network.code.name if form.is_program else None
    to = folder / f"{named or model.name.split('.')[0]}{form.suffix}"
    with tempfile.TemporaryDirectory() as whole:
        sizes = form.convert(replace(network, model=unconditional(model, Path(whole))), to)
    files = sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())
    made = ConvertedFile(
        name,
        tuple(files),
        to.name,
        model.name,
        batch,
        versions=versions(form.packages),
        sizes=sizes,
    )
    if (reason := form.cannot_run()) is not None:
        return replace(made, not_run=reason)
    session = form.load(to, batch)
    difference = golden.difference(session, form.takes_pixels)
    if not difference <= ROUNDED_TOLERANCE:  # also true for NaN
        raise ArtifactError(
            f"{model} converted to {name} gives outputs that differ by {difference:.2g} of the "
            f"largest output; at most {ROUNDED_TOLERANCE:g} is allowed, so nothing was written"
        )
    tolerance = TOLERANCE if difference <= TOLERANCE else ROUNDED_TOLERANCE
    quality = None
    if check is not None:
        quality = check.quality(session, form.takes_pixels, f"{model.name} converted to {name}")
    return replace(made, difference=difference, tolerance=tolerance, quality=quality)
