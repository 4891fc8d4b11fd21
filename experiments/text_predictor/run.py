"""Are latencies of an unseen network family predicted from the text of its operators?

Fitted on the 200 networks of `mobilenet` that latency_zoo timed, and scored on the networks of
`hybrid`, of convolution and attention, that hybrid_latency timed on the same target and kind of
processor. ``--onnx`` predicts a file of one's own instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from scipy.stats import spearmanr

from experiments.command import run_command
from experiments.hybrid_latency.run import CASES
from experiments.hybrid_latency.run import FOLDER as HYBRID
from experiments.latency_zoo.zoo import read_workloads
from experiments.readme_table import crosstab
from experiments.record import Results, Row, read_rows
from experiments.text_predictor.text import TextPredictor
from hwnas.deploy.onnx.workload import read_workload
from hwnas.errors import ConfigError
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.shipped import shipped_profiles
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import Architecture, Workload
from hwnas.search_spaces.hybrid import hybrid

FOLDER = Path(__file__).parent
TARGET = "cpu-onnxruntime-fp32-b1-t1"
UNITS = {"spearman": "rho", "median_ape": "%"}
Timed = tuple[Sequence[Workload], Numbers]
"""Networks and their latencies in milliseconds, of shape (N,)."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.text_predictor.run", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to N - 1")
    parser.add_argument("--onnx", type=Path, help="predict this file, and record nothing")
    parser.add_argument("--out", type=Path, default=FOLDER)
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    if arguments.seeds < 1:
        raise ConfigError(f"--seeds is {arguments.seeds}; expected at least 1")
    torch.set_num_threads(1)  # the network is tiny: threads wait for each other
    answers = Results(arguments.out / "results.jsonl", {"seeds": arguments.seeds})
    if arguments.onnx is not None:
        [found] = TextPredictor.fit(*mobilenets(), 0).predict(
            [read_workload(arguments.onnx).workload]
        )
        print(f"{arguments.onnx}: {found:.4g} ms on {TARGET}, from the text of its operators")
        return
    known = mobilenets()
    rows = np.arange(len(known[1]))
    half = [([known[0][i] for i in some], known[1][some]) for some in (rows[::2], rows[1::2])]
    cases = {"mobilenet-half": (half[0], half[1]), "hybrid": (known, hybrids())}
    for case, (fitted, asked) in cases.items():
        for method, predict in METHODS.items():
            if answers.find("spearman", f"{case} {method}", 0) is not None:
                continue
            seeds = range(arguments.seeds if method == "text" else 1)
            scores = [_scores(predict(fitted, asked[0], seed), asked[1]) for seed in seeds]
            answers.put(_rows(f"{case} {method}", scores, len(asked[1])))
    print(crosstab(answers.rows))


def mobilenets() -> Timed:
    """Return the networks that latency_zoo timed."""
    return read_workloads(), shipped_profiles()[TARGET].costs


def hybrids() -> Timed:
    """Return the networks of hybrid_latency's small case that were timed on the target."""
    space = hybrid(*CASES["small"], preset="small")
    found = {
        row.subject: (
            space.workload(Architecture.from_json(row.details["architecture"])),
            row.value,
        )
        for row in read_rows(HYBRID / "observations.jsonl")
        if row.metric == "latency" and row.details["target"] == TARGET and row.value
        if row.details["case"] == "small"
    }
    workloads, latencies_ms = zip(*found.values(), strict=True)
    return workloads, np.array(latencies_ms, dtype=np.float64)


def text(fitted: Timed, asked: Sequence[Workload], seed: int) -> Numbers:
    """Predict by the text of operators."""
    return TextPredictor.fit(*fitted, seed).predict(asked)


def default(fitted: Timed, asked: Sequence[Workload], seed: int) -> Numbers:
    """Predict by the device predictor, fitted to the same networks and without other devices."""
    shipped = shipped_profiles()[TARGET]
    untrained = DevicePredictor.of_known(shipped, shipped=True)
    empty = DevicePredictor(TARGET, untrained.transfer_prior)
    predictor = empty.adapt(fitted[0], fitted[1].tolist())
    return np.array([estimate.mean for estimate in predictor.predict(asked)])


def macs(fitted: Timed, asked: Sequence[Workload], seed: int) -> Numbers:
    """Predict by a power of multiply-accumulates."""
    known, new = (np.log([float(each.macs) for each in some]) for some in (fitted[0], asked))
    found: Numbers = np.exp(np.polyval(np.polyfit(known, np.log(fitted[1]), 1), new))
    return found


METHODS: Mapping[str, Callable[[Timed, Sequence[Workload], int], Numbers]] = {
    "default": default,
    "text": text,
    "macs": macs,
}


def _scores(predicted: Numbers, true: Numbers) -> dict[str, float]:
    return {
        "spearman": float(spearmanr(predicted, true).statistic),
        "median_ape": 100 * float(np.median(np.abs(predicted / true - 1))),
    }


def _rows(subject: str, seeds: Sequence[Mapping[str, float]], n: int) -> list[Row]:
    rows = []
    for score, unit in UNITS.items():
        values = [each[score] for each in seeds]
        spread = {"least": min(values), "most": max(values)}
        rows.append(Row(score, subject, 0, fmean(values), unit, n, spread))
    return rows


if __name__ == "__main__":
    main()
