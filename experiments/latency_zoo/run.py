"""How fast are the same networks on this machine with different runtimes, formats and threads?

Every target is measured on all networks in blocks, interleaved with a reference model, and recorded
block by block, so an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path

from experiments.command import run_command
from experiments.timings import Timings, columns_of
from hwnas.atomic import replacing
from hwnas.deploy import Device, Target, TimingSettings, export_onnx, measure
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.predictors.devices.fingerprint import fingerprint
from hwnas.search_spaces import Architecture, MobileNetSpace, mobilenet

FOLDER = Path(__file__).parent
IMAGE_SHAPE, CLASSES = (64, 64, 3), 100
BLOCK = 20
SETTINGS = TimingSettings(warmup=5, rounds=25, round_ms=5.0, max_seconds=2.5)
AT_ONCE = ("onnxruntime", "openvino", "mnn", "pytorch", "pytorch_nhwc")
SHAPES = ((1, 1), (8, 1), (1, 2))
"""Pairs of batch size and threads."""


def space() -> MobileNetSpace:
    return mobilenet(IMAGE_SHAPE, CLASSES)


def networks(count: int) -> list[Architecture]:
    """Return the smallest, the largest and random networks.

    A larger count keeps the first networks the same.
    """
    made, rng = space(), random.Random(0)
    chosen = {made.smallest(): None, made.largest(): None}
    while len(chosen) < count:
        chosen[made.sample(rng)] = None
    return list(chosen)


def targets() -> list[Target]:
    """Return every runtime in every format that is usable here and does not compile for minutes."""
    return [
        Target(Device("cpu", runtime, batch, threads), number_format)
        for batch, threads in SHAPES
        for runtime in AT_ONCE
        if RUNTIMES[runtime].unavailable() is None
        for number_format in RUNTIMES[runtime].formats
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.latency_zoo.run", description=__doc__
    )
    parser.add_argument("--networks", type=int, default=200)
    parser.add_argument(
        "--targets", nargs="+", metavar="NAME", help="all usable targets if not given"
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "latency_zoo"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    chosen = networks(arguments.networks)
    wanted = [Target.parse(name) for name in arguments.targets or ()] or targets()
    zoo = Timings(arguments.out / "zoo.parquet")
    models = exported(chosen, arguments.work / "models")
    for target in wanted:
        known = {row["network"] for row in zoo.rows if row["target"] == target.name}
        missing = [network for network in chosen if network.id not in known]
        for start in range(0, len(missing), BLOCK):
            block = missing[start : start + BLOCK]
            measured = measure({n.id: models[n.id] for n in block}, target, SETTINGS)
            zoo.put(
                {
                    "network": network.id,
                    "architecture": json.dumps(network.to_json(), sort_keys=True),
                    **columns_of(measured[network.id], rounds="n"),
                }
                for network in block
            )
            contended = sum(m.contended for m in measured.values())
            print(f"{target.name}: {len(block)} networks, {contended} contended", flush=True)
        record_fingerprint(target, arguments.out / "fingerprints.json")


def exported(chosen: Sequence[Architecture], folder: Path) -> dict[str, Path]:
    """Export networks to ONNX; an untrained network is as fast as a trained one."""
    made = space()
    folder.mkdir(parents=True, exist_ok=True)
    models = {}
    for number, network in enumerate(chosen, start=1):
        path = folder / f"{network.id}.onnx"
        if not path.exists():
            export_onnx(made.build(network), made.input_shape(network), path)
            print(f"exported {number}/{len(chosen)}", flush=True)
        models[network.id] = path
    return models


def record_fingerprint(target: Target, path: Path) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    if target.name not in known:
        known[target.name] = dict(fingerprint(target).probes_ms)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
