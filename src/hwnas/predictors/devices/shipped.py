"""Devices that ship with hwnas, and the transfer prior that they give for all other devices.

They are in ``shipped_devices/``, which ``python -m experiments.latency_zoo.ship`` made from
recorded measurements. Reading them requires no device store, and fits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.atomic import recovered_folder, replacing_folder, write_json
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError
from hwnas.predictors.devices.fingerprint import Fingerprint
from hwnas.predictors.devices.store import CostMetric, DeviceProfile
from hwnas.predictors.features.blocks import Blocks, blocks_of_steps
from hwnas.predictors.features.physical import FEATURES
from hwnas.predictors.models.coverage import learn_widening
from hwnas.predictors.models.gaussian_process import Prior
from hwnas.predictors.models.transfer_prior import (
    ConformalScale,
    DeviceDataset,
    MetaLearnedHyperparameters,
    TransferPrior,
)
from hwnas.search_spaces import OperatorCountTable

__all__ = [
    "FOLDER",
    "family",
    "prior_of_devices",
    "ship",
    "shipped_fingerprints",
    "shipped_prior",
    "shipped_profiles",
]

FOLDER = Path(__file__).parents[1] / "shipped_devices"
_DESCRIPTION, _ARRAYS = "devices.json", "devices.safetensors"
_SAMPLES = (3, 5, 10, 20, 40)  # numbers of measurements for which scales of intervals are learnt


@cache
def shipped_profiles(metric: CostMetric = "latency_ms") -> Mapping[str, DeviceProfile]:
    """Return the shipped devices of a metric by name; only latencies ship."""
    return {p.device: p for p in _read(FOLDER)[0] if p.metric == metric}


@cache
def shipped_prior() -> TransferPrior:
    """Return the transfer prior from the latencies of the shipped devices."""
    profiles, hyperparameters = _read(FOLDER)
    return prior_of_devices(profiles, hyperparameters)


def prior_of_devices(
    profiles: Sequence[DeviceProfile], hyperparameters: MetaLearnedHyperparameters | None = None
) -> TransferPrior:
    """Return the transfer prior from some devices.

    Features are scaled over the networks of the first device.

    Args:
        profiles: Profiles of the devices, all of one metric.
        hyperparameters: Meta-learned hyperparameters to reuse; learnt anew if None.
    """
    blocks: dict[int, Blocks] = {}
    sources = []
    for profile in profiles:
        place = id(profile.steps)  # devices with the same networks share their features
        if place not in blocks:
            blocks[place] = blocks_of_steps(profile.steps)
        logs = np.log(profile.costs)
        sources.append(DeviceDataset(profile.device, blocks[place], logs, family(profile.device)))
    return TransferPrior(tuple(sources), next(iter(blocks.values())), hyperparameters)


def family(target: str) -> str:
    """Return a target's family: its runtime and format, without batch and threads."""
    parsed = Target.parse(target)
    return f"{parsed.device.runtime}-{parsed.format}"


@cache
def shipped_fingerprints() -> Mapping[str, Fingerprint]:
    """Return the fingerprints of the shipped devices, by name."""
    found = json.loads((recovered_folder(FOLDER) / _DESCRIPTION).read_text(encoding="utf-8"))[
        "fingerprints"
    ]
    return {name: Fingerprint(name, probes_ms) for name, probes_ms in found.items()}


def ship(
    profiles: Sequence[DeviceProfile],
    fingerprints: Mapping[str, Mapping[str, float]],
    folder: Path = FOLDER,
) -> None:
    """Learn the transfer prior of devices, and write the files with which they ship.

    Args:
        profiles: Profiles of the devices, all measured on the same networks.
        fingerprints: Milliseconds of each probe, by device.
        folder: Folder of the files, which is replaced as a whole.
    """
    from safetensors.numpy import save_file

    transfer_prior = prior_of_devices(profiles)
    hyperparameters = transfer_prior.hyperparameters
    learnt = {n: learn_widening(transfer_prior, n) for n in _SAMPLES}
    widenings = {str(n): vars(widening) for n, widening in learnt.items() if widening}
    described = [
        {k: v for k, v in p.description().items() if k not in ("schema", "networks")}
        for p in profiles
    ]
    steps = {f"steps.{name}": array for name, array in profiles[0].steps.to_arrays().items()}
    with replacing_folder(folder) as temporary:
        found = {
            "thetas": hyperparameters.thetas,
            "mean": hyperparameters.prior.mean,
            "std": hyperparameters.prior.std,
        }
        costs = np.array([p.costs for p in profiles])
        save_file({"costs": costs, **found, **steps}, temporary / _ARRAYS)
        description = {
            "features": FEATURES,
            "networks": profiles[0].networks,
            "widenings": widenings,
            "devices": described,
            "fingerprints": {p.device: dict(fingerprints[p.device]) for p in profiles},
        }
        write_json(temporary / _DESCRIPTION, description)


@cache
def _read(folder: Path) -> tuple[tuple[DeviceProfile, ...], MetaLearnedHyperparameters]:
    from safetensors.numpy import load_file

    description = json.loads((recovered_folder(folder) / _DESCRIPTION).read_text(encoding="utf-8"))
    if description["features"] != list(FEATURES):
        raise ArtifactError(f"{folder} is of another version of hwnas; install hwnas again")
    arrays = load_file(folder / _ARRAYS)
    steps = OperatorCountTable.from_arrays(
        {n.removeprefix("steps."): arrays[n] for n in arrays if n.startswith("steps.")}
    )
    names = tuple(description["networks"])
    profiles = tuple(
        DeviceProfile(**values, networks=names, steps=steps, costs=costs)
        for values, costs in zip(description["devices"], arrays["costs"], strict=True)
    )
    widenings = {int(n): _widening(each) for n, each in description["widenings"].items()}
    prior = Prior(arrays["mean"], arrays["std"])
    return profiles, MetaLearnedHyperparameters(arrays["thetas"], prior, widenings)


def _widening(values: Mapping[str, Any]) -> ConformalScale:
    """Return a scale from its stored values; earlier versions stored no ``doubts``."""
    doubts = values.get("doubts", ConformalScale.doubts)
    return ConformalScale(**{**values, "doubts": tuple(doubts)})
