"""Networks that a program gives by their path, as a bundle or as a finalist of a run."""

from __future__ import annotations

from pathlib import Path

from hwnas.api.run import Network, Run
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.run_folder import RunFolder

__all__ = ["folder_of", "opened_bundle", "source_of"]


def opened_bundle(bundle: str | Path | Bundle | Network) -> Bundle:
    """Return the bundle that a program gives by its path, as a finalist, or itself."""
    if isinstance(bundle, Network):
        return bundle.bundle
    return bundle if isinstance(bundle, Bundle) else Bundle.load(Path(bundle))


def source_of(
    network: str | Path | Bundle | Run | Network,
) -> tuple[Path | RunFolder, str | None]:
    """Return where a network is, and its id if that is a run, whose knee it is otherwise."""
    if isinstance(network, Network):
        return network.run.folder, network.id
    if isinstance(network, Run):
        return network.folder, None
    return folder_of(network), None


def folder_of(network: str | Path | Bundle | Network) -> Path:
    """Return the path of a network that a program gives by it, as a bundle, or as a finalist."""
    if isinstance(network, Network):
        return network.bundle.folder
    return network.folder if isinstance(network, Bundle) else Path(network)
