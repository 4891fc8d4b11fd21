"""Conversion of bundles from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.converting import convert_bundle

__all__ = ["convert"]


def convert(bundle: str | Path | Bundle, to: str | Sequence[str], *, batch: int = 1) -> Bundle:
    """Add files in further formats to a bundle, and check each where it runs on this machine.

    Args:
        bundle: Bundle, or its path.
        to: Names of file formats, such as ``"mnn"`` or ``["openvino", "torch"]``; ``hwnas plugins``
            lists them.
        batch: Number of images that a run takes, where a format fixes it.

    Returns:
        The bundle with the files; `Bundle.converted` describes them.

    Raises:
        ConfigError: A format is unknown, or its converter is not installed.
        ArtifactError: A converter refuses the network, or the outputs differ too much; the bundle
            is unchanged.
        StorageError: The bundle cannot be written.
    """
    opened = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
    return convert_bundle(opened, [to] if isinstance(to, str) else list(to), batch)
