"""Is the variant that `hwnas sweep` chooses never slower than always fp32, or always int8?

Networks of several spaces are swept on each runtime by itself and on all of them together. Then the
chosen variant, fp32 and int8 are measured again, with interleaved timing, in a process that has
measured none of them before. The outputs of the variants are not judged: the networks are
untrained, and the question is one of latency. Recorded networks are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.command import run_command
from experiments.deploy.networks import SPACES, exported_anew
from experiments.readme_table import across
from experiments.record import Results, Row
from hwnas.deploy import Device, Target, measure_together
from hwnas.deploy.measurement.measurement import TimedNetwork
from hwnas.deploy.quantization.quantize import random_batches
from hwnas.deploy.variants import VARIANTS, VariantInputs
from hwnas.deploy.variants.quality import Quality
from hwnas.deploy.variants.sweep import Sweep, sweep

FOLDER = Path(__file__).parent
TRIED = ("mobilenet", "hybrid", "resnet", "vit", "simplenet")
RUNTIMES = ("onnxruntime", "openvino", "mnn", "pytorch_nhwc")
MADE = ("fp32", "bf16", "fp16", "int8")
TOGETHER = "all runtimes"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.deploy.choices", description=__doc__
    )
    parser.add_argument("--spaces", nargs="+", choices=SPACES, default=list(TRIED))
    parser.add_argument("--networks", type=int, default=2, help="random networks of each space")
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES))
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the recorded rows")
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "deploy"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    if arguments.measure:
        print(json.dumps(measured(json.loads(arguments.measure))))
        return
    config = {"experiment": "choices", "runtimes": arguments.runtimes}
    results = Results(arguments.out / "choices.jsonl", config)
    for subject, model, shape in exported_anew(arguments.spaces, arguments.networks, results):
        results.put(observed(subject, model, shape, arguments.runtimes, model.parent))
    results.put(summary(results.rows, arguments.runtimes))
    print(across([row for row in results.rows if row.subject.startswith("chosen ")]))


@dataclass(frozen=True)
class Anything:
    """Evaluator that accepts every output of a variant, so that latency alone decides."""

    shape: tuple[int, ...]

    def inputs(self) -> Iterator[NDArray[np.float32]]:
        """Yield two random inputs, which show whether the variant runs."""
        yield np.random.default_rng(0).standard_normal((2, *self.shape), dtype=np.float32)

    def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
        """Return a quality without any loss."""
        return Quality("none", "maximize", 0.0, 0.0, 0.0, 0.0, "", len(outputs), "random inputs")


def observed(
    subject: str, model: Path, shape: tuple[int, ...], runtimes: Sequence[str], folder: Path
) -> list[Row]:
    """Sweep a network on each runtime and on all together, and measure the choices again."""
    devices = {name: [Device("cpu", name)] for name in runtimes}
    devices[TOGETHER] = [Device("cpu", name) for name in runtimes]
    rows = []
    for case, own in devices.items():
        to = folder / case
        to.mkdir()
        material = VariantInputs(model, random_batches(shape, 1))
        found = sweep(material, [VARIANTS[v] for v in MADE], own, to, evaluator=Anything(shape))
        rows += re_measured(f"{subject} {case}", found, own)
    return rows


def re_measured(subject: str, found: Sweep, devices: Sequence[Device]) -> list[Row]:
    """Measure the chosen variant and the first runtime's fp32 and int8 in a fresh process."""
    chosen = found.chosen
    rivals = {"chosen": chosen}
    for rule in ("fp32", "int8"):
        always = [e for e in found.results if e.variant == rule and e.runs]
        rivals |= {rule: always[0]} if always else {}
    subjects = {
        name: (str(each.made.model), each.target)
        for name, each in rivals.items()
        if each.made is not None
    }
    # The same file on the same target is measured once, so its ratio to itself is exactly 1.
    asked = {str(place): each for place, each in enumerate(dict.fromkeys(subjects.values()))}
    command = [sys.executable, "-m", "experiments.deploy.choices", "--measure", json.dumps(asked)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found_ms = json.loads(done.stdout.splitlines()[-1])
    by_subject = {each: found_ms[place] for place, each in asked.items()}
    times: dict[str, float] = {name: by_subject[each] for name, each in subjects.items()}
    details = {"variant": chosen.variant, "target": chosen.target, "ms": times}
    return [
        Row("ratio", f"{subject} / always {rule}", 0, times["chosen"] / times[rule], "ratio", 1,
            {}, details)
        for rule in times
        if rule != "chosen"
    ]  # fmt: skip


def measured(asked: dict[str, list[str]]) -> dict[str, float]:
    """Measure the given files on their targets; runs in a fresh process."""
    subjects = {
        name: TimedNetwork(Path(model), Target.parse(target))
        for name, (model, target) in asked.items()
    }
    return {name: found.latency_ms for name, found in measure_together(subjects).items()}


def summary(rows: Sequence[Row], runtimes: Sequence[str]) -> list[Row]:
    """Return the geometric mean and the range of the ratios over all networks."""
    found = []
    for case in (*runtimes, TOGETHER):
        for rule in ("fp32", "int8"):
            end = f" {case} / always {rule}"
            ratios = [
                row.value
                for row in rows
                if row.value and row.subject.endswith(end) and not row.subject.startswith("chosen")
            ]
            if ratios:
                mean = math.exp(fmean(map(math.log, ratios)))
                spread = {"least": min(ratios), "most": max(ratios)}
                found.append(Row("ratio", f"chosen{end}", 0, mean, "ratio", len(ratios), spread))
    return found


if __name__ == "__main__":
    main()
