"""Trained weights that a recipe names as the start of the supernet's training."""

from __future__ import annotations

from pathlib import Path

from hwnas.errors import ConfigError
from hwnas.recipe import Recipe
from hwnas.search.training.start import StartWeights
from hwnas.search.training.supernet import WEIGHTS
from hwnas.search_spaces import SearchSpace

__all__ = ["start_weights"]


def start_weights(
    recipe: Recipe, folder: Path, space: SearchSpace, outputs: int, needs_weights: bool
) -> StartWeights | None:
    """Read the weights that ``train.weights`` names; None if the recipe names none.

    Args:
        recipe: Recipe of the run.
        folder: Folder that relative paths start from.
        space: Space of the supernet.
        outputs: Length of the output vector of its networks.
        needs_weights: Whether the evaluator of the recipe takes the weights of a supernet.

    Raises:
        ConfigError: There are no such weights, they do not fit, or nothing would use them.
    """
    named, train = recipe.train.weights, recipe.train
    if named is None:
        return None
    if not needs_weights:
        raise ConfigError(
            "train.weights is the start of a supernet, but evaluator "
            f"{recipe.search.evaluator!r} trains no supernet; set search.evaluator = 'supernet', "
            "or leave train.weights out"
        )
    if train.epochs == 0 and recipe.deploy.reference and recipe.deploy.reference_minutes is None:
        raise ConfigError(
            "train.epochs is 0, so the reference network has no training time; give it "
            "deploy.reference_minutes, or set deploy.reference = false"
        )
    found = StartWeights.read(_file(named, folder), space, outputs)
    if train.epochs == 0 and found.fresh:
        raise ConfigError(
            f"train.epochs is 0, but {named} has another number of outputs than the task's "
            f"{outputs}, so the output layer has to be trained; give train.epochs or "
            "train.budget_minutes"
        )
    return found


def _file(named: str, folder: Path) -> Path:
    path = folder / Path(named).expanduser()
    if not path.exists():
        raise ConfigError(f"train.weights: there is no {path}; name a run or a safetensors file")
    if not path.is_dir():
        return path
    weights = path / "supernet" / WEIGHTS
    if not weights.exists():
        raise ConfigError(
            f"train.weights: {path} holds no trained supernet; name a run that trained one, or "
            f"finish its training with `hwnas resume {path}`"
        )
    return weights
