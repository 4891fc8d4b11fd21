"""How fast is tensorised evolution, and does it come as near to the front as pymoo does?

DTLZ2 with 24 variables. Speed: individuals a second over a few generations at several population
sizes, ours and pymoo's NSGA-II in turns. Quality: hypervolume and IGD after equally many
generations of equally large populations. Without pymoo, ours alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.command import run_command
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.search.evolution import ALGORITHMS, EvolveRow, bench_evolve
from hwnas.search.evolution.benchmark import VARIABLES, front_quality
from hwnas.search.evolution.directions import lattice_within

FOLDER = Path(__file__).parent
SPEED, VOLUME, DISTANCE = "individuals a second", "hypervolume", "igd"
_OBJECTIVES = 3
_IN_PYMOO = ("nsga2", "nsga3")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.evolution.run", description=__doc__
    )
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--populations", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--generations", type=int, default=20, help="of which the speed is taken")
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turns")
    parser.add_argument(
        "--pymoo-most", type=int, default=10_000, help="its largest population; its time is squared"
    )
    parser.add_argument("--quality-population", type=int, default=300)
    parser.add_argument("--quality-generations", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the quality")
    parser.add_argument("--on", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    for name in arguments.algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(f"unknown algorithm {name!r}; {closest(name, ALGORITHMS)}")
    rivals = importlib.util.find_spec("pymoo") is not None
    config = {
        "generations": arguments.generations,
        "quality": [arguments.quality_population, arguments.quality_generations],
        "on": arguments.on,
    }
    observed = Results(arguments.out / "observations.jsonl", config)
    for turn in range(arguments.rounds):
        for population in arguments.populations:
            for name in arguments.algorithms:
                time_once(observed, name, population, turn, arguments, "hwnas")
            if rivals and "nsga2" in arguments.algorithms and population <= arguments.pymoo_most:
                time_once(observed, "nsga2", population, turn, arguments, "pymoo")
    for seed in arguments.seeds:
        for name in arguments.algorithms:
            judge_once(observed, name, seed, arguments, "hwnas")
            if rivals and name in _IN_PYMOO:
                judge_once(observed, name, seed, arguments, "pymoo")
    answers = Results(arguments.out / "results.jsonl", config)
    answers.put(summary(observed.rows))
    print(crosstab(answers.rows))


def time_once(
    observed: Results,
    name: str,
    population: int,
    turn: int,
    arguments: argparse.Namespace,
    by: str,
) -> None:
    """Time one evolution, unless that was done."""
    subject = f"{name}-{population} {by}"
    if observed.find(SPEED, subject, turn) is None:
        print(f"round {turn}: {subject}", flush=True)
        row = _run(by)(name, population, arguments.generations, turn, arguments.on)
        speed, n = row.individuals_per_second, population * arguments.generations
        observed.put([Row(SPEED, subject, turn, speed, "", n, details={"device": row.device})])


def judge_once(
    observed: Results, name: str, seed: int, arguments: argparse.Namespace, by: str
) -> None:
    """How near one evolution comes to the front, unless that was done."""
    population, generations = arguments.quality_population, arguments.quality_generations
    subject = f"{name}-{population}x{generations} {by}"
    if observed.find(VOLUME, subject, seed) is None:
        print(f"seed {seed}: {subject}", flush=True)
        row = _run(by)(name, population, generations, seed, arguments.on)
        observed.put(
            [
                Row(VOLUME, subject, seed, row.hypervolume, "", population),
                Row(DISTANCE, subject, seed, row.igd, "", population),
            ]
        )


def _run(by: str) -> Callable[[str, int, int, int, str], EvolveRow]:
    return {"hwnas": ours, "pymoo": pymoos}[by]


def ours(name: str, population: int, generations: int, seed: int, device: str) -> EvolveRow:
    """The benchmark of the package."""
    return bench_evolve(name, population, generations, _OBJECTIVES, device, seed)


def pymoos(name: str, population: int, generations: int, seed: int, device: str) -> EvolveRow:
    """The same with pymoo, whose defaults are kept."""
    from pymoo.optimize import minimize
    from pymoo.problems import get_problem

    problem = get_problem("dtlz2", n_var=VARIABLES, n_obj=_OBJECTIVES)
    algorithm = _of_pymoo(name, population)
    start = time.perf_counter()
    found = minimize(problem, algorithm, ("n_gen", generations), seed=seed, verbose=False)
    speed = population * generations / (time.perf_counter() - start)
    volume, distance = front_quality(found.F)
    return EvolveRow(name, population, speed, volume, distance, "cpu")


def _of_pymoo(name: str, population: int) -> Any:
    if name == "nsga2":
        from pymoo.algorithms.moo.nsga2 import NSGA2

        return NSGA2(pop_size=population)
    from pymoo.algorithms.moo.nsga3 import NSGA3

    return NSGA3(lattice_within(_OBJECTIVES, population), pop_size=population)


def summary(observed: Sequence[Row]) -> list[Row]:
    """Medians with their range, and how many times as fast as pymoo ours is."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in observed:
        groups.setdefault((row.metric, row.subject), []).append(row)
    answers = []
    for (metric, subject), rows in groups.items():
        values = [row.value for row in rows if row.value is not None]
        spread = {"least": min(values), "most": max(values)}
        answers.append(Row(metric, subject, 0, median(values), "", len(values), spread))
    for subject in [subject for metric, subject in groups if metric == SPEED]:
        case, _, by = subject.rpartition(" ")
        rival = groups.get((SPEED, f"{case} pymoo"))
        if by == "hwnas" and rival:
            answers.append(_times_as_fast(case, groups[SPEED, subject], rival))
    return answers


def _times_as_fast(case: str, ours: Sequence[Row], theirs: Sequence[Row]) -> Row:
    """The ratio of the medians, and the range of the rounds'."""
    speeds = [[row.value or 0.0 for row in rows] for rows in (ours, theirs)]
    rounds = [mine / other for mine, other in zip(*speeds, strict=True)]
    spread = {"least": min(rounds), "most": max(rounds)}
    ratio = median(speeds[0]) / median(speeds[1])
    return Row(SPEED, f"{case} hwnas/pymoo", 0, ratio, "ratio", len(rounds), spread)


if __name__ == "__main__":
    main()
