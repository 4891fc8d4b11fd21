"""How well is the peak memory of networks in ONNX Runtime predicted from a few measurements?

Every network is loaded and run in fresh processes and recorded with its architecture. For each
seed, ten networks are drawn for the predictor and all others are predicted. If all networks are
recorded, nothing is measured and only the answers are computed again.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from experiments.command import run_command
from experiments.latency_zoo.run import space
from experiments.readme_table import markdown
from experiments.record import Results, Row
from hwnas.deploy import Target, export_onnx
from hwnas.deploy.measurement.memory import peak_memory
from hwnas.errors import ConfigError
from hwnas.plugin import resolve
from hwnas.predictors import Estimate
from hwnas.predictors.metrics.memory import MemoryPredictor, memory_features
from hwnas.search_spaces import Architecture, MobileNetSpace, Workload, mobilenet

FOLDER = Path(__file__).parent
SPACES: dict[str, Callable[[], MobileNetSpace]] = {
    "small-64": space,
    "large-224": lambda: mobilenet((224, 224, 3), 1000, "large"),
}
NETWORKS = {"small-64": 52, "large-224": 32}
TARGETS = (
    "cpu-onnxruntime-fp32-b1-t1",
    "cpu-onnxruntime-int8-b1-t1",
    "cpu-onnxruntime-fp32-b8-t1",
)
METRIC = "peak_memory"
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """Measured networks of one space on one target.

    Attributes:
        case: Names of the space and of the target.
        target: Target on which the networks ran.
        workloads: Workloads of the networks, at the target's batch size.
        peaks_bytes: Peak memory of each network.
    """

    case: str
    target: Target
    workloads: tuple[Workload, ...]
    peaks_bytes: Numbers

    def __post_init__(self) -> None:
        if len(self.workloads) != len(self.peaks_bytes):
            raise ConfigError(f"{len(self.workloads)} workloads, {len(self.peaks_bytes)} peaks")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.peak_memory.run", description=__doc__
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)), metavar="N")
    parser.add_argument("--spaces", nargs="+", default=list(SPACES), metavar="NAME")
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="NAME")
    parser.add_argument(
        "--networks", type=int, help=f"networks of each space; {NETWORKS} if not given"
    )
    parser.add_argument(
        "--known", type=int, default=10, help="networks that the predictor is fitted to"
    )
    parser.add_argument("--processes", type=int, default=2, help="processes that measure a network")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--work", type=Path, default=Path("runs", "experiments", "peak_memory"))
    run_command(parser, work)


def work(arguments: argparse.Namespace) -> None:
    spaces = {name: resolve("space", name, SPACES)() for name in arguments.spaces}
    counts = {name: arguments.networks or NETWORKS[name] for name in spaces}
    if arguments.known + 2 > min(counts.values()):
        raise ConfigError(
            f"--known is {arguments.known} of {min(counts.values())} networks; expected at least "
            "2 more networks than that"
        )
    targets = [Target.parse(name) for name in arguments.targets]
    processes: int = arguments.processes
    observations = Results(arguments.out / "observations.jsonl", {"processes": processes})
    config = {
        "processes": processes,
        "networks": arguments.networks or NETWORKS,
        "known": arguments.known,
    }
    answers = Results(arguments.out / "results.jsonl", config)
    for name, made in spaces.items():
        networks = drawn(made, counts[name])
        for target in targets:
            case = f"{name} {target.name}"
            observe(observations, case, made, networks, target, processes, arguments.work / name)
            rows = [row for row in observations.rows if row.subject.startswith(f"{case} ")]
            found = measured(case, made, networks, target, rows)
            answers.put([repeatability(case, rows)])
            for seed in arguments.seeds:
                answers.put(judged(found, arguments.known, seed))
    print(markdown(answers.rows))


def drawn(made: MobileNetSpace, count: int) -> list[Architecture]:
    """Return the smallest, the largest and random networks.

    A larger count keeps the first networks the same.
    """
    rng = random.Random(0)
    chosen = {made.smallest(): None, made.largest(): None}
    while len(chosen) < count:
        chosen[made.sample(rng)] = None
    return list(chosen)


def observe(
    observations: Results,
    case: str,
    made: MobileNetSpace,
    networks: Sequence[Architecture],
    target: Target,
    processes: int,
    folder: Path,
) -> None:
    """Measure the networks that are not recorded, and record each at once."""
    for number, network in enumerate(networks, start=1):
        subject = f"{case} {network.id}"
        if observations.find(METRIC, subject, 0) is not None:
            continue
        path = folder / f"{network.id}.onnx"
        if not path.exists():
            export_onnx(made.build(network), made.input_shape(network), path)
        found = peak_memory(path, target, processes)
        print(f"{case}: {number}/{len(networks)} {found.peak_bytes / 1e6:.2f} MB", flush=True)
        spread = {"least": found.lowest_bytes / 1e6, "most": found.highest_bytes / 1e6}
        details = {"loaded_mb": found.loaded_bytes / 1e6, "architecture": network.to_json()}
        value = found.peak_bytes / 1e6
        observations.put([Row(METRIC, subject, 0, value, "MB", processes, spread, details)])


def measured(
    case: str,
    made: MobileNetSpace,
    networks: Sequence[Architecture],
    target: Target,
    rows: Iterable[Row],
) -> Measured:
    """Return these networks with their recorded peaks."""
    peaks = {row.subject: 1e6 * (row.value or 0.0) for row in rows}
    return Measured(
        case,
        target,
        tuple(made.workload(network, target.device.batch) for network in networks),
        np.array([peaks[f"{case} {network.id}"] for network in networks]),
    )


def repeatability(case: str, rows: Sequence[Row]) -> Row:
    """Return the median relative difference of the processes that measured the same network."""
    spreads = [(row.spread["most"] - row.spread["least"]) / (row.value or 1.0) for row in rows]
    quantiles = {"p80": float(np.quantile(spreads, 0.8)), "most": max(spreads)}
    value = float(np.median(spreads))
    return Row("spread_of_processes", f"{case} all", 0, value, "fraction", len(spreads), quantiles)


def judged(found: Measured, known: int, seed: int) -> list[Row]:
    """Draw the known networks, predict the others, and score each method."""
    order = np.random.default_rng(seed).permutation(len(found.workloads))
    learnt, asked = order[:known], order[known:]
    true = found.peaks_bytes[asked]
    estimates = predicted(found, learnt, asked)
    forecasts = {"predictor": np.array([estimate.mean for estimate in estimates])}
    forecasts |= rivals(found, learnt, asked)
    rows = []
    for method, forecast in forecasts.items():
        subject = f"{found.case} {method}"
        errors = np.abs(forecast / true - 1)
        spread = {f"p{q}": float(np.quantile(errors, q / 100)) for q in (20, 80, 95)}
        error = float(np.median(errors))
        rho = float(spearmanr(forecast, true).statistic)
        rows.append(Row("median_error", subject, seed, error, "fraction", len(true), spread))
        rows.append(Row("spearman", subject, seed, rho, "rho", len(true)))
    bounds = np.array([estimate.interval90 for estimate in estimates])
    inside = float(((bounds[:, 0] <= true) & (true <= bounds[:, 1])).mean())
    width = float(np.median(bounds[:, 1] / bounds[:, 0] - 1))
    subject = f"{found.case} predictor"
    rows.append(Row("coverage_of_90", subject, seed, inside, "fraction", len(true)))
    rows.append(Row("width_of_90", subject, seed, width, "fraction", len(true)))
    return rows


def predicted(
    found: Measured, learnt: npt.NDArray[np.integer], asked: npt.NDArray[np.integer]
) -> list[Estimate]:
    """Predict the asked networks with a predictor fitted on the learnt ones."""
    predictor = MemoryPredictor(found.target).adapt(
        [found.workloads[i] for i in learnt], found.peaks_bytes[learnt].tolist()
    )
    others = [found.workloads[i] for i in asked]
    return predictor.cost(others, [found.target] * len(others))


def rivals(
    found: Measured, learnt: npt.NDArray[np.integer], asked: npt.NDArray[np.integer]
) -> dict[str, Numbers]:
    """Return the predictions of the baselines.

    They are weights plus live activations, plain and scaled, and our model before it is fitted to
    any measurement.
    """
    bits = {"fp32": 32, "int8": 8}[found.target.format]
    liveness = np.array(
        [(each.weight_bytes + each.peak_activation_bytes) * bits / 32 for each in found.workloads]
    )
    constant = np.median(found.peaks_bytes[learnt] / liveness[learnt])
    others = [found.workloads[i] for i in asked]
    return {
        "liveness": liveness[asked],
        "scaled-liveness": constant * liveness[asked],
        "unmeasured": np.exp(memory_features(others, found.target.format)[:, 0]),
    }


if __name__ == "__main__":
    main()
