"""Breakdown of a network's predicted cost by operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy

from hwnas.deploy.measurement.profiling import profile_kernels
from hwnas.deploy.onnx.workload import OnnxWorkload
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError, DeviceError
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.features.physical import FEATURES, MACHINES, quantities
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import OperatorKind, OperatorSignature

__all__ = [
    "Explanation",
    "OperatorCost",
    "explain",
    "explanation",
    "profiled",
    "unknown_share",
]


@dataclass(frozen=True)
class OperatorCost:
    """Predicted cost of some operators that run as one kernel.

    Attributes:
        nodes: Names of the operators in the ONNX file; several if the runtime fuses them.
        kind: Kind of the costliest of the operators.
        predicted: Cost in the unit of the predictor's metric; all costs add up to the prediction.
        profiled_ms: Milliseconds that the runtime reports for the kernels that are named after the
            operators; None if no such kernel was profiled.
    """

    nodes: tuple[str, ...]
    kind: OperatorKind
    predicted: float
    profiled_ms: float | None = None


@dataclass(frozen=True)
class Explanation:
    """Division of a network's time on a device among its operators.

    Attributes:
        operators: Costs of all operators, the costliest first.
        profiled_ms: Milliseconds of all kernels that were profiled; None if none was.
        not_profiled: Why none was; empty if they were.
    """

    operators: tuple[OperatorCost, ...]
    profiled_ms: float | None
    not_profiled: str


def explanation(predictor: DevicePredictor, model: Path, network: OnnxWorkload) -> Explanation:
    """Return the predicted cost of each operator, profiled where the device is this machine.

    Args:
        predictor: Predictor of the device.
        model: ONNX file of the network.
        network: The same, read.

    Raises:
        ArtifactError: The file cannot be run.
    """
    kernels, reason = profiled(model, predictor.device)
    total = None if kernels is None else sum(kernels.values())
    return Explanation(tuple(explain(predictor, network, kernels)), total, reason)


def explain(
    predictor: DevicePredictor,
    network: OnnxWorkload,
    kernels_ms: Mapping[str, float] | None = None,
) -> list[OperatorCost]:
    """Return every operator with its share of the predicted cost, the costliest first.

    The shares are those in the mixture of roofline models that best explains the networks measured
    on the device (nonnegative least squares of relative errors).

    Args:
        predictor: Predictor of the device.
        network: Network whose cost is explained.
        kernels_ms: Milliseconds by kernel, from
            `hwnas.deploy.measurement.profiling.profile_kernels`.
    """
    predicted = _operator_costs(predictor, network)
    operators = network.workload.operators
    found = []
    for profiled_ms, members in _groups(network, kernels_ms or {}):
        costliest = max(members, key=lambda i: predicted[i])
        found.append(
            OperatorCost(
                tuple(network.nodes[i] for i in members),
                operators[costliest].kind,
                float(sum(predicted[i] for i in members)),
                profiled_ms,
            )
        )
    return sorted(found, key=lambda each: each.predicted, reverse=True)


def profiled(model: Path, target: str) -> tuple[Mapping[str, float] | None, str]:
    """Return kernel times of a model on a target of this machine, or why there are none."""
    try:
        return profile_kernels(model, Target.parse(target)), ""
    except (ConfigError, DeviceError) as error:
        return None, f"not profiled: {error}"


def _operator_costs(predictor: DevicePredictor, network: OnnxWorkload) -> Numbers:
    weights = _machine_weights(predictor)
    operators = network.workload.operators
    steps = [
        OperatorSignature.of(op, network.workload).per_image(network.batch) for op in operators
    ]
    raw = np.array([[m.milliseconds(step) for m in MACHINES.values()] for step in steps]) @ weights
    [estimate] = predictor.predict_steps(network.steps)
    scaled: Numbers = raw * (estimate.mean / max(float(raw.sum()), 1e-12))
    return scaled


def _groups(
    network: OnnxWorkload, kernels_ms: Mapping[str, float]
) -> list[tuple[float | None, tuple[int, ...]]]:
    """Return groups of operators, each with the time of the kernels named after one of them.

    An operator that no kernel is named after joins the only operator that reads its output.
    """
    names = {name: i for i, name in enumerate(network.written)}
    names |= {name: i for i, name in enumerate(network.nodes)}
    owner: dict[int, float] = {}
    for kernel, milliseconds in kernels_ms.items():
        i = _named_after(kernel, names)
        if i is not None:
            owner[i] = owner.get(i, 0.0) + milliseconds
    readers: dict[int, list[int]] = {}
    for i, operator in enumerate(network.workload.operators):
        for tensor in operator.inputs:
            readers.setdefault(tensor, []).append(i)
    members: dict[int, list[int]] = {}
    for i in range(len(network.nodes)):
        end = i
        while end not in owner:
            following = readers.get(network.workload.operators[end].outputs[0], [])
            if len(following) != 1:
                break
            end = following[0]
        members.setdefault(end if end in owner else i, []).append(i)
    return [(owner.get(end), tuple(some)) for end, some in members.items()]


def _named_after(kernel: str, names: Mapping[str, int]) -> int | None:
    """Return the operator with the longest name that a kernel's name begins with, or None."""
    parts = kernel.split("_")
    for length in range(len(parts), 0, -1):
        found = names.get("_".join(parts[:length]))
        if found is not None:
            return found
    return None


def unknown_share(predictor: DevicePredictor, network: OnnxWorkload) -> float:
    """Return the share of operators of unknown types in the predicted cost, 0 to 1."""
    costs = _operator_costs(predictor, network)
    unknown = [operator.kind == "other" for operator in network.workload.operators]
    return float(costs[unknown].sum() / max(float(costs.sum()), 1e-12))


def _machine_weights(predictor: DevicePredictor) -> Numbers:
    """Return the weight of each roofline model's time for a device, of shape (len(MACHINES),)."""
    columns = [FEATURES.index(f"{name}_ms") for name in MACHINES]
    relative = quantities(predictor.steps)[:, columns] / np.array(predictor.costs)[:, None]
    weights: Numbers = scipy.optimize.nnls(relative, np.ones(len(relative)))[0]
    return weights
