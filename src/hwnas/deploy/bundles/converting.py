"""Addition of converted files to a bundle."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hwnas.atomic import replacing_folder
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.packing import reseal
from hwnas.deploy.file_formats.converted_file import ConvertedFile, converted
from hwnas.deploy.file_formats.file_format import SourceNetwork
from hwnas.deploy.file_formats.registry import file_format
from hwnas.errors import ConfigError

__all__ = ["convert_bundle"]


def convert_bundle(bundle: Bundle, formats: Sequence[str], batch: int = 1) -> Bundle:
    """Add files in further formats to a bundle; those that it has already are made again.

    Each is converted from the ONNX file in single precision, and run on the golden images where it
    runs here. The bundle is replaced as a whole, or not at all.

    Args:
        bundle: Bundle to extend.
        formats: Names of the formats, of `hwnas.deploy.file_formats.registry.FILE_FORMATS`.
        batch: Number of images that a run takes, where a format fixes it; at least 1.

    Returns:
        The bundle with the files.

    Raises:
        ConfigError: There is no such format, its converter is not installed, or the batch is wrong.
        ArtifactError: A converter refuses the network, or the outputs differ too much.
        StorageError: The bundle cannot be written.
    """
    if batch < 1:
        raise ConfigError(f"the batch is {batch}; expected at least 1")
    for name in formats:
        file_format(name)  # raises before minutes of converting
    golden = bundle.golden_numbers()
    network = SourceNetwork(bundle.onnx_file, bundle.preprocessing, bundle.outputs, batch)
    kept = [each for each in bundle.converted if each.format not in formats]
    with tempfile.TemporaryDirectory() as folder:
        made: list[tuple[Path, ConvertedFile]] = []
        for name in dict.fromkeys(formats):
            place = Path(folder, name)
            place.mkdir()
            made.append((place, converted(name, network, place, golden)))
        _write(bundle, kept, made)
    return Bundle.load(bundle.folder)


def _write(
    bundle: Bundle, kept: Sequence[ConvertedFile], made: Sequence[tuple[Path, ConvertedFile]]
) -> None:
    before = {name for each in bundle.converted for name in each.files}
    listed = [each.to_json() for each in (*kept, *(file for _, file in made))]
    with replacing_folder(bundle.folder) as temporary:
        shutil.copytree(bundle.folder, temporary, dirs_exist_ok=True)
        for name in before - {name for each in kept for name in each.files}:
            (temporary / name).unlink()
        for place, _ in made:
            shutil.copytree(place, temporary, dirs_exist_ok=True)
        description = {**bundle.description, "converted": listed}
        reseal(temporary, description, description["artifacts"])
