"""Compute the zero-cost scores of all networks of NAS-Bench-201, which hwnas ships.

The scores are those of a small copy: one cell per stage on images of 16 x 16 pixels. Edges that
lead nowhere are left out, so networks that differ only in such edges have the same scores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from experiments.command import run_command
from hwnas.predictors.features.shipped_scores import FOLDER, SCORES, write_scores
from hwnas.predictors.features.zero_cost import proxies_of
from hwnas.search_spaces.cells import CellSpace
from hwnas.search_spaces.tabular import NasBench201Space

_SMALL = CellSpace((16, 16, 3), outputs=10, channels=16, cells=1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.zero_cost.ship", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0 to N - 1, for the mean")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    space = NasBench201Space()
    codes = np.indices(space.options).reshape(len(space.options), -1).T
    different, which = np.unique(space.canonical(codes), axis=0, return_inverse=True)
    scores = np.zeros((len(different), len(SCORES)))
    for number, code in enumerate(different):
        architecture = _SMALL.architecture_of(code)
        for seed in range(arguments.seeds):
            found = proxies_of(_SMALL, architecture, seed=seed).as_dict()
            scores[number] += [found[name] / arguments.seeds for name in SCORES]
        if number % 500 == 0:
            print(f"{number} of {len(different)}", flush=True)
    write_scores(arguments.out, space, scores[which.reshape(-1)])


if __name__ == "__main__":
    main()
