"""How long does a sampler take to learn from 200 evaluations and to propose ten more?

Everything is learnt from scratch, including hyperparameters. There are two cases: a published table
of 15,625 cells, all of which are scored, and the space `mobilenet`, which is too large to list. In
the latter, accuracies are synthetic and both objectives are learnt.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.command import data_folder, run_command
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from experiments.search_quality.cases import CASES
from hwnas.errors import ConfigError
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search.engine.threads import one_thread
from hwnas.search.samplers import BatchSampler, SpaceFeatures, features_of_space, make_sampler
from hwnas.search.samplers.base.batch import History, keys_of
from hwnas.search.tables import read_objective_table
from hwnas.search.tables.benchmark import features_of_table
from hwnas.search_spaces import mobilenet
from hwnas.search_spaces.tabular import Codes

FOLDER = Path(__file__).parent
SAMPLERS = ("guided", "linas", "forest", "surrogate-nsga2")
OBSERVATIONS, PROPOSALS = 200, 10
_SIGNS = np.array([-1.0, 1.0])  # accuracies are maximised, costs minimised


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.search_quality.refit", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds is {arguments.seeds}; expected at least 1")
    answers = Results(arguments.out / "refit.jsonl", {"n": OBSERVATIONS, "of": PROPOSALS})
    for name, features, codes, values in spaces():
        for seed in range(-1, arguments.seeds):  # the first is a warm-up
            for sampler in SAMPLERS:  # alternating
                drawn = np.random.default_rng([seed + 1]).permutation(len(codes))[:OBSERVATIONS]
                rows = timed(name, sampler, features, codes[drawn], values[drawn], seed)
                if seed >= 0:
                    answers.put(rows)
    print(crosstab(answers.rows))


def spaces() -> Iterator[tuple[str, SpaceFeatures, Codes, Numbers]]:
    """Yield names, features, networks, and their accuracies and costs."""
    table = read_objective_table(CASES["fpga-unknown"].objectives(data_folder()))
    values = np.column_stack([column.values for column in table.columns])
    yield "table", features_of_table(table, {}), table.codes, values
    space = mobilenet((32, 32, 3), 10)
    features = features_of_space(space)
    rng = np.random.default_rng(0)
    codes = np.unique(features.draw(2000, rng), axis=0)
    macs = space.counted(codes)["macs"].astype(np.float64)
    accuracy = np.log(macs) + 0.3 * rng.normal(size=features.sizes.shape) @ codes.T
    yield "mobilenet", features, codes, np.column_stack([accuracy, macs])


def timed(
    space: str,
    name: str,
    features: SpaceFeatures,
    codes: Codes,
    values: Numbers,
    seed: int,
) -> list[Row]:
    """Return wall and CPU seconds of one sampler that starts from the given evaluations."""
    sampler = make_sampler(name, 0, {}, 2 * OBSERVATIONS, PROPOSALS, features)
    assert isinstance(sampler, BatchSampler)
    none = np.zeros((len(codes), 0))
    history = History(codes, values, _SIGNS, (), none, frozenset(keys_of(codes)))
    wall, cpu = time.perf_counter(), time.process_time()
    with one_thread():  # as in a search
        proposed = sampler.plan(features, history, PROPOSALS, np.random.default_rng(0))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if len(proposed) != PROPOSALS:
        raise ConfigError(f"{name} proposed {len(proposed)} networks; expected {PROPOSALS}")
    subject = f"{space} {name}"
    return [
        Row("seconds", subject, seed, wall, "s", PROPOSALS),
        Row("cpu_seconds", subject, seed, cpu, "s", PROPOSALS),
    ]


if __name__ == "__main__":
    main()
