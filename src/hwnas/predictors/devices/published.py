"""Devices of published latency tables, each with its spec sheet and a model of its latencies.

They are in ``published_devices/``, which ``python -m experiments.spec_sheets.ship`` made from the
tables of HELP (Lee et al., NeurIPS 2021; MIT licence) and from what makers say of their devices.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from hwnas.atomic import write_json
from hwnas.errors import ArtifactError
from hwnas.predictors.devices.spec_sheet import SpecSheet
from hwnas.predictors.features.physical import FEATURES
from hwnas.predictors.models.linear_cost import LinearCost

__all__ = ["FOLDER", "PublishedDevice", "PublishedDevices", "published_devices", "write_published"]

FOLDER = Path(__file__).parents[1] / "published_devices"
_FILE = "devices.json"


@dataclass(frozen=True)
class PublishedDevice:
    """Device of a published table.

    Attributes:
        spec: Spec sheet of the device.
        cost: Model of the latencies of single images in float32 on the device.
    """

    spec: SpecSheet
    cost: LinearCost


@dataclass(frozen=True)
class PublishedDevices:
    """Devices of published tables, and how well one of them is predicted from the others.

    Attributes:
        devices: The devices.
        log_error90: Absolute error of predicted log latencies that nine in ten do not exceed, with
            each device held out and all devices of equal weight.
        most_log_error90: The same quantile on the one device that is predicted worst.
        largest: Largest value of each of `FEATURES` over the networks of the tables.
    """

    devices: tuple[PublishedDevice, ...]
    log_error90: float
    most_log_error90: float
    largest: tuple[float, ...]


@cache
def published_devices() -> PublishedDevices:
    """Return the devices that come with hwnas."""
    found = json.loads((FOLDER / _FILE).read_text(encoding="utf-8"))
    if found["features"] != list(FEATURES):
        raise ArtifactError(f"{FOLDER} is of another version of hwnas; install hwnas again")
    devices = tuple(
        PublishedDevice(SpecSheet(**each["spec"]), LinearCost(tuple(each["weights"])))
        for each in found["devices"]
    )
    largest = tuple(found["largest"])
    return PublishedDevices(devices, found["log_error90"], found["most_log_error90"], largest)


def write_published(found: PublishedDevices, source: str, folder: Path = FOLDER) -> None:
    """Write the devices with which hwnas ships.

    Args:
        found: The devices.
        source: Origin of the measurements, with its licence.
        folder: Folder of the file.
    """
    folder.mkdir(exist_ok=True)
    values = {
        "source": source,
        "features": list(FEATURES),
        "log_error90": found.log_error90,
        "most_log_error90": found.most_log_error90,
        "largest": list(found.largest),
        "devices": _described(found.devices),
    }
    write_json(folder / _FILE, values)


def _described(devices: Sequence[PublishedDevice]) -> list[dict[str, object]]:
    return [{"spec": asdict(each.spec), "weights": list(each.cost.weights)} for each in devices]
