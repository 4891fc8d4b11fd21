"""Does a damaged bundle or ONNX file work or give a one-line error: no crash, hang or stray file?

Each case is a function of its number. An intact bundle is copied, damaged, and given to the
functions that `hwnas verify`, `run` and `measure` call, in a forked process of its own with limits
on time and memory.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from experiments.command import run_command
from experiments.deploy.mutations import mutate
from experiments.deploy.verdict import end_with
from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    OutputMeaning,
    Preprocessing,
    Target,
    TimingSettings,
    export_onnx,
    measure,
    write_bundle,
)
from hwnas.deploy.bundles.bundle import MODEL
from hwnas.errors import HwnasError
from hwnas.search_spaces import mobilenet

__all__ = ["Limits", "Outcome", "attack", "sources"]

FOLDER = Path(__file__).parent
TARGETS = ("cpu-onnxruntime-fp32-b1-t1", "cpu-pytorch-fp32-b1-t1", "cpu-onnxruntime-int8-b1-t1")
BRIEF = TimingSettings(warmup=1, rounds=1, round_ms=1e-3, max_seconds=0.01, retries=0)
SECRET = b"\x00\x00\x80?" * 4096
"""Content of a file beside the bundle, which no bundle may read."""
FINE, REFUSED = "fine", "refused"


@dataclass(frozen=True)
class Limits:
    """Limits of a case.

    Attributes:
        seconds: Time of all commands, in s.
        memory_bytes: Address space, beyond that of the process at its start.
    """

    seconds: float = 30.0
    memory_bytes: int = 4 * 2**30


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case.

    Attributes:
        seed: Seed of the case.
        mutation: Name of the mutation of the bundle.
        commands: Outcome of each command: ``"fine"``, ``"refused"``, or a description of the
            defect.
        told: Message that a user would have read, by command.
    """

    seed: int
    mutation: str
    commands: dict[str, str]
    told: dict[str, str]

    @property
    def wrong(self) -> dict[str, str]:
        """Commands that neither worked nor were refused in one line, and how they ended."""
        return {k: v for k, v in self.commands.items() if v not in (FINE, REFUSED)}


def sources(folder: Path) -> list[Path]:
    """Write two intact bundles, a classifier and a segmentation network, each with an image."""
    torch.manual_seed(0)
    space = mobilenet((8, 8, 1), 10)
    torch.set_num_threads(1)
    pixels = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Hardswish(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 1), nn.Upsample(scale_factor=2.0, mode="nearest"),
    )  # fmt: skip
    made = []
    networks: dict[str, tuple[nn.Module, OutputMeaning]] = {
        "classes": (
            space.build(space.smallest()),
            OutputMeaning("class_scores", tuple(map(str, range(10)))),
        ),
        "masks": (pixels, OutputMeaning("pixel_class_scores", ("paper", "ink", "edge"))),
    }
    preprocessing = Preprocessing(8, 8, 1, mean=(0.3,), std=(0.38,))
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), np.uint8)
    for name, (network, meaning) in networks.items():
        here = folder / name
        here.mkdir(parents=True)
        exported = export_onnx(
            network.eval(), (1, 8, 8), here / "model.onnx", preprocessing(images)
        )
        write_bundle(
            here / "bundle",
            BundleNetwork(
                space.smallest(), exported, network.state_dict(), preprocessing, meaning, images
            ),
            BundleFacts(
                space="mobilenet",
                task=name,
                provenance={"seed": 0},
                metrics=[
                    {"name": "accuracy", "value": 0.5, "kind": "evaluated", "split": "test", "n": 3}
                ],
                measurements=list(
                    measure({"a": exported.path}, Target.parse(TARGETS[0]), BRIEF).values()
                ),
            ),
        )
        Image.fromarray(images[0, :, :, 0]).save(here / "image.png")
        made.append(here)
    return made


def attack(source: Path, seed: int, folder: Path, limits: Limits | None = None) -> Outcome:
    """Damage a copy of a bundle and run all commands on it.

    Args:
        source: One of the folders of `sources`.
        seed: Seed of the case.
        folder: Working folder; emptied before and after.
        limits: Limits of the commands.
    """
    shutil.rmtree(folder, ignore_errors=True)
    bundle = folder / "bundle"
    shutil.copytree(source / "bundle", bundle)
    (folder / "secret").write_bytes(SECRET)
    for name in ("temporary", "here"):
        (folder / name).mkdir()
    mutation = mutate(bundle, seed)
    image = source / "image.png"
    target = Target.parse(TARGETS[seed % len(TARGETS)])
    commands: dict[str, Callable[[], object]] = {
        "verify": lambda: Bundle.load(bundle).verify(),
        "run": lambda: _run(bundle, image),
        "measure": lambda: measure({"model": bundle / MODEL}, target, BRIEF),
    }
    outcome = Outcome(seed, mutation, {}, {})
    while left := {k: v for k, v in commands.items() if k not in outcome.commands}:
        _in_a_fork(left, folder, limits or Limits(), outcome)
        shutil.rmtree(folder / "temporary")  # a killed process may leave files there
        (folder / "temporary").mkdir()
    shutil.rmtree(folder)
    return outcome


def _run(folder: Path, image: Path) -> None:
    bundle = Bundle.load(folder)
    json.dumps(bundle.run([image]), ensure_ascii=False).encode()  # as it would be printed
    if bundle.outputs.kind == "pixel_class_scores":
        bundle.masks([image])


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    """Return every file with its size and modification time; folders are left out."""
    found = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    return [(str(path), s.st_size, s.st_mtime_ns) for path, s in found if not path.is_dir()]


def _in_a_fork(
    commands: Mapping[str, Callable[[], object]], folder: Path, limits: Limits, outcome: Outcome
) -> None:
    """Run commands in a fork and record their outcomes, up to the first that kills the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(commands, folder, limits, writer)
    os.close(writer)
    status = _wait(child, limits.seconds)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace").splitlines()
    for line in said:
        name, outcome.commands[name], outcome.told[name] = json.loads(line)
    killed = next((name for name in commands if name not in outcome.commands), None)
    if killed is not None:
        how = "hung" if status is None else f"ended with {status}"
        if status is not None and os.WIFSIGNALED(status):
            how = f"crashed with {signal.Signals(os.WTERMSIG(status)).name}"
        outcome.commands[killed], outcome.told[killed] = how, ""


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit status of a child, or None if it had to be killed."""
    end = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _child(
    commands: Mapping[str, Callable[[], object]], folder: Path, limits: Limits, writer: int
) -> None:
    """Run commands within limits, write the outcome of each to a pipe, and never return."""
    try:
        faulthandler.disable()  # pytest's handler would print long crash reports
        os.chdir(folder / "here")
        tempfile.tempdir = str(folder / "temporary")
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        most = _address_space() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        before = _listing(folder)
        for name, command in commands.items():
            kind, line = _ending(command)
            if _listing(folder) != before:
                kind = "left or changed a file"
            os.write(writer, f"{json.dumps([name, kind, line])}\n".encode())
    finally:
        os._exit(0)


def _ending(command: Callable[[], object]) -> tuple[str, str]:
    """Run a command; return its outcome and the message that it gives."""
    try:
        command()
    except HwnasError as error:
        lines = str(error).splitlines()
        if len(lines) == 1 and 0 < len(lines[0]) < 1000:
            return REFUSED, lines[0]
        return f"refused in {len(lines)} lines of {len(str(error))} characters", str(error)[:300]
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "hwnas" in frame.filename] or list(frames)
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        return f"{type(error).__name__} at {place}", str(error)[:300]
    return FINE, ""


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def cases(work: Path, first: int, count: int, minutes: float) -> Iterator[Outcome]:
    """Yield the outcomes of cases, until there are enough or the time is over."""
    end = time.monotonic() + 60 * minutes
    made = sources(work / "sources")
    for seed in range(first, first + count):
        if time.monotonic() > end:
            return
        yield attack(made[seed % len(made)], seed, work / "case")


def report(outcomes: list[Outcome], elapsed_s: float) -> dict[str, Any]:
    """Return the report of a session."""
    by_mutation: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts = by_mutation.setdefault(outcome.mutation, Counter())
        for command, ended in outcome.commands.items():
            counts[f"{command}: {ended}"] += 1
    return {
        "cases": len(outcomes),
        "seconds": round(elapsed_s),
        "wrong": [{"seed": o.seed, "mutation": o.mutation, **o.wrong} for o in outcomes if o.wrong],
        "by_mutation": {k: dict(sorted(v.items())) for k, v in sorted(by_mutation.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.deploy.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="largest number of cases")
    parser.add_argument("--minutes", type=float, default=10, help="time limit")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--out", type=Path, help="file for the report, as JSON")
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    outcomes, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for outcome in cases(Path(folder), arguments.first, arguments.count, arguments.minutes):
            outcomes.append(outcome)
            for command, ended in outcome.wrong.items():
                print(
                    f"{outcome.seed} {outcome.mutation}: {command} {ended} {outcome.told[command]}",
                    flush=True,
                )
    asked = f"{arguments.count} cases from number {arguments.first} on"
    end_with(report(outcomes, time.monotonic() - began), asked, arguments.out)


if __name__ == "__main__":
    main()
