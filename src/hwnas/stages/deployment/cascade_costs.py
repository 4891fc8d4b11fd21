"""Cost of an image for the networks of a cascade: latency, and energy where it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.measurement.energy import measured_energy
from hwnas.deploy.onnx.workload import read_workload
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError, EnergyUnavailable, RunError
from hwnas.predictors.devices.prediction import predict
from hwnas.predictors.devices.store import DeviceStore

__all__ = ["ENERGY", "Costs", "Saved", "energy_costs", "latencies_ms", "latency_costs"]

ENERGY = "energy_mj"
Saved = Literal["latency", "energy"]


@dataclass(frozen=True)
class Costs:
    """Cost of one image, for each network and for the decision of the cascade.

    Attributes:
        name: ``"latency"`` or ``"energy"``.
        unit: ``"ms"`` or ``"mJ"``.
        kind: Origin of the costs of networks: ``"measured"`` or ``"predicted"``.
        networks: Cost of each network, by id.
        decision: Cost of deciding whether the small network is sure; for energy it is modelled.
    """

    name: Saved
    unit: str
    kind: Literal["measured", "predicted"]
    networks: Mapping[str, float]
    decision: float


def latency_costs(times_ms: Mapping[str, float], decision_ms: float) -> Costs:
    """Return measured latencies as costs.

    Args:
        times_ms: Latency of each network, by id.
        decision_ms: Time of the decision for one image, in milliseconds.
    """
    return Costs("latency", "ms", "measured", times_ms, decision_ms)


def energy_costs(
    bundles: Mapping[str, Bundle],
    times_ms: Mapping[str, float],
    target: Target,
    decision_ms: float,
) -> Costs:
    """Return the energies of networks on a target.

    Args:
        bundles: Bundles of the networks, by id.
        times_ms: Latency of each network, by id.
        target: Target that runs one image at a time.
        decision_ms: Time of the decision for one image, in milliseconds; its energy is modelled as
            that time at the median power of the networks.

    Raises:
        EnergyUnavailable: No hardware here counts energy, and neither the run nor a profile of the
            target predicts it.
    """
    kind, energies = _energies_mj(bundles, target)
    watts = median(energies[name] / times_ms[name] for name in bundles)
    return Costs("energy", "mJ", kind, energies, watts * decision_ms)


def latencies_ms(bundles: Mapping[str, Bundle], target: Target) -> dict[str, float]:
    """Return the latencies that were measured when the bundles were made, by id.

    Raises:
        RunError: A bundle was not measured on the target.
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
    """Return energies that the hardware counts, or else that a profile of the target predicts."""
    try:
        files = {name: bundle.onnx_file for name, bundle in bundles.items()}
        return "measured", {n: measured_energy(f, target).energy_mj for n, f in files.items()}
    except EnergyUnavailable as error:
        predicted = {name: _predicted_mj(bundle, target) for name, bundle in bundles.items()}
        known = {name: energy for name, energy in predicted.items() if energy is not None}
        if len(known) < len(bundles):
            raise EnergyUnavailable(
                f"{error}; or run `hwnas calibrate --target {target.name} --from TABLE.csv`"
            ) from error
        return "predicted", known


def _predicted_mj(bundle: Bundle, target: Target) -> float | None:
    """Return the energy that the run or else a stored profile predicts; None without either."""
    for row in bundle.description.get("predictions", ()):
        if row["name"] == ENERGY and row["target"] == target.name:
            return float(row["value"])
    try:
        found = predict(DeviceStore.default(), [target.name], read_workload(bundle.onnx_file))
    except ConfigError:  # the target has no profile
        return None
    energies = [each.estimate.mean for each in found if each.estimate.metric == ENERGY]
    return energies[0] if energies else None
