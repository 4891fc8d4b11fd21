"""Do MACs or the device predictor rank networks of convolution and attention better?

Random networks of `hybrid` are timed on this machine, together with the networks that calibrations
with several seeds choose. Each calibration gives a predictor, which is scored on the random
networks. Networks are timed and recorded in blocks that mix both kinds, so an interrupted run
resumes.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from experiments.command import run_command
from experiments.foretold import judge
from experiments.readme_table import crosstab
from experiments.record import Results
from experiments.timed_networks import exported, latency_row, networks_to_time
from hwnas.deploy import Target, measure
from hwnas.search.engine.cluster import local_ray
from hwnas.search_spaces import Architecture, SearchSpace
from hwnas.search_spaces.hybrid import hybrid

FOLDER = Path(__file__).parent
CASES = {"small": ((32, 32, 3), 10), "large": ((224, 224, 3), 1000)}
"""Shape of the images and number of classes, by preset."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.hybrid_latency.run", description=__doc__
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--networks", type=int, default=200, help="random networks for the test")
    parser.add_argument("--timed", type=int, default=20, help="networks of a calibration")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the calibrations"
    )
    parser.add_argument("--target", default="cpu-onnxruntime-fp32-b1-t1")
    parser.add_argument(
        "--block", type=int, default=40, help="networks whose timing is interleaved"
    )
    parser.add_argument("--workers", type=int, default=2, help="exports at the same time")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "hybrid_latency"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    target, seeds, count = Target.parse(arguments.target), arguments.seeds, arguments.networks
    config = {"networks": count, "timed": arguments.timed, "target": target.name}
    answers, timings = (
        Results(arguments.out / f"{name}.jsonl", config) for name in ("results", "observations")
    )
    for case in arguments.cases:
        space = hybrid(*CASES[case], preset=case)
        chosen = {s: networks_to_time(space, target.name, arguments.timed, s) for s in seeds}
        drawn = random_networks(space, count)
        wanted = {a.id: a for some in (drawn, *chosen.values()) for a in some}
        time_missing(case, space, list(wanted.values()), target, timings, arguments)
        rows = {row.subject.removeprefix(f"{case} "): row for row in timings.rows}
        for seed, some in chosen.items():
            known = [rows[a.id] for a in some]
            asked = [rows[a.id] for a in drawn if a not in some]
            answers.put(judge(space, target, known, asked, seed, f"{case} "))
    print(crosstab(answers.rows))


def random_networks(space: SearchSpace, count: int) -> list[Architecture]:
    """Return random networks that do not depend on the calibration."""
    rng = random.Random("unseen")
    drawn: dict[Architecture, None] = {}
    while len(drawn) < count:
        drawn[space.sample(rng)] = None
    return list(drawn)


def time_missing(
    case: str,
    space: SearchSpace,
    networks: Sequence[Architecture],
    target: Target,
    timings: Results,
    arguments: argparse.Namespace,
) -> None:
    """Time the networks that are not recorded, in blocks of both kinds, each in one session."""
    recorded = {row.subject for row in timings.rows}
    missing = [a for a in networks if f"{case} {a.id}" not in recorded]
    if not missing:
        return
    random.Random(0).shuffle(missing)
    workers, size = arguments.workers, arguments.block
    print(f"{case}: {len(missing)} networks to export and time", flush=True)
    with local_ray(workers) if workers else nullcontext():
        models = exported(space, missing, arguments.work / case, workers)
    for start in range(0, len(missing), size):
        block = missing[start : start + size]
        measured = measure({a.id: models[a.id] for a in block}, target)
        about = {"case": case, "block": start // size}
        timings.put(
            latency_row(space, a, measured[a.id], 0, about, prefix=f"{case} ") for a in block
        )
        disturbed = sum(m.contended for m in measured.values())
        print(f"{case}: timed {start + len(block)}/{len(missing)}, {disturbed} of this block "
              "disturbed by other processes", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
