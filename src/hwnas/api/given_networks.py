"""Networks that a program gives by their path, as a bundle or as a finalist of a run."""

from __future__ import annotations

from pathlib import Path

from hwnas.api.run import Network
from hwnas.deploy.bundles.bundle import Bundle

__all__ = ["folder_of", "opened_bundle"]


def opened_bundle(bundle: str | Path | Bundle | Network) -> Bundle:
    """Return the bundle that a program gives by its path, as a finalist, or itself."""
    if isinstance(bundle, Network):
        return bundle.bundle
    return bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))


def folder_of(network: str | Path | Bundle | Network) -> Path:
    """Return the path of a network that a program gives by it, as a bundle, or as a finalist."""
    if isinstance(network, Network):
        return network.bundle.folder
    return network.folder if isinstance(network, Bundle) else Path(network)
