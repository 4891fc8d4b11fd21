"""Are networks with a searched early exit faster at equal accuracy than networks without?

For each seed there are two jobs with equal minutes: one searches networks with and without an early
exit, the other one the same networks without. All finalists are timed together; the latency of a
network with an exit is the mean over images.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import tomlkit
import torch

from experiments.equal_accuracy import compared
from experiments.record import Row
from experiments.setting import Setting, main
from experiments.sides import Network, measured_rows, of_job, usable
from hwnas.search_spaces.early_exit import EarlyExitNetwork
from hwnas.stages.finalists.bundles import read_bundles
from hwnas.stages.goal import SearchGoal
from hwnas.stages.run_inputs import RunInputs

EXITS, PLAIN = "exits", "plain"


def work(arguments: argparse.Namespace) -> None:
    setting = Setting(arguments, {})
    for seed in setting.seeds:
        rows = [row for row in setting.observations.rows if row.seed == seed]
        if not rows:
            rows = observe(setting, seed)
            setting.observations.put(rows)
        further = [row for row in rows if row.metric in ("seconds", "test_share")]
        setting.answer([*compared(rows, EXITS, PLAIN, seed), *further])
    setting.show()


def without_exits(space: Mapping[str, Any]) -> str:
    """Return the override of a recipe that searches the networks of a space without exits."""
    table = tomlkit.inline_table()
    table.update(space["network"])
    return f"space={table.as_string()}"


def observe(setting: Setting, seed: int) -> list[Row]:
    """Run both jobs, resuming interrupted work, and time all finalists together."""
    folder, recipe = setting.work / f"seed-{seed}", setting.recipe(seed)
    targets = usable(SearchGoal(recipe.objective).targets)
    plain = setting.experiment(seed, [without_exits(recipe.space.options)])
    networks: list[Network] = []
    rows = []
    for side, job in ((EXITS, setting.experiment(seed)), (PLAIN, plain)):
        print(f"seed {seed}: running the job {side}", flush=True)
        found, run_inputs, seconds = of_job(side, job, folder / side)
        networks += found
        rows.append(Row("seconds", side, seed, seconds, "s", 1))
        if side == EXITS:
            rows += test_shares(folder / side, run_inputs, seed)
    print(f"seed {seed}: timing {len(networks)} networks", flush=True)
    return [*rows, *measured_rows(networks, targets, run_inputs, seed)]


def test_shares(run: Path, run_inputs: RunInputs, seed: int) -> list[Row]:
    """Return how much the share of test images that leave differs from that of the latency."""
    differences = []
    for bundle in read_bundles(run / "bundles").values():
        network = run_inputs.space.build(bundle.architecture).eval()
        network.load_state_dict(bundle.weights())
        assert isinstance(network, EarlyExitNetwork)
        if network.head is None:
            continue
        height, width = run_inputs.space.input_shape(bundle.architecture)[1:]
        preprocessing = run_inputs.task.preprocessing.at(height, width)
        left = 0
        for rows in np.array_split(np.arange(len(run_inputs.data.test)), 50):
            images, _ = run_inputs.data.test.take(rows)
            with torch.no_grad():
                confidence = network.paths(preprocessing(torch.from_numpy(images)))[2]
            left += int((confidence >= network.head.threshold).sum())
        share = left / len(run_inputs.data.test)
        differences.append(share - float(network.head.fitted_share))
    if not differences:
        return []
    mean, details = fmean(differences), {"differences": differences}
    return [Row("test_share", EXITS, seed, mean, "fraction", len(differences), details=details)]


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, recipe=here / "recipe.toml")
