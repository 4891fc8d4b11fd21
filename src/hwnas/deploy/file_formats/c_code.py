"""C code for microcontrollers: eight-bit integers, no heap, one static memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.microcontroller.arena import Arena
from hwnas.deploy.microcontroller.c_source import CSource
from hwnas.deploy.microcontroller.compiled import compiled_session, missing_c_compiler
from hwnas.deploy.microcontroller.reading import read_integer_network
from hwnas.deploy.runtimes.session import ArraySession
from hwnas.errors import ArtifactError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "CCode"]


@dataclass(frozen=True)
class CCode:
    """C99 that computes in integers alone, with a header beside it; it takes pixels."""

    suffix: str = ".c"
    packages: tuple[str, ...] = ("onnxruntime",)
    takes_pixels: bool = True
    number_format: str = "int8"
    is_program: bool = True

    def unavailable(self) -> str | None:
        """Return None: nothing else is needed to write C."""
        return None

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`.

        Raises:
            ArtifactError: A layer has no integer version, or the activations take more than
                ``network.code`` allows.
        """
        integers = read_integer_network(network.model, network.preprocessing)
        code = network.code
        source = CSource.of(integers, to.stem, network.outputs.labels, code.by_rows)
        _check_size(source.arena, code.arena_bytes)
        to.write_text(source.code)
        to.with_name(f"{source.name}.h").write_text(source.header)
        return {"arena_bytes": source.arena.bytes, "constant_bytes": source.constant_bytes}

    def cannot_run(self) -> str | None:
        """Return why files cannot be run here, or None if there is a C compiler."""
        return missing_c_compiler()

    def load(self, file: Path, batch: int) -> ArraySession:
        """See `FileFormat.load`."""
        return compiled_session(file)


def _check_size(arena: Arena, most_bytes: int | None) -> None:
    if most_bytes is None or arena.bytes <= most_bytes:
        return
    raise ArtifactError(
        f"the activations take {arena.bytes:,} bytes, {arena.bytes - most_bytes:,} more than the "
        f"arena of {most_bytes:,}; the most are in use in {arena.largest_step}. Export a smaller "
        "network, or search with a limit on peak_int8_activation_bytes"
    )


_FORMAT: FileFormat = CCode()
PLUGINS = (
    Plugin("file format", "c", _FORMAT, "C for microcontrollers, in integers and without a heap"),
)
