"""Deployment bundle: a folder with a network, its description and checksums of all its files.

::

    bundle.json           description of all other files; schema 1
    model.onnx            the network, with weights inside or, if exported so, in model.onnx.data
    model.NAME.onnx       variants of the network, if a sweep has added any
    model.TARGET.json     how a GPU computes a variant's operators, for the runtime triton
    weights.safetensors   the same weights for PyTorch
    model.SUFFIX          the network in further file formats, if it was converted
    golden.npz            a few images and the outputs expected for them
    README.md             model card
    bundle.sha256         checksums of all other files, for ``sha256sum -c``
"""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hwnas.deploy.bundles.artifact import GOLDEN_OUTPUTS, Artifact
from hwnas.deploy.bundles.box_image import image_with_boxes
from hwnas.deploy.bundles.checksums import inside
from hwnas.deploy.bundles.sealed import Seal, SealCheck, checked, passed
from hwnas.deploy.caching.prediction_cache import PredictionCache
from hwnas.deploy.error_line import first_line
from hwnas.deploy.export.comparison import relative_error
from hwnas.deploy.file_formats.converted_file import ConvertedFile, GoldenNumbers
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.onnx.graph import external_files
from hwnas.deploy.pictures import picture_of
from hwnas.deploy.quantization.saturation import saturation_warning
from hwnas.deploy.runtimes import open_session, unavailable
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.text import continued
from hwnas.errors import ArtifactError, ConfigError, DataError
from hwnas.plugin import closest
from hwnas.search_spaces import Architecture

__all__ = [
    "CARD",
    "DESCRIPTION",
    "GOLDEN",
    "MODEL",
    "SCHEMA",
    "SEAL",
    "SUMS",
    "WEIGHTS",
    "Bundle",
    "SealCheck",
    "read_golden",
]

SCHEMA = 1
DESCRIPTION, SUMS, MODEL = "bundle.json", "bundle.sha256", "model.onnx"
SEAL = Seal("bundle", DESCRIPTION, SUMS, SCHEMA)
WEIGHTS, GOLDEN, CARD = "weights.safetensors", "golden.npz", "README.md"
_BATCH = 32
_MOST_PIXELS = 2**28  # of a picture
_DAMAGED_ARRAYS = (
    OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors that NumPy and zipfile raise for files that are not an archive of arrays."""


@dataclass(frozen=True)
class Bundle:
    """Deployable network in a folder, written by `write_bundle` and opened by `load`.

    Attributes:
        folder: Folder of the bundle.
        description: Contents of bundle.json.
    """

    folder: Path
    description: Mapping[str, Any] = field(repr=False, hash=False)

    @classmethod
    def load(cls, folder: Path) -> Bundle:
        """Open a bundle and read its description; `verify` checks the rest.

        Raises:
            ArtifactError: The folder holds no bundle, or bundle.json is damaged, was written by a
                newer version or names a file outside the folder.
        """
        description = SEAL.read(folder)
        bundle = cls(Path(folder), description)
        bundle._check_description()
        return bundle

    def _check_description(self) -> None:
        try:
            _ = self.preprocessing, self.outputs, self.measurements
            for artifact in self.artifacts:
                inside(self.folder, artifact.file)
            _ = self.artifacts[0], self.converted
            if list(self.description["labels"]) != list(self.outputs.labels):
                raise ArtifactError("its labels differ from the labels of its outputs")
            for name in self.files:
                inside(self.folder, name)
        except (ArtifactError, ConfigError) as error:
            raise ArtifactError(
                f"{self.folder / DESCRIPTION} is damaged: {first_line(error)}"
            ) from error
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ArtifactError(
                f"{self.folder / DESCRIPTION} is damaged: {first_line(error, named=True)}"
            ) from error

    @property
    def sums(self) -> dict[str, str]:
        """SHA-256 checksums of all files that bundle.json lists, by file name."""
        sums: dict[str, str] = dict(self.description["files"])
        for artifact in self.description["artifacts"]:
            sums |= {name: artifact["sha256"][name] for name in artifact["files"]}
        return sums

    @property
    def sums_file(self) -> Path:
        """Path of the list of checksums of all other files."""
        return self.folder / SUMS

    @property
    def files(self) -> list[str]:
        """Names of all files except the list of checksums, sorted."""
        return sorted([DESCRIPTION, *self.sums])

    @cached_property
    def artifacts(self) -> list[Artifact]:
        """Artifacts of the bundle; `run` uses the first one."""
        return [Artifact.from_json(each) for each in self.description["artifacts"]]

    @cached_property
    def converted(self) -> list[ConvertedFile]:
        """Files in further formats than ONNX; often none."""
        return [ConvertedFile.from_json(each) for each in self.description.get("converted", ())]

    @property
    def onnx_file(self) -> Path:
        """Path of the ONNX file in single precision, or of the first artifact if there is none."""
        return self.file_in("fp32")

    def file_in(self, number_format: str) -> Path:
        """Return the path of the plain ONNX file in a number format, or of the first artifact."""
        return inside(self.folder, self._artifact_in(number_format).file)

    def bytes_in(self, number_format: str) -> int | None:
        """Return the size of `file_in` and of the files beside it; None if one is missing."""
        artifact = self._artifact_in(number_format)
        paths = [inside(self.folder, name) for name in (artifact.file, *artifact.beside)]
        return sum(path.stat().st_size for path in paths) if all(map(Path.is_file, paths)) else None

    def _artifact_in(self, number_format: str) -> Artifact:
        plain = [each for each in self.artifacts if each.variant == number_format]
        return (plain or self.artifacts)[0]

    def file_on(self, runtime: str) -> Path:
        """Return the path of the first ONNX file for a runtime, or of `onnx_file` if none is."""
        made = [each.file for each in self.artifacts if each.runtime == runtime]
        return inside(self.folder, made[0]) if made else self.onnx_file

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing from images to the network's input."""
        return Preprocessing.from_json(self.description["preprocessing"])

    @cached_property
    def outputs(self) -> OutputMeaning:
        """Meaning of the network's outputs."""
        return OutputMeaning.from_json(self.description["outputs"])

    @cached_property
    def architecture(self) -> Architecture:
        """Architecture of the network, a point of its search space."""
        return Architecture.from_json(self.description["architecture"])

    @cached_property
    def measurements(self) -> list[Measurement]:
        """Latency measurements of the network on targets."""
        return [Measurement.from_json(item) for item in self.description["measurements"]]

    @cached_property
    def _session(self) -> Session:
        return self.session()

    def artifact(self, name: str | None = None) -> Artifact:
        """Return the artifact of a name such as ``"int8@openvino"``, or the first one.

        Raises:
            ConfigError: The bundle has no such artifact.
        """
        if name is None:
            return self.artifacts[0]
        named = {each.name: each for each in self.artifacts}
        if name not in named:
            raise ConfigError(f"{self.folder} has no artifact {name!r}; {closest(name, named)}")
        return named[name]

    def session(self, batch: int = 1, threads: int = 1, artifact: str | None = None) -> Session:
        """Load an artifact into its runtime.

        Args:
            batch: Largest number of images per run.
            threads: Number of threads that compute.
            artifact: Name of the artifact, as in `artifact`; the first one if None.

        Raises:
            ArtifactError: The file is damaged or does not fit the preprocessing.
            ConfigError: The bundle has no such artifact.
            DeviceError: The runtime is not installed, or there are fewer cores than threads.
        """
        return self._loaded(self.artifact(artifact), batch, threads)

    def _loaded(self, artifact: Artifact, batch: int = 1, threads: int = 1) -> Session:
        file = inside(self.folder, artifact.file)
        session = open_session(file, artifact.target(batch, threads))
        if session.input_shape != self.preprocessing.input_shape:
            raise ArtifactError(
                f"{file} takes inputs of shape {session.input_shape}, but the preprocessing gives "
                f"{self.preprocessing.input_shape}"
            )
        return session

    def weights(self) -> dict[str, Tensor]:
        """Return the PyTorch weights by name.

        Raises:
            ArtifactError: The file is missing or damaged.
        """
        try:
            return safetensors.torch.load_file(self.folder / WEIGHTS)
        except (OSError, safetensors.SafetensorError) as error:
            raise ArtifactError(
                f"{self.folder / WEIGHTS} is damaged: {first_line(error)}"
            ) from error

    @cached_property
    def fingerprint(self) -> bytes:
        """Hash of the contents of all files, among them the description."""
        return SEAL.fingerprint(self.folder, self.files)

    def predict(
        self, images: NDArray[np.uint8], cache: PredictionCache | None = None
    ) -> NDArray[Any]:
        """Return the network's outputs, (N, K) or (N, K, h, w), for uint8 images (N, H, W, C).

        Args:
            images: The images.
            cache: Cache of outputs for images that were seen before; None computes all.

        Raises:
            DataError: The images have another type or shape, or there are none.
            ArtifactError: The ONNX file is damaged or does not fit the preprocessing and the
                labels.
        """
        if cache is None:
            return self._outputs(self._session, images)
        [outputs] = cache.through(
            self.fingerprint, images, lambda some: (self._outputs(self._session, some),)
        )
        return outputs

    def _outputs(self, session: Session, images: NDArray[np.uint8]) -> NDArray[Any]:
        if len(images) == 0:
            raise DataError("no images were given; expected at least one")
        how = self.preprocessing
        if self.outputs.kind == "next_byte_scores" and images.shape[1:3] != (how.height, how.width):
            raise DataError(
                f"windows of shape {images.shape[1:3]} were given, but the network takes "
                f"{how.width} bytes in one row"
            )
        parts = [images[i : i + _BATCH] for i in range(0, len(images), _BATCH)]
        inputs = (self.preprocessing(part).contiguous().numpy() for part in parts)
        found = np.concatenate([session.run(part) for part in inputs])
        if not self.outputs.fits(found.shape) or len(found) != len(images):
            raise ArtifactError(
                f"the network of {self.folder} gives outputs of shape {found.shape} for "
                f"{len(images)} images; expected {self.outputs.shape}, from its labels"
            )
        return found

    def run(
        self,
        images: NDArray[np.uint8] | Sequence[str | Path],
        cache: PredictionCache | None = None,
    ) -> list[dict[str, Any]]:
        """Return the network's predictions for images.

        Args:
            images: uint8 (N, H, W, C), or paths of image files, which may differ in size.
            cache: Cache of outputs for images that were seen before; None computes all.

        Returns:
            One object per image; see `OutputMeaning.describe`. The picture of a file is that of the
            whole image (`pictures`).

        Raises:
            DataError: A file is not an image, or the array has another type or shape.
            ArtifactError: The ONNX file is damaged.
        """
        if self.outputs.kind == "picture" and not isinstance(images, np.ndarray):
            sizes = (picture.shape[:2] for picture in self.pictures(images))
            return [{"height": height, "width": width} for height, width in sizes]
        if isinstance(images, np.ndarray):
            return self.outputs.describe(self.predict(images, cache))
        return [self.run(self.read_image(Path(path))[None], cache)[0] for path in images]

    def masks(self, images: NDArray[np.uint8] | Sequence[str | Path]) -> list[NDArray[np.uint8]]:
        """Return the most probable class of each pixel of each image, as an index into the labels.

        Args:
            images: uint8 (N, H, W, C), or paths of image files, which may differ in size.

        Returns:
            uint8 (H, W) for each image, at the size of that image.

        Raises:
            DataError: The network does not segment images, a file is not an image, or the array has
                another type or shape.
            ArtifactError: The ONNX file is damaged.
        """
        if isinstance(images, np.ndarray):
            height, width = images.shape[1:3]
            return list(self.outputs.masks(self.predict(images), (height, width)))
        pixels = (self.read_image(Path(path)) for path in images)
        return [mask for image in pixels for mask in self.masks(image[None])]

    def pictures(self, images: NDArray[np.uint8] | Sequence[str | Path]) -> list[NDArray[np.uint8]]:
        """Return the picture that the network makes of each image.

        Images are not scaled to the network's input but divided into tiles of its size, which
        overlap (`hwnas.deploy.pictures.picture_of`).

        Args:
            images: uint8 (N, H, W, C), or paths of image files, which may differ in size.

        Returns:
            uint8 (upscale H, upscale W, C) for each image.

        Raises:
            DataError: The network makes no pictures, a file is not an image, or the array has
                another type or shape.
            ArtifactError: The ONNX file is damaged.
        """
        if self.outputs.kind != "picture":
            raise DataError(f"the network gives {self.outputs.kind}, so it makes no pictures")
        if isinstance(images, np.ndarray):
            return [self._picture(image) for image in images]
        return [self._picture(self.read_image(Path(path))) for path in images]

    def _picture(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        how = self.preprocessing
        upscale = self.description["outputs"]["shape"][2] // how.height
        height, width = image.shape[:2]
        if height * width * upscale**2 > _MOST_PIXELS:
            raise DataError(
                f"the picture of an image of {height} x {width} pixels would have more than "
                f"{_MOST_PIXELS:,} pixels; give a smaller image"
            )
        made: NDArray[np.uint8] = picture_of(
            image,
            (how.height, how.width),
            upscale,
            lambda tiles: self.outputs.pictures(self.predict(tiles)),
        )
        return made

    def continued(
        self, prompt: str, count: int = 100, temperature: float = 0.0, seed: int = 0
    ) -> str:
        """Return the text that the network adds to a prompt.

        Args:
            prompt: Text to continue, not empty.
            count: Number of bytes to add.
            temperature: Divisor of the logits before a byte is drawn, at least 0; 0 for the most
                probable byte.
            seed: Seed of the draws.

        Raises:
            DataError: The network predicts no text, or an argument is out of range.
            ArtifactError: The ONNX file is damaged.
        """
        if self.outputs.kind != "next_byte_scores":
            raise DataError(f"the network gives {self.outputs.kind}, so it continues no text")
        if not prompt or count < 1 or temperature < 0:
            raise DataError(
                f"a prompt of {len(prompt)} characters, {count} bytes and a temperature of "
                f"{temperature}; expected at least 1, at least 1, and at least 0"
            )
        rng = np.random.default_rng(seed)
        added = continued(
            self.predict, prompt.encode(), count, self.preprocessing.width, temperature, rng
        )
        return added.decode(errors="replace")

    def drawn(self, path: str | Path) -> Image.Image:
        """Return an image with the boxes that the network finds in it.

        Raises:
            DataError: The network finds no boxes, or the file is not an image.
            ArtifactError: The ONNX file is damaged.
        """
        if self.outputs.kind != "boxes":
            raise DataError(f"the network gives {self.outputs.kind}, not boxes")
        (answer,) = self.run([path])
        pixels = self.preprocessing.read_image(Path(path))
        return image_with_boxes(pixels, answer["boxes"], self.outputs.labels)

    def read_image(self, source: Path | BinaryIO) -> NDArray[np.uint8]:
        """Read an image file for this network, upright: uint8 (H, W, C).

        Large JPEG files are decoded at a reduced size, unless the network gives class scores of
        pixels or pictures, since those follow the size of the image.

        Raises:
            DataError: The file does not exist, is not an image, or is damaged.
        """
        how = self.preprocessing
        whole = self.outputs.kind in ("pixel_class_scores", "picture")
        return how.read_image(source, None if whole else (how.height, how.width))

    def checks(self) -> list[SealCheck]:
        """Check the checksums, the ONNX files, the weights and the golden outputs."""
        return [
            *SEAL.checks(self.folder, self.sums),
            *(
                checked(self._said("ONNX model", each), partial(self._check_onnx, each))
                for each in {each.file: each for each in self.artifacts}.values()
            ),
            checked("PyTorch weights", lambda: f"{len(self.weights())} tensors"),
            *(
                checked(
                    self._said("golden outputs", artifact), partial(self._check_golden, artifact)
                )
                for artifact in self.artifacts
            ),
            *(
                checked(f"{each.main} ({each.format})", partial(self._check_converted, each))
                for each in self.converted
            ),
            *(SealCheck("int8 sums", True, warning, warns=True) for warning in self._warnings()),
        ]

    def warnings(self, artifact: str | None = None) -> list[str]:
        """Return warnings about an artifact on this machine, one line each.

        Args:
            artifact: Name of the artifact, as in `artifact`; the first one if None.

        Raises:
            ArtifactError: The file is damaged.
            ConfigError: The bundle has no such artifact.
        """
        return [warning for warning in [self._warning(self.artifact(artifact))] if warning]

    def _warnings(self) -> list[str]:
        """Return the warnings about all artifacts; other checks report damaged files."""
        found = []
        for artifact in self.artifacts:
            with contextlib.suppress(ArtifactError):
                found.append(self._warning(artifact))
        return list(dict.fromkeys(filter(None, found)))

    def _warning(self, artifact: Artifact) -> str:
        return saturation_warning(inside(self.folder, artifact.file), artifact.target())

    def verify(self) -> list[SealCheck]:
        """Run all `checks` and return them if every check passes.

        Raises:
            ArtifactError: A check failed; the message names the first file that is wrong.
        """
        return passed(f"bundle {self.folder}", self.checks())

    def _said(self, what: str, artifact: Artifact) -> str:
        """Return the name of a check, with the artifact if the bundle has several."""
        several = len(self.artifacts) > 1
        return f"{what}, {artifact.variant} on {artifact.runtime}" if several else what

    def _check_onnx(self, artifact: Artifact) -> str:
        import onnx

        path = inside(self.folder, artifact.file)
        if unlisted := set(external_files(path)) - set(self.sums):
            raise ArtifactError(
                f"{artifact.file} keeps weights in {', '.join(sorted(unlisted))}, for which no "
                "checksum is recorded; create the bundle again"
            )
        try:
            onnx.checker.check_model(path, full_check=True)
        except Exception as error:  # errors of ONNX and protobuf share no other base
            raise ArtifactError(f"{artifact.file} is damaged: {first_line(error)}") from error
        return "valid"

    def _check_golden(self, artifact: Artifact) -> str:
        golden = self.golden()
        images, expected = golden["images"], golden[artifact.golden]
        if (reason := unavailable(artifact.target())) is not None:
            return f"not run here: {reason}"
        session = self._loaded(artifact)
        error = max(
            relative_error(self._outputs(session, images), expected),
            relative_error(self._outputs(session, images[:1]), expected[:1]),
        )
        if not error <= artifact.tolerance:  # also true for NaN
            raise ArtifactError(
                f"outputs differ by {error:.2g} of the largest output; at most "
                f"{artifact.tolerance:g} is allowed"
                f"{'; ' if (warning := self._warning(artifact)) else ''}{warning}"
            )
        return f"{len(images)} images agree within {error:.1e} of the largest output"

    def _check_converted(self, file: ConvertedFile) -> str:
        return file.check(self.folder, self.golden_numbers(file.golden))

    def golden_numbers(self, outputs: str = GOLDEN_OUTPUTS) -> GoldenNumbers:
        """Return the golden images, and outputs for them, those in single precision by default.

        Args:
            outputs: Name of the outputs in golden.npz.

        Raises:
            ArtifactError: The file is damaged, or lacks one of them.
        """
        golden = read_golden(self.folder / GOLDEN, ["images", outputs])
        how, stored = self.preprocessing, golden["images"]
        images = how(stored).contiguous().numpy()
        return GoldenNumbers(how.pixels(stored), images, golden[outputs])

    def golden(self) -> dict[str, NDArray[Any]]:
        """Return the golden images, uint8 (N, H, W, C), and the golden outputs, by name.

        Raises:
            ArtifactError: The file is damaged, or lacks the images or the outputs of a file.
        """
        names = [artifact.golden for artifact in self.artifacts]
        names += [file.golden for file in self.converted]
        return read_golden(self.folder / GOLDEN, ["images", *dict.fromkeys(names)])


def read_golden(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read the golden images and named golden outputs from a golden.npz file.

    Raises:
        ArtifactError: The file is missing or damaged, or lacks one of the arrays.
    """
    try:
        # If NumPy opens a file itself and cannot read it, the file stays open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in names}
    except _DAMAGED_ARRAYS as error:
        raise ArtifactError(f"{path.name} is damaged: {first_line(error)}") from error
    for name, array in found.items():
        fits = array.ndim == 4 if name == "images" else array.ndim > 1 and array.dtype.kind == "f"
        if not fits:
            raise ArtifactError(f"{path.name} is damaged: {name} of {array.dtype} {array.shape}")
    return found
