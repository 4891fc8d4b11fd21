"""Conversion of bundles from Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hwnas.api.run import Network
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.converting import convert_bundle
from hwnas.deploy.file_formats.device_limits import DeviceLimits, device_limits

__all__ = ["convert"]


def convert(
    bundle: str | Path | Bundle | Network,
    to: str | Sequence[str],
    *,
    batch: int = 1,
    arena_bytes: int | None = None,
    limits: str | DeviceLimits | None = None,
) -> Bundle:
    """Add files in further formats to a bundle, and check each where it runs on this machine.

    Args:
        bundle: Bundle, its path, or a finalist of a run, whose bundle is then changed.
        to: Names of file formats, such as ``"mnn"`` or ``["openvino", "torch"]``; ``hwnas plugins``
            lists them.
        batch: Number of images that a run takes, where a format fixes it.
        arena_bytes: Most memory for activations, where a format plans it (``"c"``); unlimited if
            None.
        limits: Device that has to be able to read one of the ONNX files: the name of a release,
            such as ``"tensorrt-8.6"``, a TOML file, or `DeviceLimits`; None for any.

    Returns:
        The bundle with the files; `Bundle.converted` describes them.

    Raises:
        ConfigError: A format is unknown, or its converter is not installed.
        ArtifactError: A converter refuses the network, the outputs differ too much, the activations
            do not fit, or the device cannot read the network; the bundle is unchanged.
        StorageError: The bundle cannot be written.
    """
    if isinstance(bundle, Network):
        bundle = bundle.bundle
    opened = bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))
    device = device_limits(limits) if isinstance(limits, str) else limits
    formats = [to] if isinstance(to, str) else list(to)
    return convert_bundle(opened, formats, batch, arena_bytes, device)
