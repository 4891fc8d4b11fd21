"""What does `hwnas serve` cost compared with ONNX Runtime called in a bare loop?

A heavy network receives raw uint8 images of its own size, one per request, and runs with one ONNX
Runtime thread on one core; the client has the other core. Rounds of the server under load alternate
with rounds of a bare loop over prepared batches on the server's core. Recorded rounds are not
repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments.command import run_command
from experiments.deploy.load import Load
from experiments.deploy.networks import packed, random_images
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.deploy import Bundle
from hwnas.errors import RunError
from hwnas.search_spaces import mobilenet

FOLDER = Path(__file__).parent
CLASSES = 100
SERVED, BARE, RATIO = "hwnas serve", "bare loop", "bare loop / hwnas serve"
BARE_LOOP = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[4])})
import numpy as np
from hwnas.deploy import RUNTIMES, Target
batch, seconds = int(sys.argv[2]), float(sys.argv[3])
target = Target.parse(f"cpu-onnxruntime-fp32-b{batch}-t1")
session = RUNTIMES["onnxruntime"].load(__import__("pathlib").Path(sys.argv[1]), target)
images = np.random.default_rng(0).standard_normal((batch, *session.input_shape), np.float32)
end = time.perf_counter() + min(2.0, seconds)
while time.perf_counter() < end:
    session.run(images)
runs, began = 0, time.perf_counter()
while time.perf_counter() < began + seconds:
    session.run(images)
    runs += 1
print(runs * batch / (time.perf_counter() - began))
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.deploy.serve", description=__doc__)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--batch", type=int, default=8, help="images that run at once")
    parser.add_argument("--connections", type=int, default=32, help="number of concurrent requests")
    parser.add_argument("--seconds", type=float, default=20, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, nargs=2, default=[0, 1], metavar="N")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "deploy"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    names = ("size", "batch", "connections", "seconds")
    config = {"experiment": "serve", **{name: vars(arguments)[name] for name in names}}
    results = Results(arguments.out / "serve.jsonl", config)
    missing = [i for i in range(arguments.rounds) if results.find("ratio", RATIO, i) is None]
    if missing:
        time_rounds(arguments, results, missing)
    results.put(summary(results.rows))
    print(markdown([row for row in results.rows if "median" in row.subject]))


def time_rounds(arguments: argparse.Namespace, results: Results, rounds: Sequence[int]) -> None:
    bundle = heavy_bundle(arguments.work / f"heavy-{arguments.size}", arguments.size)
    images = arguments.work / "images.npy"
    np.save(images, random_images(16, (arguments.size, arguments.size, 3)))
    with served(bundle, arguments) as url:
        for number in rounds:
            bare = bare_loop(bundle, arguments)
            found = under_load(url, images, arguments)
            results.put(rows(number, bare, found))
            print(f"round {number}: served {found.per_second:.1f}, bare {bare:.1f} images a second")


def rows(number: int, bare: float, found: Load) -> list[Row]:
    """Return the rows of a round; their seed is the number of the round."""
    n, served = found.requests, found.per_second
    return [
        Row("images_per_second", BARE, number, bare, "1/s", 1),
        Row("images_per_second", SERVED, number, served, "1/s", n, {}, {"errors": found.errors}),
        Row("p50_ms", SERVED, number, found.p50_ms, "ms", n),
        Row("p99_ms", SERVED, number, found.p99_ms, "ms", n),
        Row("ratio", RATIO, number, bare / served, "ratio", n),
    ]  # fmt: skip


def summary(recorded: Sequence[Row]) -> list[Row]:
    """Return the medians over the rounds, with the range."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in recorded:
        if row.value is not None and "median" not in row.subject:
            groups.setdefault((row.metric, row.subject, row.unit), []).append(row.value)
    return [
        Row(
            metric, f"{subject}, median", 0, float(np.median(values)), unit, len(values),
            {"least": min(values), "most": max(values)},
        )
        for (metric, subject, unit), values in groups.items()
    ]  # fmt: skip


def heavy_bundle(folder: Path, size: int) -> Bundle:
    """Return a bundle of the largest MobileNet, untrained since its outputs do not matter."""
    if folder.exists():
        return Bundle.load(folder)
    space = mobilenet((size, size, 3), CLASSES)
    return packed(space, space.largest(), CLASSES, folder.parent, folder.name)[1]


@contextlib.contextmanager
def served(bundle: Bundle, arguments: argparse.Namespace) -> Iterator[str]:
    """Run `hwnas serve` on the first core, as a user starts it, and yield its address."""
    command = [sys.executable, "-m", "hwnas.cli", "serve", str(bundle.folder), "--port", "0"]
    command += ["--max-batch", str(arguments.batch), "--threads", "1"]
    command += ["--max-connections", str(arguments.connections + 8)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, {arguments.cores[0]}),
    ) as process:  # fmt: skip
        try:
            first = process.stdout.readline() if process.stdout else ""
            if not first:
                raise RunError("hwnas serve did not start; see above")
            yield f"{first.split()[-1]}/predict"
        finally:
            process.terminate()


def bare_loop(bundle: Bundle, arguments: argparse.Namespace) -> float:
    """Return the images per second of ONNX Runtime alone, on the server's core."""
    words = [bundle.onnx_file, arguments.batch, arguments.seconds, arguments.cores[0]]
    done = subprocess.run(
        [sys.executable, "-c", BARE_LOOP, *map(str, words)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout)


def under_load(url: str, images: Path, arguments: argparse.Namespace) -> Load:
    """Run the client on the second core and return its result."""
    words = ["--connections", arguments.connections, "--seconds", arguments.seconds]
    words += ["--warmup", min(2.0, arguments.seconds), "--core", arguments.cores[1]]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.deploy.load", url, str(images), *map(str, words)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Load(**json.loads(done.stdout))


if __name__ == "__main__":
    main()
