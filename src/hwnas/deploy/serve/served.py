"""Models that a service can run: the network of a bundle, or the two networks of a cascade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.cascades.cascade import Cascade, CascadePart
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.runtimes.runtime import Session
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["ServedNetwork", "input_of", "model_id", "networks_of", "output_shape"]


@dataclass(frozen=True)
class ServedNetwork:
    """Network that runs batches of preprocessed images.

    Attributes:
        preprocessing: Preprocessing from images to its input.
        session: Session of the network.
    """

    preprocessing: Preprocessing
    session: Session


def networks_of(
    model: Bundle | Cascade, batch: int, threads: int, artifact: str | None = None
) -> tuple[ServedNetwork, ...]:
    """Load the network of a bundle, or the small and the big network of a cascade.

    Args:
        model: The bundle or cascade.
        batch: Largest number of images per run.
        threads: Number of threads that compute.
        artifact: Name of the bundle's artifact to load; the first one if None.

    Raises:
        ArtifactError: A file is damaged.
        ConfigError: The bundle has no such artifact, or a cascade is to have one.
        DeviceError: There are fewer cores than threads.
    """
    if isinstance(model, Bundle):
        return (ServedNetwork(model.preprocessing, model.session(batch, threads, artifact)),)
    if artifact is not None:
        raise ConfigError(f"a cascade names its own artifacts; leave out the artifact {artifact!r}")

    def of(part: CascadePart) -> ServedNetwork:
        return ServedNetwork(part.preprocessing, part.new_session(batch, threads))

    return of(model.small), of(model.big)


def model_id(model: Bundle | Cascade) -> str:
    """Return the id of a bundle's network, or of a cascade."""
    return model.id if isinstance(model, Cascade) else str(model.description["id"])


def input_of(model: Bundle | Cascade) -> Preprocessing:
    """Return the preprocessing at the size of the model's raw images.

    That of a cascade is the size at which it reads image files, from which each network resizes.
    """
    if isinstance(model, Bundle):
        return model.preprocessing
    return model.small.preprocessing.at(*model.reading_size)


def output_shape(model: Bundle | Cascade) -> list[int]:
    """Return the shape of the outputs for one image.

    Raises:
        ArtifactError: The description does not hold it.
    """
    if isinstance(model, Cascade):
        return [len(model.outputs.labels)]
    try:
        about: Any = model.description["outputs"]
        return [int(size) for size in about["shape"][1:]]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"bundle.json does not contain the shape of the outputs: {error!r}"
        ) from error
