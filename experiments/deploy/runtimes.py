"""Which runtime is the fastest on this processor, for networks of all spaces in single precision?

The networks are random and untrained, at the published sizes. On each network, the timing of all
runtimes is interleaved; runtimes that compile need a minute or more per network. Recorded networks
are not measured again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from experiments.command import run_command
from experiments.deploy.networks import SPACES, exported_anew
from experiments.readme_table import across
from experiments.record import Results, Row
from hwnas.deploy import RUNTIMES, Device, Target, measure_together
from hwnas.deploy.measurement.measurement import TimedNetwork

FOLDER = Path(__file__).parent
DEFAULT = "onnxruntime"
"""Default runtime of recipes, and so the baseline of all others."""


CPU_RUNTIMES = (
    "onnxruntime",
    "openvino",
    "mnn",
    "pytorch",
    "pytorch_nhwc",
    "pytorch_compile",
    "aotinductor",
)
"""Runtimes that can be installed for this machine's processor, in the order of the rows."""


def usable() -> list[str]:
    """Return the names of the runtimes that are usable on this machine's processor."""
    return [name for name in CPU_RUNTIMES if RUNTIMES[name].unavailable() is None]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.deploy.runtimes", description=__doc__
    )
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--networks", type=int, default=2, help="random networks of each space")
    parser.add_argument("--runtimes", nargs="+", help="all usable runtimes if not given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "deploy"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    runtimes = arguments.runtimes or usable()
    config = {"experiment": "runtimes", "runtimes": runtimes, "threads": arguments.threads}
    results = Results(arguments.out / "runtimes.jsonl", config)
    for subject, model, _ in exported_anew(arguments.spaces, arguments.networks, results):
        results.put(timed(subject, model, runtimes, arguments.threads))
    results.put(summary(results.rows, runtimes))
    print(across([row for row in results.rows if row.metric != "latency"]))


def timed(subject: str, model: Path, runtimes: Sequence[str], threads: int) -> list[Row]:
    """Time a network on all runtimes, interleaved."""
    subjects = {
        name: TimedNetwork(model, Target(Device("cpu", name, threads=threads))) for name in runtimes
    }
    return [
        Row("latency", f"{subject} {name}", 0, found.latency_ms, "ms", found.n,
            {"p20": found.headline.p20, "p80": found.headline.p80},
            {"clock": found.clock, "contended": found.contended, "versions": dict(found.versions)})
        for name, found in measure_together(subjects).items()
    ]  # fmt: skip


def summary(rows: Sequence[Row], runtimes: Sequence[str]) -> list[Row]:
    """Return each runtime's geometric mean of time over the default's, and its share of wins."""
    times: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.metric == "latency" and row.value is not None:
            network, _, runtime = row.subject.rpartition(" ")
            times.setdefault(network, {})[runtime] = row.value
    found = []
    for name in runtimes:
        ratios = [own[name] / own[DEFAULT] for own in times.values() if {name, DEFAULT} <= {*own}]
        wins = [min(own, key=own.__getitem__) == name for own in times.values()]
        if ratios:
            mean = math.exp(fmean(map(math.log, ratios)))
            ends = {"least": min(ratios), "most": max(ratios)}
            found.append(Row("ratio", f"{name} / {DEFAULT}", 0, mean, "ratio", len(ratios), ends))
            found.append(Row("fastest", name, 0, fmean(wins), "fraction", len(wins)))
    return found


if __name__ == "__main__":
    main()
