"""Calibration of devices, from measurements made here or elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hwnas.api.devices import (
    SpaceOfDevices,
    device_store,
    search_space,
    spec_sheet,
    target_of,
)
from hwnas.deploy.targets.target import Target
from hwnas.errors import DataError
from hwnas.predictors.devices.calibration import (
    CalibrationOptions,
    NetworkMeasurement,
    export_chosen,
)
from hwnas.predictors.devices.cost_file import read_cost_file
from hwnas.predictors.devices.spec_sheet import SpecSheet, save_spec
from hwnas.predictors.devices.store import DeviceStore
from hwnas.predictors.devices.table_import import adopt
from hwnas.predictors.metrics.device_metric import DEVICE_METRICS, Profile

__all__ = ["calibrate", "calibrate_from_table", "export_networks"]


def calibrate(
    target: str | Target,
    space: SpaceOfDevices,
    samples: int = 10,
    *,
    metric: str = "latency_ms",
    until_error: float | None = None,
    image_shape: tuple[int, int, int] = (64, 64, 3),
    outputs: int = 100,
    on_reading: Callable[[NetworkMeasurement], None] = lambda reading: None,
    spec: str | Path | SpecSheet | None = None,
    store: str | Path | None = None,
) -> Profile:
    """Calibrate a device from a few well-chosen networks that are measured on it.

    Networks that the store already has of the target count, so a calibration that was interrupted
    continues.

    Args:
        target: Target, such as ``"cpu-onnxruntime-fp32-b1-t1"``.
        space: Space of the networks: of `hwnas.spaces`, its name, a `SearchSpace`, a run, a recipe
            or the folder of a run, or a module to make elastic.
        samples: Number of networks that shall be known of the target, at least 3.
        metric: Cost to measure: ``"latency_ms"``, ``"energy_mj"``, which needs a counter in the
            hardware, ``"peak_memory_bytes"``, or the name of a plug-in.
        until_error: Expected relative error at which to stop early, such as 0.05; not for memory.
        image_shape: Height, width and channels of the images, for a space without its own.
        outputs: Number of outputs of the networks, for a space without its own.
        on_reading: Function that is called for every network that was measured.
        spec: Spec sheet of the device, or a TOML file with one, which is kept in the store to
            predict similar devices.
        store: Folder of device profiles; ``$HWNAS_HOME/devices`` if None.

    Returns:
        The profile, which is also in the store, where `hwnas.predict` finds it.

    Raises:
        ConfigError: An argument is wrong.
        DeviceError: The target cannot be used here, or the store knows it from other hardware.
        EnergyUnavailable: Nothing on this machine counts energy.
    """
    how = DEVICE_METRICS.find(metric)
    options = CalibrationOptions(samples, until_error, on_reading=on_reading)
    networks, kept = search_space(space, image_shape, outputs), device_store(store)
    device, sheet = target_of(target), spec_sheet(spec)
    profile = how.calibrate(device, networks, kept, options)
    _keep(sheet, device.name, kept)
    return profile


def _keep(sheet: SpecSheet | None, device: str, store: DeviceStore) -> None:
    """Store the spec sheet of a device, if there is one."""
    if sheet is not None:
        save_spec(store, device, replace(sheet, name=device))


def export_networks(
    device: str,
    space: SpaceOfDevices,
    folder: str | Path,
    samples: int = 10,
    *,
    metric: str = "latency_ms",
    image_shape: tuple[int, int, int] = (64, 64, 3),
    outputs: int = 100,
    store: str | Path | None = None,
) -> Path:
    """Export well-chosen networks, to measure them on a device that hwnas cannot reach.

    Args:
        device: Name for the device.
        space: Space of the networks, as for `calibrate`.
        folder: Folder that gets an ONNX file for each network.
        samples: Number of networks, at least 3.
        metric: Cost that shall be measured: ``"latency_ms"``, ``"energy_mj"`` or
            ``"peak_memory_bytes"``.
        image_shape: Height, width and channels of the images, for a space without its own.
        outputs: Number of outputs of the networks, for a space without its own.
        store: Folder of device profiles; ``$HWNAS_HOME/devices`` if None.

    Returns:
        Path of a CSV file in the folder with a line for each network; fill in the costs, and pass
        it to `calibrate_from_table`.

    Raises:
        ConfigError: An argument is wrong.
    """
    networks = search_space(space, image_shape, outputs)
    return export_chosen(device, networks, device_store(store), Path(folder), samples, metric)


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=3)  # at the call of `calibrate_from_table`


def calibrate_from_table(
    device: str,
    table: str | Path,
    space: SpaceOfDevices | None = None,
    *,
    runtime: str = "",
    trust_units: bool = False,
    spec: str | Path | SpecSheet | None = None,
    image_shape: tuple[int, int, int] = (64, 64, 3),
    outputs: int = 100,
    on_note: Callable[[str], None] = _warn,
    store: str | Path | None = None,
) -> list[Profile]:
    """Calibrate a device from costs that were measured elsewhere.

    If lines of one network differ, their median counts, and a note says so.

    Args:
        device: Name for the device.
        table: CSV file with the column ``network`` and one or more of ``latency_ms``,
            ``energy_mj`` and ``peak_memory_bytes``. A network is the path of an ONNX file, or of a
            JSON file with an architecture, relative to the CSV file; or the JSON text of an
            architecture.
        space: Space of the architectures, as for `calibrate`; not needed for ONNX files.
        runtime: Runtime of the networks, such as ``"litert-2.3"``.
        trust_units: Whether to store latencies however far they are from those of known devices.
        spec: Spec sheet of the device, as for `calibrate`.
        image_shape: Height, width and channels of the images, for a space without its own.
        outputs: Number of outputs of the networks, for a space without its own.
        on_note: Function that is called with each note on the table; by default it is a warning.
        store: Folder of device profiles; ``$HWNAS_HOME/devices`` if None.

    Returns:
        Profile for each metric of the table; `hwnas.predict` finds them in the store.

    Raises:
        ConfigError: The store knows the device with another runtime.
        DataError: The table is missing or damaged, has fewer than three networks, or has latencies
            that look like seconds or microseconds.
    """
    if not isinstance(table, str | Path):
        raise DataError(f"table is {table!r}; expected the path of a CSV file")
    networks = None if space is None else search_space(space, image_shape, outputs)
    costs, kept, sheet = (
        read_cost_file(Path(table), networks),
        device_store(store),
        spec_sheet(spec),
    )
    for note in costs.notes:
        on_note(note)
    profiles = list[Profile](adopt(device, costs, kept, runtime, trust_units))
    _keep(sheet, device, kept)
    return profiles
