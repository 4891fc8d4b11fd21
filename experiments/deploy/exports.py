"""How long do the export of a network and the check of its bundle take, and how exact is the file?

The networks are random and untrained, from every space, at the published size of images. Recorded
networks are not exported again.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from pathlib import Path

import numpy as np
import torch

from experiments.command import run_command
from experiments.deploy.networks import SPACES, packed
from experiments.readme_table import across
from experiments.record import Results, Row
from hwnas.errors import HwnasError
from hwnas.search_spaces import Architecture, SearchSpace

FOLDER = Path(__file__).parent
WANTED_S, WANTED_ERROR = 10.0, 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.deploy.exports", description=__doc__
    )
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(SPACES))
    parser.add_argument("--networks", type=int, default=50, help="number of networks of each space")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "deploy"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(arguments.threads)
    config = {"experiment": "exports", "threads": arguments.threads}
    results = Results(arguments.out / "exports.jsonl", config)
    for name in arguments.spaces:
        space, rng = SPACES[name](), random.Random(0)
        for index, architecture in enumerate(space.sample(rng) for _ in range(arguments.networks)):
            if results.find("seconds", f"{name} {index}", 0) is None:
                rows = observed(name, space, index, architecture, arguments.work / "exports")
                results.put(rows)
        results.put(summary(name, results.rows))
        print(f"{name}: {arguments.networks} networks", flush=True)
    print(across([row for row in results.rows if row.subject in SPACES]))


def observed(
    name: str, space: SearchSpace, index: int, architecture: Architecture, folder: Path
) -> list[Row]:
    """Export, pack and verify one network, and return its rows."""
    subject, details = f"{name} {index}", {"network": architecture.id}
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    try:
        outputs = 1000 if space.input_shape(architecture)[1] > 64 else 10
        made, bundle = packed(space, architecture, outputs, folder, name)
        packed_s = time.perf_counter() - began
        bundle.verify()
    except HwnasError as error:
        details["error"] = str(error)
        return [Row("seconds", subject, 0, None, "s", 1, {}, details)]
    whole_s = time.perf_counter() - began
    details |= {"export_s": made.seconds, "pack_s": packed_s - made.seconds}
    return [
        Row("seconds", subject, 0, whole_s, "s", 1, {}, details),
        Row("max_relative_error", subject, 0, made.max_relative_error, "fraction", made.batches),
    ]


def summary(name: str, rows: list[Row]) -> list[Row]:
    """Return the summary rows of a space."""
    own = [row for row in rows if row.subject.startswith(f"{name} ")]
    seconds = [row.value for row in own if row.metric == "seconds"]
    errors = [row.value for row in own if row.metric == "max_relative_error"]
    times = [value for value in seconds if value is not None]
    exact = [value for value in errors if value is not None and value < WANTED_ERROR]
    if not times:
        return []
    spread = dict(zip(("p50", "most"), np.quantile(times, [0.5, 1.0]).tolist(), strict=True))
    n = len(seconds)
    return [
        Row("median_seconds", name, 0, spread["p50"], "s", n, spread),
        Row("in_time", name, 0, sum(t < WANTED_S for t in times) / n, "fraction", n),
        Row("exact", name, 0, len(exact) / n, "fraction", n, {"most": max(errors, default=0.0)}),
    ]


if __name__ == "__main__":
    main()
