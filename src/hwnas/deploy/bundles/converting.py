"""Addition of converted files to a bundle."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import replacing_folder
from hwnas.deploy.bundles.bundle import GOLDEN, MODEL, Bundle
from hwnas.deploy.bundles.packing import reseal
from hwnas.deploy.file_formats.converted_file import ConvertedFile, GoldenNumbers, converted
from hwnas.deploy.file_formats.device_limits import DeviceLimits, check_readable
from hwnas.deploy.file_formats.file_format import CodeOptions, FileFormat, SourceNetwork
from hwnas.deploy.file_formats.quality_check import QualityCheck
from hwnas.deploy.file_formats.registry import file_format
from hwnas.deploy.onnx.early_exit import unconditional
from hwnas.deploy.quantization.quantize import quantize_int8
from hwnas.deploy.runtimes.onnx import OnnxSession
from hwnas.errors import ConfigError

__all__ = ["checked_formats", "convert_bundle"]


def convert_bundle(
    bundle: Bundle,
    formats: Sequence[str],
    batch: int = 1,
    code: CodeOptions | None = None,
    limits: DeviceLimits | None = None,
    check: QualityCheck | None = None,
) -> Bundle:
    """Add files in further formats to a bundle; those that it has already are made again.

    Each is converted from the ONNX file in single precision, or from the one in int8 if the format
    computes in integers. If the bundle has none, it is made from the golden images. The result is
    run on the golden images where it runs here, and its outputs are compared with those of the ONNX
    file. The bundle is replaced as a whole, or not at all.

    Args:
        bundle: Bundle to extend.
        formats: Names of the formats, of `hwnas.deploy.file_formats.registry.FILE_FORMATS`.
        batch: Number of images that a run takes, where a format fixes it; at least 1.
        code: Options of formats that are programs; the defaults if None.
        limits: Limits of a device that has to be able to read one of the ONNX files; None for none.
        check: Evaluation of the files on images with targets, where they run here; None for none.

    Returns:
        The bundle with the files.

    Raises:
        ConfigError: There is no such format, its converter is not installed, the batch is wrong, or
            an option is for other formats.
        ArtifactError: A converter refuses the network, the outputs differ too much, the loss is
            larger than allowed, or the device can read no file.
        StorageError: The bundle cannot be written.
    """
    options = code or CodeOptions()
    forms = checked_formats(formats, batch, options)
    golden = bundle.golden_numbers()
    network = SourceNetwork(bundle.onnx_file, bundle.preprocessing, bundle.outputs, batch, options)
    kept = [each for each in bundle.converted if each.format not in formats]
    with tempfile.TemporaryDirectory() as folder:
        made: list[tuple[Path, ConvertedFile]] = []
        outputs: dict[str, NDArray[Any]] = {}
        for name, form in forms.items():
            place = Path(folder, name)
            place.mkdir()
            if form.number_format != "int8":
                made.append((place, converted(name, network, place, golden, check)))
                continue
            given = replace(network, model=_int8_file(bundle, golden, Path(folder)))
            exact = OnnxSession(given.model, batch=1, threads=1, optimised=False)
            known = replace(golden, outputs=exact.run(golden.images))
            file = converted(name, given, place, known, check)
            if not form.is_program:  # programs are not run again
                file = replace(file, golden=f"outputs of {name}")
                outputs[file.golden] = known.outputs
            made.append((place, file))
        if limits is not None:
            files = [place / each.main for place, each in made if each.main.endswith(".onnx")]
            check_readable(limits, [network.model, *files])
        _write(bundle, kept, made, outputs)
    return Bundle.load(bundle.folder)


def checked_formats(
    formats: Sequence[str], batch: int = 1, code: CodeOptions | None = None
) -> dict[str, FileFormat]:
    """Return formats by name, if a network can be converted to them here.

    Raises:
        ConfigError: There is no such format, its converter is not installed, a number is wrong, or
            an option is for other formats.
    """
    if batch < 1:
        raise ConfigError(f"the batch is {batch}; expected at least 1")
    forms = {name: file_format(name) for name in formats}
    programs = [name for name, form in forms.items() if form.is_program]
    if batch > 1 and programs:
        raise ConfigError(
            f"the batch is {batch}, but code in {programs[0]} computes one image a run; convert to "
            f"{programs[0]} with a batch of 1"
        )
    if code is not None and code.given is not None and not programs:
        raise ConfigError(
            f"{code.given}, but only the format c has that option; convert to c, or leave it out"
        )
    return forms


def _int8_file(bundle: Bundle, golden: GoldenNumbers, folder: Path) -> Path:
    """Return the bundle's network in int8, or quantise it by the golden images into a folder."""
    for artifact in bundle.artifacts:
        if artifact.variant == "int8":
            return bundle.folder / artifact.file
    to = folder / MODEL
    if not to.exists():
        whole = unconditional(bundle.onnx_file, folder)
        quantize_int8(whole, to, [golden.images], reduce_range=False)
    return to


def _write(
    bundle: Bundle,
    kept: Sequence[ConvertedFile],
    made: Sequence[tuple[Path, ConvertedFile]],
    outputs: Mapping[str, NDArray[Any]],
) -> None:
    before = {name for each in bundle.converted for name in each.files}
    listed = [each.to_json() for each in (*kept, *(file for _, file in made))]
    with replacing_folder(bundle.folder) as temporary:
        shutil.copytree(bundle.folder, temporary, dirs_exist_ok=True)
        for name in before - {name for each in kept for name in each.files}:
            (temporary / name).unlink()
        for place, _ in made:
            shutil.copytree(place, temporary, dirs_exist_ok=True)
        if outputs:
            arrays: dict[str, Any] = {**bundle.golden(), **outputs}
            np.savez_compressed(temporary / GOLDEN, **arrays)
        description = {**bundle.description, "converted": listed}
        reseal(temporary, description, description["artifacts"])
