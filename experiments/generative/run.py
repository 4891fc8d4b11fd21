"""Does a generator conditioned on limits propose more networks that meet them, and better ones?

Feasibility: in spaces that are too large to list, limits on multiply-accumulates are set that a
tenth to a thousandth of random networks meet. The share of the generator's own draws that meet them
is compared with that of random networks, which rejection sampling would have to draw.

Search: published tables are searched below a limit on their counted cost, which a tenth of their
networks meet. Rejection evaluates random networks that meet it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from experiments.command import data_folder, run_command
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from experiments.search_quality.cases import CASES
from hwnas.search.engine.threads import one_thread
from hwnas.search.objectives.objective import Objective
from hwnas.search.samplers import features_of_space, make_sampler
from hwnas.search.samplers.generative import Generative
from hwnas.search.tables import read_objective_table, tight_box
from hwnas.search.tables.benchmark import features_of_table, searched_rows
from hwnas.search.tables.hints import known_costs
from hwnas.search.tables.table import ObjectiveTable
from hwnas.search_spaces import SearchSpace, hiera, mobilenet, vit

SPACES: Mapping[str, Callable[[], SearchSpace]] = {
    "mobilenet": partial(mobilenet, (32, 32, 3), 10, preset="small"),
    "hiera": partial(hiera, (32, 32, 3), 10, preset="small"),
    "vit": partial(vit, (32, 32, 3), 10, preset="small", merging=(0.2, 0.1, 0)),
}
SHARES = (0.1, 0.01, 0.001)
TABLES = ("ofa-macs", "macro-flops", "channels-resnet-params", "channels-mobilenet-flops")
OURS, REJECTION, GUIDED = "generative", "rejection", "guided"
_DRAWN = 20_000  # random networks by which a limit is set
_PROPOSED = 1000
_ALLOWED = 0.1  # share of a table's networks that meet its limit
_BATCH = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.generative.run", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 to N - 1")
    parser.add_argument("--evals", type=int, default=100)
    parser.add_argument("--spaces", nargs="*", default=list(SPACES), choices=SPACES, metavar="NAME")
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=TABLES, metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    settings = {"seeds": arguments.seeds, "evals": arguments.evals, "proposed": _PROPOSED}
    answers = Results(arguments.out / "results.jsonl", settings)
    for name in arguments.spaces:
        for share in SHARES:
            case = f"{name}-{share:.1%}"
            if answers.find("feasible", f"{case} {OURS}", 0) is None:
                answers.put(feasibility(case, SPACES[name](), share, arguments.seeds))
                print(case, flush=True)
    for name in arguments.tables:
        for method in (OURS, REJECTION, GUIDED):
            if answers.find("lost", f"{name} {method}", 0) is None:
                answers.put([lost(name, method, arguments.evals, arguments.seeds)])
                print(name, method, flush=True)
    print(crosstab(answers.rows))


def feasibility(case: str, space: SearchSpace, share: float, seeds: int) -> list[Row]:
    """Return the shares of networks that meet a limit, and of different ones, by method."""
    found: dict[str, list[float]] = {OURS: [], REJECTION: [], "distinct": []}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        plain = features_of_space(space)
        assert plain.macs is not None
        limit = float(np.quantile(plain.macs(plain.draw(_DRAWN, rng)), share))
        features = features_of_space(space, [Objective("macs", "minimize", limit=limit)])
        with one_thread():
            generator = Generative(seed=seed).generator(features)
            drawn = generator.model.drawn(generator.wanted(_PROPOSED, rng), rng)
        found[OURS].append(float(features.allowed(drawn).mean()))
        found[REJECTION].append(float(features.allowed(features.draw(_DRAWN, rng)).mean()))
        found["distinct"].append(len(np.unique(features.canonical(drawn), axis=0)) / len(drawn))
    methods = (("feasible", OURS), ("feasible", REJECTION), ("distinct", OURS))
    values = (found[OURS], found[REJECTION], found["distinct"])
    return [
        _row(metric, f"{case} {method}", each)
        for (metric, method), each in zip(methods, values, strict=True)
    ]


def lost(name: str, method: str, evals: int, seeds: int) -> Row:
    """Return the hypervolume regret below a limit, in the tight box of the allowed networks."""
    case = CASES[name]
    assert case.known is not None
    table = below_limit(read_objective_table(case.objectives(data_folder())), case.known)
    box, values = tight_box(table), []
    for seed in range(seeds):
        features = features_of_table(table, known_costs(table, case.known))
        rows = (
            np.random.default_rng(seed).permutation(len(table.codes))[:evals]
            if method == REJECTION
            else searched_rows(
                table, make_sampler(method, seed, {}, evals, _BATCH, features), evals
            )[0]
        )
        values.append(1 - box.share(np.unique(rows)))
    return _row("lost", f"{name} {method}", values)


def below_limit(table: ObjectiveTable, known: str) -> ObjectiveTable:
    """Return the networks of a table whose known cost is among the lowest tenth."""
    cost = next(column.values for column in table.columns if column.array == known)
    rows = np.flatnonzero((cost <= np.quantile(cost, _ALLOWED)) & table.connected)
    columns = tuple(replace(column, values=column.values[rows]) for column in table.columns)
    return ObjectiveTable(table.space, table.codes[rows], columns)


def _row(metric: str, subject: str, values: list[float]) -> Row:
    spread = {"std": stdev(values)} if len(values) > 1 else {}
    details = {"seeds": [round(value, 5) for value in values]}
    return Row(metric, subject, 0, fmean(values), "ratio", len(values), spread, details)


if __name__ == "__main__":
    main()
