"""Command that calibrates a device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import DEVICES, Json, app, out, print_json
from hwnas.cli.devices.options import Classes, Image, Preset, Space, Store, space_of, store_of
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.predictors.devices.calibration import NetworkMeasurement
    from hwnas.predictors.devices.store import DeviceProfile, DeviceStore
    from hwnas.search_spaces import SearchSpace


@app.command(rich_help_panel=DEVICES)
def calibrate(
    target: Annotated[str, typer.Option(help="Target, or a name for your own device")],
    space: Space = None,
    samples: Annotated[
        int, typer.Option(help="Number of networks that are measured on it in all")
    ] = 10,
    until_error: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Stop at this expected error, e.g. 5%")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="CSV file of costs that were measured elsewhere")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Folder for exported networks to measure elsewhere")
    ] = None,
    energy: Annotated[
        bool, typer.Option("--energy", help="Measure energy, if the hardware has a counter")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Measure peak memory, each time in a new process")
    ] = False,
    gemm: Annotated[
        bool, typer.Option("--gemm", help="Time matrix products instead of networks")
    ] = False,
    runtime: Annotated[
        str, typer.Option(help="With --from: runtime of the networks, e.g. litert-2.3")
    ] = "",
    trust_units: Annotated[
        bool,
        typer.Option(
            "--trust-units", help="With --from: accept costs that are far from all others"
        ),
    ] = False,
    preset: Preset = None,
    image: Image = "64x64x3",
    classes: Classes = 100,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Calibrate a device from a few well-chosen networks that are measured on it."""
    from hwnas.cli.devices.tables import print_export
    from hwnas.predictors.devices.calibration import export_chosen

    kept = store_of(store)
    if sum((from_ is not None, export is not None, energy, memory, gemm)) > 1:
        raise ConfigError("give one of --from, --export, --energy, --memory and --gemm")
    if gemm:
        _calibrate_gemms(target, kept, as_json)
        return
    networks = None if space is None else space_of(space, preset, image, classes)
    if from_ is not None:
        _adopt(target, from_, networks, kept, runtime, trust_units, as_json)
    elif networks is None:
        raise ConfigError("give --space to measure its networks, or --from with a CSV file")
    elif export is not None:
        print_export(out, export_chosen(target, networks, kept, export, samples), target)
    elif memory:
        _calibrate_memory(target, networks, samples, kept, as_json)
    else:
        _calibrate_networks(target, networks, samples, until_error, energy, kept, as_json)


def _adopt(
    device: str,
    table: Path,
    space: SearchSpace | None,
    store: DeviceStore,
    runtime: str,
    trust_units: bool,
    as_json: bool,
) -> None:
    from hwnas.predictors.devices.adoption import adopt
    from hwnas.predictors.devices.cost_file import read_cost_file

    found = read_cost_file(table, space)
    for note in found.notes:
        out.print(f"note: {note}", soft_wrap=True, markup=False)
    _show_calibrated(adopt(device, found, store, runtime, trust_units), store, as_json)


def _calibrate_networks(
    target: str,
    space: SearchSpace,
    samples: int,
    until_error: str | None,
    energy: bool,
    store: DeviceStore,
    as_json: bool,
) -> None:
    from hwnas.cli.devices.tables import print_reading
    from hwnas.deploy.targets.target import Target
    from hwnas.predictors.devices.calibration import MeasuredMetric, calibrate

    def show(reading: NetworkMeasurement) -> None:
        if not as_json:
            print_reading(out, reading)

    parsed, sure = Target.parse(target), _fraction(until_error)
    metric: MeasuredMetric = "energy_mj" if energy else "latency_ms"
    profile = calibrate(parsed, space, store, samples, sure, show, metric=metric)
    _show_calibrated([profile], store, as_json)


def _show_calibrated(profiles: list[DeviceProfile], store: DeviceStore, as_json: bool) -> None:
    from hwnas.cli.devices.tables import print_calibrated

    if as_json:
        print_json([profile.description() for profile in profiles])
        return
    print_calibrated(out, profiles, store)


def _calibrate_gemms(target: str, store: DeviceStore, as_json: bool) -> None:
    from hwnas.deploy.targets.target import Target
    from hwnas.predictors.metrics.gemm_profile import calibrate_gemms

    profile = calibrate_gemms(Target.parse(target), store)
    if as_json:
        print_json(asdict(profile))
        return
    out.print(f"{target}: {len(profile.gemms)} products; kept in {store.folder}", soft_wrap=True)
    out.print(f"next: hwnas predict gemm --m 64 --n 256 --k 128 --target {target}", soft_wrap=True)


def _calibrate_memory(
    target: str, space: SearchSpace, samples: int, store: DeviceStore, as_json: bool
) -> None:
    from hwnas.deploy.targets.target import Target
    from hwnas.predictors.metrics.memory_profile import calibrate_memory

    def show(network: str, peak_bytes: int, number: int) -> None:
        if not as_json:
            out.print(f"{number:3d}  {network}  measured {peak_bytes / 1e6:.4g} MB", soft_wrap=True)

    profile = calibrate_memory(Target.parse(target), space, store, samples, show)
    if as_json:
        print_json(asdict(profile))
        return
    known = len(profile.networks)
    out.print(f"{target}: peak memory of {known} networks; kept in {store.folder}", soft_wrap=True)
    out.print(f"next: hwnas predict model.onnx --target {target}", soft_wrap=True)


def _fraction(text: str | None) -> float | None:
    """Return a fraction given as ``5%`` or ``0.05``; None for None."""
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ConfigError(f"--until-error is {text!r}; expected above 0 and at most 100%, e.g. 5%")
    return value
