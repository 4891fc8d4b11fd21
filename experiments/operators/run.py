"""Which strategy finds the best cell of NAS-Bench-201 in the same time, at a reduced size?

Each method searches cells of 8 channels, one a stage, on small images of CIFAR-10. The answer is
the published accuracy of the cell that it finds, at full size after 200 epochs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, count
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from experiments.command import data_folder
from experiments.record import Row
from experiments.setting import Setting, main
from hwnas.search import SearchOptions, StudyStorage, SupernetEvaluator, run_search
from hwnas.search.engine.threads import torch_threads
from hwnas.search.objectives.objective import Objective
from hwnas.search.strategies import AdditiveCost, make_strategy
from hwnas.search.strategies.distribution import ArchitectureDistribution
from hwnas.search.strategies.learning import DistributionLearning
from hwnas.search.training import SupernetTraining, TrainConfig, load_weights, train_supernet
from hwnas.search_spaces import Architecture, CellSpace, Supernet
from hwnas.stages.run_inputs import RunInputs

MINUTES = 4.0
STRATEGIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "proxyless": ("proxyless", {}),
    "gdas": ("gdas", {}),
    "pc-darts": ("pc-darts", {}),
    "pc-darts without edge normalisation": ("pc-darts", {"edge_normalisation": False}),
    "reinforce": ("reinforce", {}),
}
"""Name and options of each strategy."""
SAMPLERS = "guided", "random"
"""Samplers that search a supernet which is trained first."""
WEIGHTS = 0.1, 0.3, 1.0, 3.0
"""Weights of the relative cost, for the front of one strategy."""
SMALL_WEIGHTS, LIMITS = (0.01, 0.03), (0.5, 1.0, 2.0)
"""Further weights, and limits on the expected relative cost, which are no setting of other rows."""
FRONT = "proxyless"
_TRAINING_SHARE = 0.6  # of the minutes, for a supernet that is searched afterwards
_ENDLESS = 10_000.0  # epochs
_BATCH = 8
_ACCURACY = Objective("accuracy", "maximize")

Found = tuple[CellSpace, Architecture]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="M")


def work(arguments: argparse.Namespace) -> None:
    minutes = arguments.minutes
    setting = Setting(arguments, {"minutes": minutes, "weights": WEIGHTS})
    table = Published.read(data_folder() / "nasbench" / "nasbench201.npz")
    with torch_threads(2):
        for seed in setting.seeds:
            for name, search in searches(setting.run_inputs(seed), minutes).items():
                observe(setting, table, name, seed, search)
            setting.answer(answers(setting, table, seed))
    setting.answer(agreements(setting))
    setting.show()


def searches(i: RunInputs, minutes: float) -> Mapping[str, Callable[[], Found]]:
    """Return the searches of a seed by the name of their method."""
    return {
        **{name: partial(by_strategy, i, name, minutes) for name in STRATEGIES},
        **{name: partial(by_sampler, i, name, minutes) for name in SAMPLERS},
        **{
            f"{FRONT}, cost {kind} {value:g}": partial(
                by_strategy, i, FRONT, minutes, {f"cost_{kind}s": [value]}
            )
            for kind, values in (("limit", LIMITS), ("weight", (*SMALL_WEIGHTS, *WEIGHTS)))
            for value in values
        },
    }


@dataclass(frozen=True)
class Published:
    """Published results of all cells.

    Attributes:
        accuracy: Test accuracy on CIFAR-10 after 200 epochs, by row.
        macs: Multiply-accumulates, by row.
        row: Row of each cell, by the bytes of its operations.
    """

    accuracy: np.ndarray
    macs: np.ndarray
    row: Mapping[bytes, int]

    @classmethod
    def read(cls, path: Path) -> Published:
        """Read the table."""
        with np.load(path) as arrays:
            rows = {ops.tobytes(): i for i, ops in enumerate(arrays["ops"].astype(np.int64))}
            return cls(arrays["cifar10_test_acc200"] / 100, arrays["cifar10_macs"], rows)

    def of(self, space: CellSpace, cell: Architecture) -> tuple[float, int]:
        """Return accuracy and multiply-accumulates of a cell."""
        _, rows = space.published(space.encode(cell)[None])
        place = self.row[np.ascontiguousarray(rows[0], dtype=np.int64).tobytes()]
        return float(self.accuracy[place]), int(self.macs[place])


def observe(
    setting: Setting, table: Published, method: str, seed: int, search: Callable[[], Found]
) -> None:
    """Record the published accuracy of the cell that a search finds, unless it is recorded."""
    if setting.observations.find("accuracy", method, seed) is not None:
        return
    begun = time.perf_counter()
    space, cell = search()
    seconds = time.perf_counter() - begun
    accuracy, macs = table.of(space, cell)
    print(f"seed {seed}: {method}: {accuracy:.4f} in {seconds:.0f} s", flush=True)
    details = {"cell": list(cell.as_dict().values()), "macs": macs, "seconds": seconds}
    setting.observations.put(
        [Row("accuracy", method, seed, accuracy, "fraction", 1, details=details)]
    )


def by_strategy(
    i: RunInputs, name: str, minutes: float, cost: Mapping[str, Any] | None = None
) -> Found:
    """Return the most probable cell that a strategy learns; the cost has no weight if not given."""
    kind, given = STRATEGIES[name]
    cost = {"cost_weights": [0.0]} if cost is None else cost
    strategy = make_strategy(kind, {**given, "epochs": _ENDLESS, "minutes": minutes, **cost})
    space = i.space
    assert isinstance(space, CellSpace)
    macs = AdditiveCost.fit(space, lambda codes: space.counted(codes)["macs"].astype(float))
    learning = _Kept(strategy, macs)
    train(i, space, strategy.training(i.recipe.train), learning)
    (distribution,) = learning.found
    return space, distribution.most_probable(0)


@dataclass(frozen=True)
class _Kept(DistributionLearning):
    """Learning that keeps the distributions in memory."""

    found: list[ArchitectureDistribution] = field(default_factory=list)

    def save(self, supernet: Supernet, folder: Path) -> None:
        """Keep the distributions."""
        distribution = supernet.distribution
        assert isinstance(distribution, ArchitectureDistribution)
        self.found.append(distribution)


def by_sampler(i: RunInputs, name: str, minutes: float) -> Found:
    """Return the best cell on validation images that a sampler finds in a trained supernet."""
    begun, seed, space = time.perf_counter(), i.recipe.seed, i.space
    assert isinstance(space, CellSpace)
    settings = {"epochs": _ENDLESS, "budget_minutes": _TRAINING_SHARE * minutes}
    weights = train(i, space, replace(i.recipe.train, **settings))
    evaluator = SupernetEvaluator(space, i.task, i.data, weights, threads=2)
    with tempfile.TemporaryDirectory() as folder:
        for trials in count(_BATCH, _BATCH):
            known = SearchOptions(trials, name, seed=seed, batch=_BATCH)
            storage = StudyStorage(Path(folder) / "study.db")
            found = run_search(space, [_ACCURACY], evaluator, known, storage=storage)
            if time.perf_counter() - begun >= 60 * minutes:
                return space, found.trials[0].candidate.network
    raise AssertionError


def train(
    i: RunInputs, space: CellSpace, config: TrainConfig, learning: _Kept | None = None
) -> dict[str, np.ndarray]:
    """Train a supernet, and return its weights."""
    with tempfile.TemporaryDirectory() as folder:
        file = train_supernet(
            SupernetTraining(
                *(space, i.task, i.data, config, i.recipe.seed, "", Path(folder)), learned=learning
            )
        )
        return {name: tensor.numpy() for name, tensor in load_weights(file).items()}


def answers(setting: Setting, table: Published, seed: int) -> list[Row]:
    """Return the published accuracy by method; the median and the best cell stand beside them."""
    median, best = float(np.median(table.accuracy)), float(table.accuracy.max())
    found = [
        Row("table_accuracy", "median cell", seed, median, "fraction", len(table.accuracy)),
        Row("table_accuracy", "best cell", seed, best, "fraction", len(table.accuracy)),
    ]
    for row in setting.observations.rows:
        if row.seed == seed:
            found.append(Row("table_accuracy", row.subject, seed, row.value, "fraction", 1))
            macs = row.details["macs"] / 1e6
            found.append(Row("million_macs", row.subject, seed, macs, "million", 1))
            seconds = row.details["seconds"]
            found.append(Row("seconds", row.subject, seed, seconds, "s", 1))
    return found


def agreements(setting: Setting) -> list[Row]:
    """Return the share of edges on which two seeds choose the same operation, by strategy."""
    found = []
    for name in STRATEGIES:
        cells = [row.details["cell"] for row in setting.observations.rows if row.subject == name]
        pairs = list(combinations(cells, 2))
        if pairs:
            same = fmean(a == b for pair in pairs for a, b in zip(*pair, strict=True))
            found.append(Row("same_operations", name, 0, same, "fraction", len(pairs)))
    return found


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, options, range(5), recipe=here / "recipe.toml")
