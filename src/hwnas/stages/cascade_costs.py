"""What an image costs the networks of a cascade: time, or energy where somebody knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hwnas.deploy.bundle import Bundle
from hwnas.deploy.device import Target
from hwnas.deploy.energy import energy_counter, energy_of
from hwnas.deploy.onnx_workload import read_workload
from hwnas.deploy.timing import prepared_run
from hwnas.errors import ConfigError, EnergyUnavailable, RunError
from hwnas.predictors.prediction import predict
from hwnas.predictors.store import DeviceStore

__all__ = ["Costs", "Saved", "costs_of", "latencies_ms"]

Saved = Literal["latency", "energy"]


@dataclass(frozen=True)
class Costs:
    """What one image costs.

    Attributes:
        name: ``"latency"`` or ``"energy"``.
        unit: ``"ms"`` or ``"mJ"``.
        kind: Where those of networks are from: ``"measured"`` or ``"predicted"``.
        networks: By id.
        decision: To decide whether the small network is sure; of energy it is modelled.
    """

    name: Saved
    unit: str
    kind: Literal["measured", "predicted"]
    networks: Mapping[str, float]
    decision: float


def costs_of(
    saved: Saved,
    bundles: Mapping[str, Bundle],
    times_ms: Mapping[str, float],
    target: Target,
    decision_ms: float,
) -> Costs:
    """The costs of finalists on a target.

    Args:
        saved: What is to be saved.
        bundles: By id.
        times_ms: What `latencies_ms` says of them.
        target: One image at a time.
        decision_ms: Milliseconds to decide.

    Raises:
        EnergyUnavailable: Energy is to be saved; no hardware counts it here, and no profile of the
            target foretells it.
    """
    if saved == "latency":
        return Costs(saved, "ms", "measured", times_ms, decision_ms)
    kind, energies = _energies_mj(bundles, target)
    watts = median(energies[name] / times_ms[name] for name in bundles)
    return Costs(saved, "mJ", kind, energies, watts * decision_ms)


def latencies_ms(bundles: Mapping[str, Bundle], target: Target) -> dict[str, float]:
    """As they were measured when the bundles were made.

    Raises:
        RunError: One was not measured on the target.
    """
    found = {}
    for name, bundle in bundles.items():
        measured = [m.latency_ms for m in bundle.measurements if m.target == target.name]
        if not measured:
            raise RunError(
                f"{bundle.folder} was not measured on {target.name}; remove the folder and "
                "`hwnas resume` the run"
            )
        found[name] = measured[0]
    return found


def _energies_mj(
    bundles: Mapping[str, Bundle], target: Target
) -> tuple[Literal["measured", "predicted"], dict[str, float]]:
    """Counted by the hardware, or else foretold from a profile of the target."""
    try:
        counter = energy_counter(target.device.hardware)
    except EnergyUnavailable as error:
        foretold = {name: _predicted_mj(bundle, target) for name, bundle in bundles.items()}
        known = {name: energy for name, energy in foretold.items() if energy is not None}
        if len(known) < len(bundles):
            raise EnergyUnavailable(
                f"{error}: hwnas calibrate --target {target.name} --from TABLE.csv"
            ) from error
        return "predicted", known
    runs = {name: prepared_run(bundle.onnx_file, target) for name, bundle in bundles.items()}
    return "measured", {name: energy_of(run, counter).energy_mj for name, run in runs.items()}


def _predicted_mj(bundle: Bundle, target: Target) -> float | None:
    try:
        found = predict(DeviceStore.default(), [target.name], read_workload(bundle.onnx_file))
    except ConfigError:  # the target is not known
        return None
    energies = [each.estimate.mean for each in found if each.estimate.metric == "energy_mj"]
    return energies[0] if energies else None
