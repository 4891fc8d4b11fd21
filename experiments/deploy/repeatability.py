"""Does `hwnas measure` give the same result again while another process keeps one core busy?

A few networks are measured repeatedly, each time by the command in a process of its own. More
networks are measured several times in one session each. Meanwhile another process multiplies
matrices on one core all the time. Recorded measurements are not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from scipy.stats import spearmanr

from experiments.command import run_command
from experiments.readme_table import across
from experiments.record import Results, Row
from experiments.timed_networks import exported
from hwnas.deploy import Target, TimingSettings, measure
from hwnas.errors import RunError
from hwnas.search.evaluation.ranking import spread_over_macs
from hwnas.search_spaces import mobilenet

FOLDER = Path(__file__).parent
COMPETITOR = """
import os, sys
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.sched_setaffinity(0, {int(sys.argv[1])})
import numpy as np
a = np.random.default_rng(0).standard_normal((768, 768), dtype=np.float32)
print("ready", flush=True)
while os.getppid() == int(sys.argv[2]):
    a @ a
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.deploy.repeatability", description=__doc__
    )
    parser.add_argument("--target", default="cpu-onnxruntime-fp32-b1-t1")
    parser.add_argument("--size", type=int, default=128, help="height and width of the images")
    parser.add_argument("--runs", type=int, default=20, help="runs of the command for each network")
    parser.add_argument("--repeated", type=int, default=3, help="networks that have these runs")
    parser.add_argument("--ranked", type=int, default=16, help="networks that are ranked")
    parser.add_argument("--rankings", type=int, default=5)
    parser.add_argument(
        "--patience",
        type=float,
        default=60.0,
        help="longest time to repeat until the latency is as low as before, in seconds",
    )
    parser.add_argument(
        "--core", type=int, default=0, help="core that the other process keeps busy"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "deploy"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    names = ("target", "size", "patience")
    config = {"experiment": "repeatability", **{name: vars(arguments)[name] for name in names}}
    os.environ["HWNAS_HOME"] = str((arguments.work / "repeatability" / "home").absolute())
    results = Results(arguments.out / "repeatability.jsonl", config)
    space = mobilenet((arguments.size, arguments.size, 3), 100)
    networks = spread_over_macs(space, arguments.ranked, 100)
    models = list(exported(space, networks, arguments.work / "repeatability").values())
    spread = range(0, len(models), max(1, len(models) // arguments.repeated))
    repeated = [models[place] for place in spread][: arguments.repeated]
    with competitor(arguments.core):
        for number in range(arguments.runs):
            for place, model in enumerate(repeated):
                if results.find("latency", f"network {place}", number) is None:
                    results.put([by_command(model, arguments, place, number)])
            print(f"run {number}", flush=True)
        for number in range(arguments.rankings):
            if results.find("latency", "ranked 0", number) is None:
                results.put(ranking(models, arguments, number))
                print(f"ranking {number}", flush=True)
    results.put(summary(results.rows))
    print(across([row for row in results.rows if row.metric != "latency"]))


@contextmanager
def competitor(core: int) -> Iterator[None]:
    """Run a competing process on one core while the context is open."""
    command = [sys.executable, "-c", COMPETITOR, str(core), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise RunError("the competing process did not start; see above")
            yield
            if process.poll() is not None:
                raise RunError("the competing process ended before the measurements did")
        finally:
            process.kill()


def by_command(model: Path, arguments: argparse.Namespace, place: int, number: int) -> Row:
    """Run `hwnas measure` once and return its row."""
    options = ["--target", arguments.target, "--patience", str(arguments.patience), "--json"]
    command = [sys.executable, "-m", "hwnas.cli", "measure", str(model), *options]
    began = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    found = json.loads(done.stdout)
    return Row(
        "latency", f"network {place}", number, found["cpu_ms"]["p50"], "ms", found["n"],
        {"p20": found["cpu_ms"]["p20"], "p80": found["cpu_ms"]["p80"]},
        {name: found[name] for name in ("contended", "anchor_ms")}
        | {"wall_ms": found["wall_ms"]["p50"], "seconds": seconds},
    )  # fmt: skip


def ranking(models: Sequence[Path], arguments: argparse.Namespace, number: int) -> list[Row]:
    """Measure all networks in one session."""
    settings = TimingSettings(patience_s=arguments.patience)
    named, target = {str(model): model for model in models}, Target.parse(arguments.target)
    found = measure(named, target, settings)
    return [
        Row("latency", f"ranked {place}", number, each.cpu_ms.p50, "ms", each.n)
        for place, each in enumerate(found.values())
    ]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Return the deviations of the runs from their median, and the agreement of the rankings."""
    runs: dict[str, list[float]] = {}
    sessions: dict[int, list[float]] = {}
    for row in rows:
        if row.metric != "latency" or row.value is None:
            continue
        if row.subject.startswith("network "):
            calm = [] if row.details["contended"] else [f"{row.subject}, calm by their own account"]
            for subject in (row.subject, *calm):
                runs.setdefault(subject, []).append(row.value)
        else:
            sessions.setdefault(row.seed, []).append(row.value)
    found = []
    for subject, values in runs.items():
        middle = median(values)
        off = [abs(value / middle - 1) for value in values]
        share = {"p50": median(off), "most": max(off)}
        found.append(Row("largest_deviation", subject, 0, max(off), "fraction", len(off), share))
    alike = [
        float(spearmanr(*pair).statistic) for pair in itertools.combinations(sessions.values(), 2)
    ]
    if alike:
        spread = {"least": min(alike), "most": max(alike)}
        found.append(Row("spearman", "rankings", 0, median(alike), "rho", len(alike), spread))
    return found


if __name__ == "__main__":
    main()
