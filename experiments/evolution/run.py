"""How fast is tensorised evolution, compared with pymoo and with a short loop on a fast sort?

The problem is DTLZ2 with 24 variables. Speed is the number of individuals per second over a few
generations at several population sizes; each round times all sides and has a seed of its own.
Quality is hypervolume and IGD after equally many generations of equally large populations. Without
pymoo, only the other sides are compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.command import run_command
from experiments.evolution.rivals import SIDES, can_evolve
from experiments.readme_table import crosstab
from experiments.record import Results, Row
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.search.engine.threads import one_thread
from hwnas.search.evolution import ALGORITHMS
from hwnas.search.evolution.benchmark import front_quality

FOLDER = Path(__file__).parent
SPEED, CPU, VOLUME, DISTANCE = (
    "individuals a second",
    "CPU time an individual",
    "hypervolume",
    "igd",
)
_TRIED_OUT = 100, 3  # population and generations of a warm-up, since the first use is slow


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.evolution.run", description=__doc__
    )
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--populations", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--generations", type=int, default=20, help="generations for the speed")
    parser.add_argument(
        "--rounds", type=int, default=5, help="interleaved rounds, each with its own seed"
    )
    parser.add_argument(
        "--pymoo-most",
        type=int,
        default=10_000,
        help="largest population of pymoo; its time is quadratic",
    )
    parser.add_argument("--quality-population", type=int, default=300)
    parser.add_argument("--quality-generations", type=int, default=200)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds for the quality"
    )
    parser.add_argument("--on", default="cpu", help="device for hwnas: cpu or cuda")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    for name in arguments.algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(f"unknown algorithm {name!r}; {closest(name, ALGORITHMS)}")
    config = {
        "generations": arguments.generations,
        "quality": [arguments.quality_population, arguments.quality_generations],
        "on": arguments.on,
        "sides": list(SIDES),
    }
    observed = Results(arguments.out / "observations.jsonl", config)
    answers = Results(arguments.out / "results.jsonl", config)
    with one_thread():  # the test function is too cheap for more threads
        for turn in range(arguments.rounds):
            for population in arguments.populations:
                time_round(observed, population, turn, arguments)
        for seed in arguments.seeds:
            judge_seed(observed, seed, arguments)
    answers.put(summary(observed.rows))
    print(crosstab(answers.rows))


def time_round(
    observed: Results, population: int, turn: int, arguments: argparse.Namespace
) -> None:
    """Time all sides of a round one after the other, unless their times are recorded.

    The order of the sides rotates with the round. If any time is missing, all sides are timed
    again.
    """
    sides = [
        (name, side)
        for name in arguments.algorithms
        for side in SIDES
        if can_evolve(side, name) and (side == "hwnas" or name == "nsga2")
        if "pymoo" not in side or population <= arguments.pymoo_most
    ]
    subjects = [f"{name}-{population} {side}" for name, side in sides]
    if all(observed.find(SPEED, subject, turn) for subject in subjects):
        return
    rows = []
    count = population * arguments.generations
    todo = [*zip(sides, subjects, strict=True)]
    first = turn % len(todo)
    for (name, side), subject in todo[first:] + todo[:first]:
        print(f"round {turn}: {subject}", flush=True)
        SIDES[side](name, *_TRIED_OUT, turn, arguments.on)
        start, cpu_start = time.perf_counter(), time.process_time()
        SIDES[side](name, population, arguments.generations, turn, arguments.on)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        rows.append(Row(SPEED, subject, turn, count / wall, "", count))
        rows.append(Row(CPU, subject, turn, 1e6 * cpu / count, "us", count))
    observed.put(rows)


def judge_seed(observed: Results, seed: int, arguments: argparse.Namespace) -> None:
    """Record the quality of each front, unless it is recorded already."""
    population, generations = arguments.quality_population, arguments.quality_generations
    for name in arguments.algorithms:
        for side in ("hwnas", "moocore-loop", "pymoo"):
            subject = f"{name}-{population}x{generations} {side}"
            if not can_evolve(side, name) or observed.find(VOLUME, subject, seed):
                continue
            print(f"seed {seed}: {subject}", flush=True)
            front = SIDES[side](name, population, generations, seed, arguments.on)
            volume, distance = front_quality(front)
            observed.put(
                [
                    Row(VOLUME, subject, seed, volume, "", population),
                    Row(DISTANCE, subject, seed, distance, "", population),
                ]
            )


def summary(observed: Sequence[Row]) -> list[Row]:
    """Return medians with their range, and our speed-up over each competitor.

    On the wall clock, the speed-up is a ratio of speeds. In CPU time, which contention affects
    less, it is a ratio of times.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in observed:
        groups.setdefault((row.metric, row.subject), []).append(row)
    answers = []
    for (metric, subject), rows in groups.items():
        values = [row.value for row in rows if row.value is not None]
        spread = {"least": min(values), "most": max(values)}
        answers.append(Row(metric, subject, 0, median(values), rows[0].unit, len(values), spread))
    for metric in (SPEED, CPU):
        for subject in [subject for of, subject in groups if of == metric]:
            case, _, side = subject.rpartition(" ")
            ours = groups.get((metric, f"{case} hwnas"))
            if side == "hwnas" or not ours:
                continue
            theirs = groups[metric, subject]
            if metric == SPEED:
                answers.append(ratio_of(metric, f"{case} hwnas/{side}", ours, theirs))
            else:
                answers.append(ratio_of(metric, f"{case} {side}/hwnas", theirs, ours))
    return answers


def ratio_of(metric: str, subject: str, above: Sequence[Row], below: Sequence[Row]) -> Row:
    """Return the median over rounds of the ratio within a round, with its range."""
    of = {row.seed: row.value or 0.0 for row in below}
    rounds = [(row.value or 0.0) / of[row.seed] for row in above if row.seed in of]
    spread = {"least": min(rounds), "most": max(rounds)}
    return Row(metric, subject, 0, median(rounds), "ratio", len(rounds), spread)


if __name__ == "__main__":
    main()
