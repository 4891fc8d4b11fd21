"""Check of a network against a budget of costs, from Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwnas.api.given_networks import folder_of
from hwnas.api.run import Network
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.gate.gate import CostBudget, CostCheck, budget_of, read_budget
from hwnas.stages.deployment import check as stage

__all__ = ["check"]


def check(
    network: str | Path | Bundle | Network,
    budget: str | Path | Mapping[str, Any] | CostBudget,
    against: str | Path | Bundle | Network | None = None,
) -> list[CostCheck]:
    """Check a network against a budget of costs, and against an older network.

    Args:
        network: Bundle, its path, finalist of a run, or ONNX file.
        budget: TOML file with ``target``, ``[limits]``, ``[growth]`` and ``data``, the same as a
            mapping, such as ``{"target": "cpu-onnxruntime-fp32-b1-t1", "limits": {"p50_ms": 5}}``,
            or `CostBudget`.
        against: Network that this one must not be worse than.

    Returns:
        One check for each cost, and for the metric if there are images; `CostCheck.ok` says whether
        it is within the budget.

    Raises:
        ConfigError: The budget is wrong, or does not fit the network.
        DataError: The images do not fit the network.
        ArtifactError: A bundle or a file is damaged, or does not run on the target.
        DeviceError: The target cannot be used on this machine.
    """
    if isinstance(budget, Mapping):
        budget = budget_of(budget)
    elif not isinstance(budget, CostBudget):
        budget = read_budget(Path(budget))
    old = None if against is None else folder_of(against)
    return stage.check(folder_of(network), budget, old)
