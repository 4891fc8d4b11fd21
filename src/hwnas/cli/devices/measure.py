"""Commands that list devices, time a network on a target and fingerprint a target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import DEVICES, Json, app, out, print_json
from hwnas.cli.devices.options import Store, store_of
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.predictors.devices.store import DeviceStore

_PATIENCE_S = 10.0


@app.command(rich_help_panel=DEVICES)
def measure(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file")],
    target: Annotated[str, typer.Option(help="Target, e.g. cpu-onnxruntime-fp32-b1-t1")],
    patience: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Longest time to repeat until the latency is as low as in earlier sessions; 10 if "
            "not given",
        ),
    ] = None,
    sustained: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES",
            help="Run it again and again for so long, and show how its latency changes",
        ),
    ] = None,
    cold_start: Annotated[
        bool, typer.Option("--cold-start", help="Time new processes until their first answer")
    ] = False,
    peak_memory: Annotated[
        bool, typer.Option("--peak-memory", help="Measure the peak memory in new processes")
    ] = False,
    energy: Annotated[
        bool, typer.Option("--energy", help="Measure the energy by a counter or a sensor")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time an ONNX file on a target."""
    others = (sustained is not None) + cold_start + peak_memory + energy
    names = "--sustained, --cold-start, --peak-memory and --energy"
    if others > 1:
        raise ConfigError(f"{names} are four measurements; give one of them")
    if others and patience is not None:
        raise ConfigError(f"--patience is for the latency alone; leave it out with {names}")
    if sustained is not None:
        _sustained(model, target, sustained, as_json)
        return
    if cold_start:
        _cold_start(model, target, as_json)
        return
    if peak_memory:
        _peak_memory(model, target, as_json)
        return
    if energy:
        _energy(model, target, as_json)
        return
    from hwnas.cli.terminal import print_measurement
    from hwnas.deploy.measurement.latency_timer import TimingSettings
    from hwnas.deploy.measurement.timing import measure
    from hwnas.deploy.targets.target import Target

    settings = TimingSettings(patience_s=_PATIENCE_S if patience is None else patience)
    measured = measure({str(model): model}, Target.parse(target), settings)[str(model)]
    if as_json:
        print_json(measured.to_json())
    else:
        print_measurement(out, str(model), measured)


def _sustained(model: Path, target: str, minutes: float, as_json: bool) -> None:
    from hwnas.api.devices import measure_sustained
    from hwnas.cli.devices.tables import print_sustained

    found = measure_sustained(model, target, minutes)
    if as_json:
        print_json(found.to_json())
    else:
        print_sustained(out, str(model), found)


def _cold_start(model: Path, target: str, as_json: bool) -> None:
    from hwnas.api.devices import measure_cold_start
    from hwnas.cli.devices.tables import print_cold_start

    found = measure_cold_start(model, target)
    if as_json:
        print_json(found.to_json())
    else:
        print_cold_start(out, str(model), found)


def _peak_memory(model: Path, target: str, as_json: bool) -> None:
    from hwnas.api.devices import measure_peak_memory
    from hwnas.cli.terminal import size_text

    found = measure_peak_memory(model, target)
    if as_json:
        print_json(found.to_json())
        return
    low, high = size_text(found.lowest_bytes), size_text(found.highest_bytes)
    out.print(
        f"{model} on {found.target}: peak memory {size_text(found.peak_bytes)} ({low} to {high} in "
        f"{found.processes} processes), {size_text(found.loaded_bytes)} after loading (measured)",
        soft_wrap=True,
        markup=False,
    )


def _energy(model: Path, target: str, as_json: bool) -> None:
    from hwnas.api.devices import measure_energy

    found = measure_energy(model, target)
    if as_json:
        print_json({"target": target, **found.to_json()})
        return
    out.print(
        f"{model} on {target}: {found.energy_mj:.4g} mJ a run, {found.power_w:.3g} W on average "
        f"over {found.runs:,} runs in {found.seconds:.1f} s ({found.counter}, measured)",
        soft_wrap=True,
        markup=False,
    )


@app.command(rich_help_panel=DEVICES)
def fingerprint(
    target: Annotated[str, typer.Option(help="Target, e.g. cpu-onnxruntime-int8-b1-t1")],
    as_json: Json = False,
) -> None:
    """Characterise a target of this machine by ten seconds of small models run on it."""
    from hwnas.cli.terminal import print_fingerprint
    from hwnas.deploy.targets.target import Target
    from hwnas.predictors.devices.fingerprint import fingerprint

    found = fingerprint(Target.parse(target))
    if as_json:
        print_json({**asdict(found), "machine": asdict(found.machine())})
    else:
        print_fingerprint(out, found)


devices_app = typer.Typer()
app.add_typer(devices_app, name="devices", rich_help_panel=DEVICES)


@devices_app.callback(invoke_without_command=True)
def devices(
    context: typer.Context,
    show: Annotated[
        str | None, typer.Option(help="Show the networks that a known device was calibrated on")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """List the targets that can be used, and the devices that costs can be predicted for."""
    if context.invoked_subcommand is not None:
        return
    from hwnas.cli.devices.tables import print_known_devices, print_targets
    from hwnas.deploy.targets.status import devices
    from hwnas.predictors.devices.prediction import known_devices

    kept = store_of(store)
    if show is not None:
        _show(show, kept, as_json)
        return
    targets, known = devices(), known_devices(kept)
    if as_json:
        print_json(
            {
                "targets": [asdict(each) for each in targets],
                "known": [each.to_json() for each in known],
            }
        )
        return
    print_targets(out, targets)
    print_known_devices(out, known)


def _show(name: str, store: DeviceStore, as_json: bool) -> None:
    from hwnas.cli.devices.tables import print_known_device
    from hwnas.predictors.devices.device import DevicePredictor
    from hwnas.predictors.devices.prediction import known_devices

    known = [each for each in known_devices(store) if each.profile.device == name]
    if not known:
        store.load(name)  # raises an error that suggests the closest name
    for each in known:
        predictor = DevicePredictor.of_known(each.profile, shipped=each.origin == "shipped")
        predicted = predictor.held_out() if each.origin == "store" else []
        if as_json:
            costs = zip(each.profile.networks, each.profile.costs.tolist(), strict=True)
            print_json({**each.to_json(), "networks": dict(costs)})
        else:
            print_known_device(out, each, predicted)
