"""Interface of a file format that networks are delivered in, beside ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hwnas.deploy.runtimes.runtime import Session

__all__ = ["FileFormat"]


class FileFormat(Protocol):
    """File format with its converter."""

    @property
    def suffix(self) -> str:
        """Ending of the file's name, such as ``".mnn"``."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Python packages that convert."""

    def unavailable(self) -> str | None:
        """Return why files cannot be converted here and what to install, or None if they can."""

    def convert(self, model: Path, to: Path, batch: int) -> None:
        """Convert an ONNX file.

        Args:
            model: ONNX file.
            to: File or folder to write, with the ending `suffix`; further files may be written
                beside it.
            batch: Number of images that a run takes, where the format fixes it.

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
