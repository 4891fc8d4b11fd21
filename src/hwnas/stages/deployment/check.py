"""Regression check of a bundle or an ONNX file against a budget."""

from __future__ import annotations

from pathlib import Path

from hwnas.deploy.gate.gate import CostBudget, CostCheck, gate
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.stages.deployment.model_source import ModelSource, opened

__all__ = ["check"]


def check(
    source: str | Path, budget: CostBudget, against: str | Path | None = None
) -> list[CostCheck]:
    """Check a network against all that a budget limits.

    Args:
        source: Folder of a bundle, inside its run or not, or an ONNX file.
        budget: Target, limits and allowed growth.
        against: Bundle or file that the network must not be worse than.

    Returns:
        A verdict for each cost, and for the metric if there are images.

    Raises:
        ConfigError: The budget does not fit the network.
        DataError: The images do not fit the network.
        ArtifactError: A bundle or a file is damaged, or does not run on the target.
        DeviceError: The target cannot be used on this machine.
    """
    with opened(Path(source), budget.data) as network:
        model = _file(network, budget.target)
        old = None
        if against is not None:
            with opened(Path(against)) as older:
                old = _file(older, budget.target)
        # Test images: the check evaluates what ships, and chooses nothing by them.
        return gate(model, budget, old, network.evaluator("test", budget.target.device.batch))


def _file(network: ModelSource, target: Target) -> Path:
    """Return the file of a network that ships for a target."""
    if network.bundle is None:
        return network.model
    wanted = target.device.runtime, target.format
    for artifact in network.bundle.artifacts:
        if (artifact.runtime, artifact.number_format) == wanted:
            return network.bundle.folder / artifact.file
    if target.format == "fp32":
        return network.model
    raise ConfigError(
        f"{network.bundle.folder} has no {target.format} variant for {target.device.runtime}; "
        "create one with `hwnas sweep`"
    )
