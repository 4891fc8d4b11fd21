"""Command that calibrates a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import DEVICES, Json, app, out, print_json
from hwnas.cli.devices.options import Classes, Image, Preset, Space, Store, space_of, store_of
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.predictors.devices.calibration import NetworkMeasurement
    from hwnas.predictors.devices.spec_sheet import SpecSheet
    from hwnas.predictors.devices.store import DeviceStore
    from hwnas.predictors.metrics.device_metric import Profile
    from hwnas.search_spaces import SearchSpace


@app.command(rich_help_panel=DEVICES)
def calibrate(
    target: Annotated[str, typer.Option(help="Target, or a name for your own device")],
    space: Space = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Cost to measure: latency_ms, energy_mj or peak_memory_bytes; "
            "latency_ms if not given"
        ),
    ] = None,
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
        bool, typer.Option("--energy", hidden=True, help="Same as --metric energy_mj")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", hidden=True, help="Same as --metric peak_memory_bytes")
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
    spec: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with the device's spec sheet, which helps to predict similar devices "
            "(`hwnas predict --example-spec` prints one)"
        ),
    ] = None,
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
    if sum((from_ is not None, export is not None, gemm)) > 1:
        raise ConfigError("give one of --from, --export and --gemm")
    shorthands = ["energy_mj"] * energy + ["peak_memory_bytes"] * memory
    metrics = [*filter(None, [metric]), *shorthands]
    if len(metrics) > 1:
        raise ConfigError("give one of --metric, --energy and --memory")
    if metrics and (gemm or from_ is not None):
        raise ConfigError(
            f"--metric is {metrics[0]}, but --gemm times products, and the table of --from names "
            "its own metrics; leave --metric out"
        )
    cost = metrics[0] if metrics else "latency_ms"
    sheet = _spec_sheet(spec, target, export is not None or gemm)
    if gemm:
        _calibrate_gemms(target, kept, as_json)
        return
    networks = None if space is None else space_of(space, preset, image, classes)
    if from_ is not None:
        _adopt(target, from_, networks, kept, runtime, trust_units, as_json)
    elif networks is None and sheet is not None and kept.has(target):
        pass  # only the spec sheet is new
    elif networks is None:
        raise ConfigError("give --space to measure its networks, or --from with a CSV file")
    elif export is not None:
        print_export(out, export_chosen(target, networks, kept, export, samples, cost), target)
    else:
        _calibrate_networks(target, networks, cost, samples, until_error, kept, as_json)
    if sheet is not None:
        _keep_spec(target, sheet, kept, as_json)


def _spec_sheet(path: Path | None, target: str, unmeasured: bool) -> SpecSheet | None:
    """Return the spec sheet of --spec, with the target's name; None without one."""
    from hwnas.predictors.devices.spec_sheet import read_spec

    if path is None:
        return None
    if unmeasured:
        raise ConfigError("--spec describes a device with measured networks; leave it out here")
    return replace(read_spec(path), name=target)


def _keep_spec(target: str, spec: SpecSheet, store: DeviceStore, as_json: bool) -> None:
    from hwnas.predictors.devices.spec_sheet import save_spec

    save_spec(store, target, spec)
    if not as_json:
        out.print(f"{target}: spec sheet kept in {store.folder}", soft_wrap=True, markup=False)


def _adopt(
    device: str,
    table: Path,
    space: SearchSpace | None,
    store: DeviceStore,
    runtime: str,
    trust_units: bool,
    as_json: bool,
) -> None:
    from hwnas.api.calibration import calibrate_from_table

    profiles = calibrate_from_table(
        device,
        table,
        space,
        runtime=runtime,
        trust_units=trust_units,
        on_note=lambda note: out.print(f"note: {note}", soft_wrap=True, markup=False),
        store=store.folder,
    )
    _show_calibrated(profiles, store, as_json)


def _calibrate_networks(
    target: str,
    space: SearchSpace,
    metric: str,
    samples: int,
    until_error: str | None,
    store: DeviceStore,
    as_json: bool,
) -> None:
    from hwnas.api.calibration import calibrate
    from hwnas.cli.devices.tables import print_reading
    from hwnas.predictors.metrics.device_metric import DEVICE_METRICS

    unit, sure = DEVICE_METRICS.find(metric).unit, _fraction(until_error)

    def show(reading: NetworkMeasurement) -> None:
        if not as_json:
            print_reading(out, reading, unit)

    profile = calibrate(
        target,
        space,
        samples,
        metric=metric,
        until_error=sure,
        on_reading=show,
        store=store.folder,
    )
    _show_calibrated([profile], store, as_json)


def _show_calibrated(profiles: Sequence[Profile], store: DeviceStore, as_json: bool) -> None:
    from hwnas.cli.devices.tables import print_calibrated

    if as_json:
        print_json([profile.description() for profile in profiles])
        return
    print_calibrated(out, profiles, store)


def _calibrate_gemms(target: str, store: DeviceStore, as_json: bool) -> None:
    from hwnas.deploy.targets.target import Target
    from hwnas.predictors.metrics.gemm_calibration import calibrate_gemms

    profile = calibrate_gemms(Target.parse(target), store)
    if as_json:
        print_json(asdict(profile))
        return
    power = profile.counter or "unknown, since no energy counter can be read"
    out.print(
        f"{target}: {len(profile.gemms)} products, power {power}; kept in {store.folder}",
        soft_wrap=True,
        markup=False,
    )
    out.print(f"next: hwnas predict gemm --m 64 --n 256 --k 128 --target {target}", soft_wrap=True)


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
