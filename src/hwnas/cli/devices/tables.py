"""Output of the commands on devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape

from hwnas.cli.terminal import table_of
from hwnas.deploy.measurement.cold_start import StartMeasurement
from hwnas.deploy.measurement.sustained import SustainedLatency
from hwnas.deploy.targets.status import DeviceStatus
from hwnas.predictors.devices.calibration import NetworkMeasurement
from hwnas.predictors.devices.prediction import KnownDevice, Prediction
from hwnas.predictors.devices.store import DeviceStore
from hwnas.predictors.estimate import Estimate
from hwnas.predictors.explain import Explanation
from hwnas.predictors.metrics.device_metric import Profile

__all__ = [
    "print_calibrated",
    "print_cold_start",
    "print_export",
    "print_known_device",
    "print_known_devices",
    "print_operators",
    "print_predictions",
    "print_reading",
    "print_sustained",
    "print_targets",
]

_ROWS = 12  # of the parts of a lasting measurement


def print_reading(console: Console, reading: NetworkMeasurement, unit: str) -> None:
    """Print the measurement of one network with its unit, beside its prediction."""
    expected = "" if reading.predicted is None else f"  predicted {_interval(reading.predicted)}"
    sure = "" if reading.error is None else f"  others: expected error {_percent(reading.error)}"
    cost, shown = reading.measured, unit
    if unit == "bytes":
        cost, shown = cost / 1e6, "MB"
    console.print(
        f"{reading.number:3d}  {reading.network}  measured {cost:.4g} {shown}{expected}{sure}",
        soft_wrap=True,
    )


def print_calibrated(console: Console, profiles: Sequence[Profile], store: DeviceStore) -> None:
    """Print what the calibrated profiles contain, and the next command."""
    for profile in profiles:
        console.print(
            f"{profile.device}: {profile.metric} of {len(profile.networks)} networks"
            f"{_error(profile)}; kept in {store.folder}",
            soft_wrap=True,
            markup=False,
        )
    console.print(f"next: hwnas predict model.onnx --target {profiles[0].device}", soft_wrap=True)


def print_export(console: Console, table: Path, device: str) -> None:
    """Print the path of the table of exported networks, and the next command."""
    console.print(
        f"{table}: fill in the cost of each network, then run", soft_wrap=True, markup=False
    )
    command = f"hwnas calibrate --target {device} --from {table}"
    console.print(f"  {command}", soft_wrap=True, markup=False)


def print_predictions(console: Console, predictions: Sequence[Prediction]) -> None:
    """Print each cost with its interval, then notes."""
    rows = []
    for each in predictions:
        lower, upper = each.estimate.interval90
        estimate = each.estimate
        numbers = (f"{value:.4g}" for value in (estimate.mean, lower, upper))
        rows.append([estimate.target, estimate.metric, *numbers, str(each.samples)])
    columns = ["device", "cost", "predicted", "90% from", "to", "networks measured"]
    console.print(table_of(columns, rows))
    for each in predictions:
        for note in each.notes:
            console.print(f"{each.estimate.target}: {note}", soft_wrap=True, markup=False)


def print_sustained(console: Console, name: str, found: SustainedLatency) -> None:
    """Print the latency under lasting load in at most a dozen rows, and how much it changed."""
    step = -(-len(found.parts) // _ROWS)
    shown = [*found.parts[::step]]
    if shown[-1] is not found.parts[-1]:
        shown.append(found.parts[-1])
    known = list(dict.fromkeys(k for each in shown for k in each.measurement.conditions))
    rows = []
    for each in shown:
        quantiles, conditions = each.measurement.headline, each.measurement.conditions
        times = ["-" if ms is None else f"{ms:.4g}" for ms in (quantiles.p50, quantiles.p95)]
        rows.append([f"{each.begin_s:.0f}", *times, *(conditions.get(k, "-") for k in known)])
    columns = ["after s", "p50 ms", "p95 ms", *known]
    title = f"{escape(name)} on {found.target}, again and again"
    console.print(table_of(columns, rows, title, text_columns=0))
    console.print(
        f"median {found.first_ms:.4g} ms at the beginning, {found.last_ms:.4g} ms at the end: "
        f"{found.slowdown:.3g} times as long (measured)",
        soft_wrap=True,
    )


def print_cold_start(console: Console, name: str, found: StartMeasurement) -> None:
    """Print the parts of the time until the first answer, with the range over the starts."""
    parts = {
        "start of the runtime": "runtime_ms",
        "loading the file": "load_ms",
        "first run": "first_ms",
        "until the first answer": "until_answer_ms",
        "later runs": "later_ms",
    }
    rows = []
    for what, field in parts.items():
        times = [getattr(each, field) for each in found.starts]
        rows.append([what, *(f"{ms:.4g}" for ms in (median(times), min(times), max(times)))])
    title = f"{escape(name)} on {found.target}, {len(found.starts)} new processes"
    console.print(table_of(["", "median ms", "least ms", "most ms"], rows, title))


def print_operators(console: Console, found: Explanation, top: int, target: str) -> None:
    """Print the ``top`` costliest operators, and a summary of all beside the profile."""
    costs, profiled_ms = found.operators, found.profiled_ms
    total = sum(each.predicted for each in costs)
    rows = [
        [
            " + ".join(each.nodes),
            each.kind,
            f"{each.predicted:.4g}",
            f"{each.predicted / total:.1%}",
            "-" if each.profiled_ms is None else f"{each.profiled_ms:.4g}",
        ]
        for each in costs[:top]
    ]
    title = f"{min(top, len(costs))} costliest of {len(costs)} operators on {target}"
    columns = ["operator", "kind", "predicted ms", "share", "profiled ms"]
    console.print(table_of(columns, rows, title))
    if profiled_ms is None:
        console.print(
            f"all operators: predicted {total:.4g} ms; {found.not_profiled}", soft_wrap=True
        )
        return
    named = sum(each.profiled_ms or 0.0 for each in costs)
    others = max(profiled_ms - named, 0.0)
    console.print(
        f"all operators: predicted {total:.4g} ms, profiled {profiled_ms:.4g} ms, of which "
        f"{others:.4g} ms in kernels that are not named after an operator of the file",
        soft_wrap=True,
    )


def print_targets(console: Console, targets: Sequence[DeviceStatus]) -> None:
    """Print the kinds of targets, grouped by hardware, with the reason if one is not usable."""
    for hardware, group in groupby(targets, lambda each: each.target.split("-")[0]):
        kinds = list(group)
        shared = dict(set.intersection(*(set(each.details.items()) for each in kinds)))
        console.print(hardware, style="bold")
        for key, value in kinds[0].details.items():
            if key in shared:
                console.print(f"    {key}: {value}", soft_wrap=True, markup=False)
        width = max(len(each.target) for each in kinds)
        for each in kinds:
            own = ", ".join(f"{k} {v}" for k, v in each.details.items() if k not in shared)
            state = f"usable  {own}" if each.usable else f"not usable: {each.reason}"
            console.print(f"  {each.target:<{width}}  {state}", soft_wrap=True, markup=False)


def print_known_devices(console: Console, known: Sequence[KnownDevice]) -> None:
    """Print a table of the devices that costs can be predicted for."""
    rows = [
        [
            each.profile.device,
            each.profile.metric,
            str(len(each.profile)),
            _percent(each.profile.held_out_error),
            each.origin,
            each.profile.hardware or "-",
        ]
        for each in known
    ]
    columns = ["device", "cost", "networks", "held-out error", "from", "hardware"]
    console.print(table_of(columns, rows, "Devices for which costs can be predicted"))


def print_known_device(console: Console, known: KnownDevice, predicted: Sequence[Estimate]) -> None:
    """Print one device: costs measured on it, beside predictions from its other networks."""
    profile = known.profile
    console.print(f"{profile.device}: {profile.metric}{_error(profile)}", style="bold")
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    facts = {
        "hardware": profile.hardware,
        "runtime": profile.runtime,
        "networks": f"{len(profile)} of {profile.space or 'a table'}",
        "costs": f"{profile.kind}{f', {profile.clock} clock' if profile.clock else ''}",
        "versions": versions,
        "time": profile.time,
        "from": known.origin,
    }
    for name, value in facts.items():
        if value:
            console.print(f"    {name}: {value}", soft_wrap=True, markup=False)
    rows = [
        [name, f"{cost:.4g}", _interval(estimate)]
        for name, cost, estimate in zip(profile.networks, profile.costs, predicted, strict=False)
    ]
    if rows:
        columns = ["network", f"{profile.kind} {profile.metric}", "predicted from the others"]
        console.print(table_of(columns, rows))


def _interval(estimate: Estimate) -> str:
    lower, upper = estimate.interval90
    return f"{estimate.mean:.4g} ({lower:.4g} to {upper:.4g})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _error(profile: Profile) -> str:
    error = profile.held_out_error
    return "" if error is None else f", held-out error {error:.1%} (median)"
