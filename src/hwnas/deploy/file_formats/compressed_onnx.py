"""ONNX files compressed without loss, for downloads: the ONNX file comes back bit for bit."""

from __future__ import annotations

import lzma
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.onnx.graph import external_files, read_whole_model
from hwnas.deploy.runtimes.onnx import OnnxSession
from hwnas.deploy.runtimes.runtime import Session
from hwnas.errors import ArtifactError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "CompressedOnnx"]

_POSITION_BITS = (0, 2)
"""Bits of a byte's position that its coding depends on. With two bits, each of the four bytes of a
float has statistics of its own, which nearly halves what the exponents take."""
_MOST_BYTES = 2**31  # an ONNX file has no more; a small file could be unpacked to fill the memory


@dataclass(frozen=True)
class CompressedOnnx:
    """ONNX files compressed by xz, which ``xz -d`` and Python's ``lzma`` unpack.

    Attributes:
        number_format: Number format of the ONNX file.
        suffix: Ending of the file's name.
    """

    number_format: str
    suffix: str
    packages: tuple[str, ...] = ("onnx",)
    takes_pixels: bool = False
    is_program: bool = False

    def unavailable(self) -> str | None:
        """Return None: the compression is a part of Python."""
        return None

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        model, beside = read_whole_model(network.model), external_files(network.model)
        plain = model.SerializeToString() if beside else network.model.read_bytes()
        packed = min((_compressed(plain, bits) for bits in _POSITION_BITS), key=len)
        to.write_bytes(packed)
        return {"file_bytes": len(packed), "unpacked_bytes": len(plain)}

    def cannot_run(self) -> str | None:
        """Return None: ONNX Runtime is always there."""
        return None

    def load(self, file: Path, batch: int) -> Session:
        """See `FileFormat.load`."""
        with tempfile.TemporaryDirectory() as folder:
            unpacked = Path(folder, "model.onnx")
            unpacked.write_bytes(_unpacked(file))
            # Not optimised, int8 is the same on all processors.
            optimised = self.number_format != "int8"
            return OnnxSession(unpacked, batch, threads=1, optimised=optimised)


def _compressed(plain: bytes, position_bits: int) -> bytes:
    coder = {
        "id": lzma.FILTER_LZMA2,
        "preset": 6,  # unpacking takes 9 MB of memory
        "lc": 0 if position_bits else 3,  # at most four bits of context in all
        "lp": position_bits,
    }
    return lzma.compress(plain, check=lzma.CHECK_CRC64, filters=[coder])


def _unpacked(file: Path) -> bytes:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        plain = decoder.decompress(file.read_bytes(), max_length=_MOST_BYTES)
    except (OSError, lzma.LZMAError) as error:
        raise ArtifactError(f"{file} cannot be unpacked: {error}") from error
    if not decoder.eof:
        raise ArtifactError(f"{file} is cut off, or larger than an ONNX file can be")
    return plain


_PLAIN: FileFormat = CompressedOnnx("fp32", ".onnx.xz")
_INT8: FileFormat = CompressedOnnx("int8", ".int8.onnx.xz")
PLUGINS = (
    Plugin("file format", "onnx-xz", _PLAIN, "ONNX compressed without loss, for downloads"),
    Plugin("file format", "onnx-int8-xz", _INT8, "ONNX in int8 compressed without loss"),
)
