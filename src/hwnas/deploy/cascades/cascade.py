"""Cascade: a folder with a small network, a big one, and the rule that selects between them.

::

    cascade.json      description of all other files; schema 1
    small.onnx        network that runs on every image, weights inside
    big.onnx          network that runs on images of which the small one is unsure
    golden.npz        a few images and the outputs expected for them
    runner.py         program that runs the cascade with numpy, onnxruntime and pillow
    README.md         model card
    cascade.sha256    checksums of all other files, for ``sha256sum -c``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import recovered_folder
from hwnas.deploy.bundles.bundle import Bundle, read_golden
from hwnas.deploy.bundles.checksums import inside
from hwnas.deploy.bundles.sealed import Seal, SealCheck, checked, passed
from hwnas.deploy.caching.prediction_cache import PredictionCache
from hwnas.deploy.cascades.runner import CONFIDENCES, reading_size, unsure
from hwnas.deploy.error_line import first_line
from hwnas.deploy.export.comparison import TOLERANCE, relative_error
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.onnx.graph import external_files
from hwnas.deploy.quantization.saturation import saturation_warning
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.number_format import number_format
from hwnas.deploy.targets.target import Device, Target
from hwnas.errors import ArtifactError, DataError

__all__ = [
    "BIG",
    "CARD",
    "DESCRIPTION",
    "GOLDEN",
    "RUNNER",
    "SCHEMA",
    "SEAL",
    "SMALL",
    "SUMS",
    "Cascade",
    "CascadePart",
    "open_packed",
]

SCHEMA = 1
DESCRIPTION, SUMS, RUNNER = "cascade.json", "cascade.sha256", "runner.py"
SMALL, BIG, GOLDEN, CARD = "small.onnx", "big.onnx", "golden.npz", "README.md"
SEAL = Seal("cascade", DESCRIPTION, SUMS, SCHEMA)
_BATCH = 32


@dataclass(frozen=True)
class CascadePart:
    """One of the two networks of a cascade.

    Attributes:
        id: Id of the bundle that the network comes from.
        onnx_file: ONNX file of the network.
        preprocessing: Preprocessing from images to the network's input; the two networks may differ
            in input size.
    """

    id: str
    onnx_file: Path
    preprocessing: Preprocessing

    @classmethod
    def of(cls, bundle: Bundle) -> CascadePart:
        """Return the network of a bundle as a cascade runs it.

        That is the file in single precision, in ONNX Runtime, even if the bundle itself runs a
        variant in another format or runtime.
        """
        return cls(str(bundle.description["id"]), bundle.onnx_file, bundle.preprocessing)

    @cached_property
    def session(self) -> Session:
        """Session of the network in ONNX Runtime, with one thread."""
        return self.new_session()

    def new_session(self, batch: int = 1, threads: int = 1) -> Session:
        """Load the network into ONNX Runtime.

        Args:
            batch: Largest number of images per run.
            threads: Number of threads that compute.

        Raises:
            ArtifactError: The file is damaged.
            DeviceError: There are fewer cores than threads.
        """
        return open_session(self.onnx_file, self.target(batch, threads))

    def target(self, batch: int = 1, threads: int = 1) -> Target:
        """Return the target of the network: ONNX Runtime, in the format of the file."""
        device = Device("cpu", "onnxruntime", batch, threads)
        return Target(device, number_format(self.onnx_file))

    def scores(self, images: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the class scores (N, K) of uint8 images (N, H, W, C), with N at least 1."""
        parts = [images[i : i + _BATCH] for i in range(0, len(images), _BATCH)]
        inputs = (self.preprocessing(part).contiguous().numpy() for part in parts)
        return np.concatenate([self.session.run(part) for part in inputs])


@dataclass(frozen=True)
class Cascade:
    """Cascade of two networks in a folder, written by `write_cascade` and opened by `load`.

    Attributes:
        folder: Folder of the cascade.
        description: Contents of cascade.json.
    """

    folder: Path
    description: Mapping[str, Any] = field(repr=False, hash=False)

    @classmethod
    def load(cls, folder: Path) -> Cascade:
        """Open a cascade and read its description; `verify` checks the rest.

        Raises:
            ArtifactError: The folder holds no cascade, or cascade.json is damaged, was written by a
                newer version or names a file outside the folder.
        """
        description = SEAL.read(folder)
        cascade = cls(Path(folder), description)
        cascade._check_description()
        return cascade

    def _check_description(self) -> None:
        path = self.folder / DESCRIPTION
        try:
            _ = self.small, self.big, dict(self.description["files"])
            if self.rule not in CONFIDENCES or not 0 <= self.threshold <= 1:
                raise ValueError(f"rule {self.rule!r} with threshold {self.threshold}")
            if self.outputs.kind != "class_scores":
                raise ValueError(f"its outputs are {self.outputs.kind}, not class_scores")
            for name in self.files:
                inside(self.folder, name)
        except (ArtifactError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"{path} is damaged: {first_line(error)}") from error

    @cached_property
    def small(self) -> CascadePart:
        """Network that runs on every image."""
        return self._part("small")

    @cached_property
    def big(self) -> CascadePart:
        """Network that runs on the images of which the small one is unsure."""
        return self._part("big")

    def _part(self, name: str) -> CascadePart:
        about = self.description[name]
        preprocessing = Preprocessing.from_json(about["preprocessing"])
        return CascadePart(str(about["id"]), inside(self.folder, about["file"]), preprocessing)

    @property
    def rule(self) -> str:
        """Confidence measure of the small network, a key of `CONFIDENCES`."""
        return str(self.description["rule"])

    @property
    def threshold(self) -> float:
        """Confidence of the small network below which an image goes to the big one, in 0..1."""
        return float(self.description["threshold"])

    @cached_property
    def outputs(self) -> OutputMeaning:
        """Meaning of the outputs."""
        return OutputMeaning.from_json(self.description["outputs"])

    @property
    def sums_file(self) -> Path:
        """Path of the list of checksums of all other files."""
        return self.folder / SUMS

    @property
    def files(self) -> list[str]:
        """Names of all files except the list of checksums, sorted."""
        return sorted([DESCRIPTION, *self.description["files"]])

    @property
    def id(self) -> str:
        """Id of the cascade: those of its two networks."""
        return f"{self.small.id}-{self.big.id}"

    @cached_property
    def fingerprint(self) -> bytes:
        """Hash of the contents of all files, among them the description."""
        return SEAL.fingerprint(self.folder, self.files)

    def predict(
        self, images: NDArray[np.uint8], cache: PredictionCache | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Run the small network, and the big one on the images of which the small one is unsure.

        Args:
            images: uint8 (N, H, W, C).
            cache: Cache of scores for images that were seen before; None computes all.

        Returns:
            Class scores (N, K), and a mask (N,) of the images whose scores come from the big
            network.

        Raises:
            DataError: The images have another type or shape, or there are none.
            ArtifactError: An ONNX file is damaged.
        """
        if cache is not None:
            scores, on = cache.through(self.fingerprint, images, self.predict)
            return scores, on
        if len(images) == 0:
            raise DataError("no images were given; expected at least one")
        scores = self._scores(self.small, images)
        on = unsure(scores, self.rule, self.threshold)
        if on.any():
            scores[on] = self._scores(self.big, images[on])
        return scores, on

    def _scores(self, part: CascadePart, images: NDArray[np.uint8]) -> NDArray[Any]:
        scores = part.scores(images)
        if not self.outputs.fits(scores.shape):
            raise ArtifactError(
                f"{part.onnx_file.name} gives outputs of shape {scores.shape}; expected "
                f"{self.outputs.shape}"
            )
        return scores

    def run(
        self,
        images: NDArray[np.uint8] | Sequence[str | Path],
        cache: PredictionCache | None = None,
    ) -> list[dict[str, Any]]:
        """Return the cascade's predictions for images.

        Args:
            images: uint8 (N, H, W, C), or paths of image files, which may differ in size.
            cache: Cache of scores for images that were seen before; None computes all.

        Returns:
            One object per image, as from `OutputMeaning.describe`, with the additional key
            ``network``, which is ``"small"`` or ``"big"``.

        Raises:
            DataError: A file is not an image, or the array has another type or shape.
            ArtifactError: An ONNX file is damaged.
        """
        if isinstance(images, np.ndarray):
            return self.described(*self.predict(images, cache))
        return [self.run(self.read_image(Path(path))[None], cache)[0] for path in images]

    def described(self, scores: NDArray[Any], on: NDArray[np.bool_]) -> list[dict[str, Any]]:
        """Return predictions from the results of `predict`; see `run`."""
        names = np.where(on, "big", "small").tolist()
        described = self.outputs.describe(scores)
        return [{**d, "network": n} for d, n in zip(described, names, strict=True)]

    @property
    def reading_size(self) -> tuple[int, int]:
        """Height and width that image files are read for, which suffice for both networks."""
        return reading_size(*(self.description[part]["preprocessing"] for part in ("small", "big")))

    def read_image(self, source: Path | BinaryIO) -> NDArray[np.uint8]:
        """Read an image file for both networks, upright: uint8 (H, W, C).

        Raises:
            DataError: The file does not exist, is not an image, or is damaged.
        """
        return self.small.preprocessing.read_image(source, self.reading_size)

    def masks(self, images: NDArray[np.uint8] | Sequence[str | Path]) -> list[NDArray[np.uint8]]:
        """Raise an error, since a cascade makes no masks.

        Raises:
            DataError: Always.
        """
        raise DataError(f"{self.folder} is a cascade of classifiers, so it makes no masks")

    def checks(self) -> list[SealCheck]:
        """Check the checksums, both ONNX files and the golden outputs."""
        return [
            *SEAL.checks(self.folder, self.description["files"]),
            *(
                checked(f"{p.onnx_file.name} loads", partial(_load, p, self.description["files"]))
                for p in (self.small, self.big)
            ),
            checked("golden outputs", self._check_golden),
        ]

    def warnings(self) -> list[str]:
        """Return warnings about the two networks on this machine, one line each.

        Raises:
            ArtifactError: A file is damaged.
        """
        found = (saturation_warning(p.onnx_file, p.target()) for p in (self.small, self.big))
        return [warning for warning in found if warning]

    def verify(self) -> list[SealCheck]:
        """Run all `checks` and return them if every check passes.

        Raises:
            ArtifactError: A check failed; the message names the first file that is wrong.
        """
        return passed(f"cascade {self.folder}", self.checks())

    def _check_golden(self) -> str:
        golden = read_golden(self.folder / GOLDEN, ["images", "outputs"])
        images, expected = golden["images"], golden["outputs"]
        scores, on = self.predict(images)
        error = relative_error(scores, expected)
        if not error <= TOLERANCE:  # also true for NaN
            raise ArtifactError(
                f"outputs differ by {error:.2g} of the largest output; at most {TOLERANCE:g} is "
                "allowed"
            )
        return (
            f"{len(images)} images, {on.sum()} of them from the big network, agree within "
            f"{error:.1e} of the largest output"
        )


def _load(part: CascadePart, sums: Mapping[str, str]) -> str:
    if unlisted := set(external_files(part.onnx_file)) - set(sums):
        raise ArtifactError(
            f"it keeps weights in {', '.join(sorted(unlisted))}, for which no checksum is "
            "recorded; create the cascade again"
        )
    shape = part.session.input_shape
    if shape != part.preprocessing.input_shape:
        raise ArtifactError(
            f"it takes inputs of shape {shape}, but its preprocessing gives "
            f"{part.preprocessing.input_shape}"
        )
    return f"takes {' x '.join(map(str, shape))}"


def open_packed(folder: Path) -> Bundle | Cascade:
    """Open the bundle or the cascade in a folder.

    Raises:
        ArtifactError: The folder holds neither, or what it holds is damaged.
    """
    found = recovered_folder(Path(folder))
    return Cascade.load(found) if (found / DESCRIPTION).exists() else Bundle.load(found)
