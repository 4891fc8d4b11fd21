"""Import of devices that were measured elsewhere: a table of costs becomes a profile."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from hwnas.errors import ConfigError, DataError
from hwnas.predictors.devices.cost_file import CostFile
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.shipped import shipped_prior
from hwnas.predictors.devices.store import CostMetric, DeviceProfile, DeviceStore
from hwnas.predictors.features.blocks import blocks_of_steps
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import OperatorCountTable

__all__ = ["adopt"]

_DOUBTFUL_FACTOR = 100.0  # ratio to known devices from which a wrong unit is suspected


def adopt(
    device: str,
    costs: CostFile,
    store: DeviceStore,
    runtime: str = "",
    trust_units: bool = False,
) -> list[DeviceProfile]:
    """Store costs that were measured elsewhere; they replace the costs of networks already known.

    Args:
        device: Name for the device on which the costs were measured.
        costs: Contents of a file of costs.
        store: Store of profiles.
        runtime: Runtime of the networks, in words.
        trust_units: Whether to store latencies however far they are from those of known devices.

    Returns:
        Profile for each metric.

    Raises:
        ConfigError: The store knows the device with another runtime.
        DataError: Latencies look like seconds or microseconds.
    """
    if "latency_ms" in costs.costs and not trust_units:
        _check_unit(costs.steps, costs.costs["latency_ms"])
    profiles = [
        _adopted(device, costs, metric, values, store, runtime)
        for metric, values in costs.costs.items()
    ]
    for profile in profiles:
        store.save(profile)
    return profiles


def _check_unit(steps: OperatorCountTable, latencies_ms: Numbers) -> None:
    typical = np.median(shipped_prior().logs(blocks_of_steps(steps)), axis=1)
    factor = float(np.exp(np.median(np.log(latencies_ms) - typical)))
    if 1 / _DOUBTFUL_FACTOR < factor < _DOUBTFUL_FACTOR:
        return
    unit, direction = ("seconds", "less") if factor < 1 else ("microseconds", "more")
    times = max(factor, 1 / factor)
    raise DataError(
        f"latency_ms is {times:,.0f} times {direction} than on known devices for these networks: "
        f"are these {unit}? Write milliseconds, or give --trust-units (in Python "
        "trust_units=True) if the values are correct"
    )


def _adopted(
    device: str,
    costs: CostFile,
    metric: CostMetric,
    values: Numbers,
    store: DeviceStore,
    runtime: str,
) -> DeviceProfile:
    profile = DeviceProfile(device, metric, kind="table", runtime=runtime)
    if store.has(device, metric):
        profile = store.load(device, metric)
        if runtime != profile.runtime:
            raise ConfigError(
                f"{store.folder} has {device} with the runtime {profile.runtime!r}, but these "
                f"costs are for {runtime!r}; choose another device name, or give the same runtime"
            )
        profile = _without(profile, costs.networks)
    more = profile.with_more(costs.networks, costs.steps, values)
    error = DevicePredictor.of(more).held_out_error
    return replace(more, time=datetime.now(UTC).isoformat(timespec="seconds"), held_out_error=error)


def _without(profile: DeviceProfile, networks: tuple[str, ...]) -> DeviceProfile:
    kept = np.array([i for i, name in enumerate(profile.networks) if name not in networks], int)
    return replace(
        profile,
        networks=tuple(profile.networks[i] for i in kept),
        steps=profile.steps.rows(kept),
        costs=profile.costs[kept],
    )
