"""Zero-cost proxy scores that come with the package, for spaces of published tables.

``experiments/zero_cost/ship.py`` computed them with `hwnas.predictors.features.zero_cost`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces.tabular import Codes, TabularSpace

__all__ = ["FOLDER", "SCORES", "shipped_scores", "write_scores"]

FOLDER = Path(__file__).parents[1] / "scores"
SCORES = ("naswot", "synflow", "meco")
"""Names of the columns of scores."""


def shipped_scores(space: TabularSpace, codes: Codes) -> Numbers | None:
    """Return the scores of networks (N, P), of shape (N, len(SCORES)), or None if none ship."""
    table = _table(space.name)
    if table is None:
        return None
    found: Numbers = table[np.ravel_multi_index(tuple(codes.T), space.options)]
    return found


def write_scores(folder: Path, space: TabularSpace, scores: Numbers) -> None:
    """Write the scores of all networks of a space, in the order of their codes."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"scores": scores.astype(np.float16)}, folder / f"{space.name}.safetensors")


@cache
def _table(name: str) -> Numbers | None:
    path = FOLDER / f"{name}.safetensors"
    return load_file(path)["scores"].astype(np.float64) if path.is_file() else None
