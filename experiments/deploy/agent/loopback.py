"""Does an agent on this machine measure the same as the machine itself, and does it lose any jobs?

Networks of the MobileNet space are timed alternately here and through an agent on the same machine.
An agent times in a new process, so the timing here does, too. Then many brief jobs are sent, while
the agent is killed repeatedly at random moments. Recorded rounds are not timed again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.command import run_command
from experiments.deploy.agent.killed import Tally, jobs_under_kills
from experiments.deploy.agent.outside import OutsideAgent
from experiments.readme_table import markdown
from experiments.record import Results, Row
from experiments.timed_networks import exported
from hwnas.deploy import Measurement, Target
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.errors import ConfigError, RunError
from hwnas.search_spaces import mobilenet

FOLDER = Path(__file__).parent
NAME = "loopback"
HERE, THERE = "here", "through the agent"
TARGETS = {HERE: "cpu-onnxruntime-fp32-b1-t1", THERE: f"{NAME}-onnxruntime-fp32-b1-t1"}
P50, RATIO, WORST = "p50_ms", "agent / here", "largest_difference"
JOBS = "jobs while the agent is killed"
CLASSES = 100
PATIENCE_S = 120.0
MEASURE = """
import json, sys
from pathlib import Path
from hwnas.deploy import Target, measure
models = {name: Path(path) for name, path in json.loads(sys.argv[1]).items()}
found = measure(models, Target.parse(sys.argv[2]))
print(json.dumps({name: each.to_json() for name, each in found.items()}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.deploy.agent.loopback", description=__doc__
    )
    parser.add_argument(
        "--rounds", type=int, default=10, help="timing rounds, each here and through the agent"
    )
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="height and width of the images")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument(
        "--kills", type=int, default=20, help="times to kill the agent while it does jobs"
    )
    parser.add_argument(
        "--clients", type=int, default=4, help="clients, of which each waits for a job"
    )
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "deploy"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.kills <= arguments.jobs:
        raise ConfigError(f"--kills is {arguments.kills}; expected 0 to --jobs {arguments.jobs}")
    names = ("networks", "size", "jobs", "kills", "clients")
    config = {"experiment": "agent_loopback", **{name: vars(arguments)[name] for name in names}}
    results = Results(arguments.out / "loopback.jsonl", config)
    recorded = {row.seed for row in results.rows if row.metric == P50}
    missing = [number for number in range(arguments.rounds) if number not in recorded]
    if missing:
        time_rounds(arguments, results, missing)
    results.put(differences(results.rows))
    if results.find("lost", JOBS, 0) is None:
        results.put(rows_of_jobs(arguments.jobs, kill(arguments)))
    print(markdown([row for row in results.rows if row.metric != P50]))


@contextlib.contextmanager
def added_agent() -> Iterator[OutsideAgent]:
    """Yield an agent that is added to a temporary host; both folders are deleted at the end."""
    with tempfile.TemporaryDirectory() as folder, OutsideAgent(Path(folder)) as agent:
        os.environ["HWNAS_HOME"] = str(Path(folder, "host"))
        add_device(NAME, agent.address, agent.token, patience_s=PATIENCE_S)
        yield agent


def time_rounds(arguments: argparse.Namespace, results: Results, rounds: Sequence[int]) -> None:
    space = mobilenet((arguments.size, arguments.size, 3), CLASSES)
    rng = random.Random(0)
    networks = [space.smallest(), *(space.sample(rng) for _ in range(arguments.networks - 1))]
    models = exported(space, networks, arguments.work / f"networks-{arguments.size}")
    with added_agent():
        for number in rounds:
            sides = [HERE, THERE] if number % 2 == 0 else [THERE, HERE]
            found = {side: measured(models, TARGETS[side]) for side in sides}
            results.put(rows_of_round(number, found))
            print(f"round {number}: {len(models)} networks here and through the agent", flush=True)


def measured(models: Mapping[str, Path], target: str) -> dict[str, Measurement]:
    """Return the latencies of networks, measured in a new process."""
    paths = json.dumps({name: str(path) for name, path in models.items()})
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, paths, target], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RunError(f"measuring on {target} ended with status {done.returncode}; see above")
    return {name: Measurement.from_json(each) for name, each in json.loads(done.stdout).items()}


def rows_of_round(number: int, found: Mapping[str, Mapping[str, Measurement]]) -> list[Row]:
    """Return the rows of a round; their seed is the number of the round."""
    return [
        Row(
            P50, f"{network} {side}", number, each.latency_ms, "ms", each.n,
            {"p20": each.headline.p20, "p80": each.headline.p80},
            {"anchor_ms": each.anchor_ms, "contended": each.contended},
        )
        for side, measured in sorted(found.items())
        for network, each in measured.items()
    ]  # fmt: skip


def differences(recorded: Sequence[Row]) -> list[Row]:
    """Return the ratio of median latencies, agent over here, of each network, and the worst."""
    times: dict[str, dict[str, list[float]]] = {}
    for row in recorded:
        if row.metric == P50 and row.value is not None:
            network, _, side = row.subject.partition(" ")
            times.setdefault(network, {}).setdefault(side, []).append(row.value)
    rows = []
    for network, sides in times.items():
        each = np.array(sides[THERE]) / np.array(sides[HERE])
        ratio = float(np.median(sides[THERE]) / np.median(sides[HERE]))
        spread = {"least": float(each.min()), "most": float(each.max())}
        rows.append(Row("ratio", f"{network}, {RATIO}", 0, ratio, "ratio", len(each), spread))
    worst = max(abs((row.value or 0.0) - 1) for row in rows)
    n = sum(row.n for row in rows)
    return [*rows, Row(WORST, "agent and here, all networks", 0, worst, "fraction", n)]


def kill(arguments: argparse.Namespace) -> Tally:
    with added_agent() as agent:
        model = agent.folder.parent / "reference.onnx"
        write_reference_model(model)
        counts = (arguments.jobs, arguments.kills, arguments.clients)
        return jobs_under_kills(agent, model, Target.parse(TARGETS[THERE]), counts)


def rows_of_jobs(jobs: int, found: Tally) -> list[Row]:
    told = {"lost": found.lost[:20], "doubled": found.doubled[:20]}
    values = {
        "answered": found.answered,
        "lost": len(found.lost),
        "doubled": len(found.doubled),
        "begun": found.begun,
        "kills": found.kills,
        "interrupted": found.interrupted,
        "kept": found.kept,
    }
    counted = [
        Row(name, JOBS, 0, float(value), "", jobs, {}, {"told": told[name]} if name in told else {})
        for name, value in values.items()
    ]
    return [*counted, Row("seconds", JOBS, 0, found.seconds, "s", jobs)]


if __name__ == "__main__":
    main()
