"""Interface of a file format that networks are delivered in, beside ONNX."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.runtimes.runtime import Session
from hwnas.errors import ConfigError

__all__ = ["CodeOptions", "FileFormat", "SourceNetwork"]


@dataclass(frozen=True)
class CodeOptions:
    """Options of formats that are programs.

    Attributes:
        arena_bytes: Most memory for activations; unlimited if None.
        name: Prefix of all public names, and name of the files; that of the ONNX file if None.
        by_rows: Whether the program takes the rows of an image one by one, so that the image takes
            no place in the memory for activations.
    """

    arena_bytes: int | None = None
    name: str | None = None
    by_rows: bool = False

    def __post_init__(self) -> None:
        if self.arena_bytes is not None and self.arena_bytes < 1:
            raise ConfigError(f"the arena has {self.arena_bytes} bytes; expected at least 1")
        if self.name is not None and re.fullmatch(r"[a-z][a-z0-9_]*", self.name) is None:
            raise ConfigError(
                f"the name of the code is {self.name!r}; expected lower-case letters, digits and "
                "underscores after a letter, such as door_model"
            )

    @property
    def given(self) -> str | None:
        """Request of the options in words, for messages; None if all have their defaults."""
        if self.arena_bytes is not None:
            return f"an arena of {self.arena_bytes:,} bytes is given"
        if self.name is not None:
            return f"the name {self.name} is given"
        return "images are to be given by rows" if self.by_rows else None


@dataclass(frozen=True)
class SourceNetwork:
    """Network to convert.

    Attributes:
        model: ONNX file.
        preprocessing: Conversion of stored pixels to the network's input.
        outputs: Meaning of the outputs.
        batch: Number of images that a run takes, where the format fixes it.
        code: Options of formats that are programs.
    """

    model: Path
    preprocessing: Preprocessing
    outputs: OutputMeaning
    batch: int = 1
    code: CodeOptions = CodeOptions()


class FileFormat(Protocol):
    """File format with its converter."""

    @property
    def suffix(self) -> str:
        """Ending of the file's name, such as ``".mnn"``."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Python packages that convert."""

    @property
    def takes_pixels(self) -> bool:
        """True if files take pixels, uint8 (N, H, W, C), instead of preprocessed images."""

    @property
    def number_format(self) -> str:
        """Number format of the ONNX file to convert, ``"fp32"`` or ``"int8"``."""

    @property
    def is_program(self) -> bool:
        """True if files are programs, which are run only where they were just written."""

    def unavailable(self) -> str | None:
        """Return why files cannot be converted here and what to install, or None if they can."""

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """Convert a network.

        Args:
            network: Network to convert.
            to: File or folder to write, with the ending `suffix`; further files may be written
                beside it.

        Returns:
            What the file takes on its device, such as ``arena_bytes``; empty if unknown.

        Raises:
            ArtifactError: The file is damaged, or the converter refuses it.
        """

    def cannot_run(self) -> str | None:
        """Return why files of this format cannot be run here, or None if they can."""

    def load(self, file: Path, batch: int) -> Session:
        """Load a file that `convert` wrote.

        Raises:
            ArtifactError: The file is missing or damaged.
        """
