"""Is a network cropped before training as good as one with as many weights pruned in each layer?

PreCropping claims that accuracy depends on how many weights each layer keeps, not on which ones. So
whole channels may be removed, and only then does the network become faster. Some assignments of
ratios to layers are each trained in two ways: as a smaller dense network, and as the whole network
with the same share of each layer's weights set to zero at random. The whole network is also
trained.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from experiments.precropping.sparse import densities, density, make_sparse
from experiments.readme_table import crosstab
from experiments.record import Row
from experiments.setting import Setting, cores, main
from hwnas.deploy import Target, TimingSettings, export_onnx, measure
from hwnas.errors import ConfigError
from hwnas.hashing import content_hash
from hwnas.search.engine.cluster import map_tasks
from hwnas.search.evaluation.ranking import spread_over_macs
from hwnas.search.evaluation.scoring import Evaluation, score
from hwnas.search.training import NetworkStep, fit
from hwnas.search_spaces import Architecture
from hwnas.stages.run_inputs import RunInputs

ACCURACY, LATENCY = "test_accuracy", "latency"
CROPPED, SPARSE, DENSE = "cropped", "sparse", "dense"
_DIVISION_SEED = 0  # all trainings use the same images, whatever their seed
_TIMING = TimingSettings(rounds=100, max_seconds=20.0)


@dataclass(frozen=True)
class Network:
    """Network to be trained.

    Attributes:
        case: Name of the assignment of ratios, ``"whole"`` for none.
        side: ``"cropped"``, ``"sparse"``, or ``"dense"`` for the whole network.
        ratios: The assignment, or the largest network for the whole one.
    """

    case: str
    side: str
    ratios: Architecture

    @property
    def subject(self) -> str:
        """Subject of its rows."""
        return f"{self.case} {self.side}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--assignments", type=int, default=3, help="assignments of ratios to layers"
    )
    parser.add_argument("--pool", type=int, default=100, help="random ones to choose from")
    parser.add_argument(
        "--target", default="cpu-onnxruntime-fp32-b1-t1", help="target to measure on"
    )


def work(arguments: argparse.Namespace) -> None:
    if arguments.assignments < 1:
        raise ConfigError(f"--assignments is {arguments.assignments}; expected at least 1")
    target = Target.parse(arguments.target)
    names = ("assignments", "pool", "target")
    setting = Setting(arguments, {name: getattr(arguments, name) for name in names})
    run_inputs = setting.run_inputs(_DIVISION_SEED)
    networks = chosen(run_inputs, arguments.assignments, arguments.pool)
    with cores(run_inputs.recipe) as at_once:
        train_all(setting, run_inputs, networks, at_once)
    for seed in setting.seeds:
        if setting.observations.find(LATENCY, networks[-1].subject, seed) is None:
            print(f"seed {seed}: latencies on {target.name}", flush=True)
            setting.observations.put(latencies(setting, run_inputs, networks, target, seed))
        setting.answer(summary(setting.observations.rows, networks, seed))
    print(crosstab(setting.answers.rows))


def chosen(run_inputs: RunInputs, assignments: int, pool: int) -> list[Network]:
    """Return both sides of some assignments, and the whole network.

    The assignments are spread over MACs, without the extremes.
    """
    space = run_inputs.space
    largest = space.largest()
    whole = space.workload(largest).macs
    networks = []
    for ratios in spread_over_macs(space, assignments + 2, pool)[1:-1]:
        case = f"{100 * space.workload(ratios).macs / whole:.0f}-%-of-MACs"
        networks += [Network(case, side, ratios) for side in (CROPPED, SPARSE)]
    return [*networks, Network("whole", DENSE, largest)]


def train_all(
    setting: Setting, run_inputs: RunInputs, networks: Sequence[Network], at_once: int
) -> None:
    """Train each network with each seed, unless the result is recorded."""
    missing = [
        (network, seed)
        for seed, network in itertools.product(setting.seeds, networks)
        if setting.observations.find(ACCURACY, network.subject, seed) is None
    ]
    trained = map_tasks(train, (run_inputs, setting.work.absolute()), missing, at_once)
    for (network, seed), (found, kept) in zip(missing, trained, strict=True):
        print(f"seed {seed}: trained {network.subject}", flush=True)
        workload = run_inputs.space.workload(network.ratios)
        details = {
            "density": kept,
            "macs_of_cropped": workload.macs,
            "params_of_cropped": workload.params,
            "architecture": network.ratios.to_json(),
        }
        spread = {"standard_error": found.standard_errors["accuracy"]}
        value = found.values["accuracy"]
        setting.observations.put(
            [Row(ACCURACY, network.subject, seed, value, "fraction", found.n, spread, details)]
        )


def train(shared: tuple[RunInputs, Path], network: Network, seed: int) -> tuple[Evaluation, float]:
    """Train a network from scratch and export it; return its test accuracy and its density."""
    run_inputs, folder = shared
    space, task, data = run_inputs.space, run_inputs.task, run_inputs.data
    shape, config = space.input_shape(network.ratios), run_inputs.recipe.train
    module = made(run_inputs, network, seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = content_hash(run_inputs.hash, config, seed, network.subject)
    checkpoint = folder / f"{run}.safetensors"
    step = NetworkStep(module, task, shape)
    fit(module, step, data.train, config, seed, checkpoint=checkpoint, run=run)
    found = score(module, task, data.test, shape, "test")
    export_onnx(module, shape, _onnx(folder, network, seed))
    checkpoint.unlink(missing_ok=True)
    return found, density(module)


def made(run_inputs: RunInputs, network: Network, seed: int) -> nn.Module:
    """Return a network before training."""
    space = run_inputs.space
    torch.manual_seed(seed)
    if network.side != SPARSE:
        return space.build(network.ratios)
    whole = space.build(space.largest())
    make_sparse(whole, densities(whole, space.build(network.ratios)), seed)
    return whole


def latencies(
    setting: Setting,
    run_inputs: RunInputs,
    networks: Sequence[Network],
    target: Target,
    seed: int,
) -> list[Row]:
    """Measure all trained networks of a seed, interleaved."""
    models = {network.subject: _onnx(setting.work, network, seed) for network in networks}
    for network in networks:
        path = models[network.subject]
        if not path.exists():  # recorded, but the work folder was emptied
            print(f"seed {seed}: {network.subject} trained again for its file", flush=True)
            train((run_inputs, setting.work), network, seed)
    measured = measure(models, target, _TIMING)
    rows = []
    for subject, found in measured.items():
        of_clock = found.cpu_ms if found.clock == "cpu" else found.wall_ms
        spread = {"p20": of_clock.p20, "p80": of_clock.p80}
        details = {"contended": found.contended, "anchor_ms": found.anchor_ms}
        rows.append(Row(LATENCY, subject, seed, found.latency_ms, "ms", found.n, spread, details))
    return rows


def _onnx(folder: Path, network: Network, seed: int) -> Path:
    return folder / f"{network.ratios.id}-{network.side}-{seed}.onnx"


def summary(rows: Sequence[Row], networks: Sequence[Network], seed: int) -> list[Row]:
    """Return both sides of each assignment, and the effect of cropping on accuracy and latency."""
    found = {row.key: row for row in rows}
    answers: list[Row] = []
    differences: dict[str, float] = {}
    speedups: dict[str, float] = {}
    for case in dict.fromkeys(network.case for network in networks):
        sides = [network.side for network in networks if network.case == case]
        for metric in (ACCURACY, LATENCY):
            answers += [found[metric, f"{case} {side}", seed] for side in sides]
        if SPARSE in sides:
            accuracy = _values(found, ACCURACY, case, seed)
            latency = _values(found, LATENCY, case, seed)
            differences[case] = 100 * (accuracy[CROPPED] - accuracy[SPARSE])
            speedups[case] = latency[SPARSE] / latency[CROPPED]
    return [*answers, *_gains(differences, speedups, seed)]


def _values(
    found: Mapping[tuple[str, str, int], Row], metric: str, case: str, seed: int
) -> dict[str, float]:
    rows = {side: found[metric, f"{case} {side}", seed] for side in (CROPPED, SPARSE)}
    return {side: row.value for side, row in rows.items() if row.value is not None}


def _gains(differences: Mapping[str, float], speedups: Mapping[str, float], seed: int) -> list[Row]:
    method = f"{CROPPED}-over-{SPARSE}"
    rows = []
    for metric, unit, values, mean in (
        ("points of accuracy gained", "", differences, fmean(differences.values())),
        ("times as fast", "ratio", speedups, exp(fmean(map(log, speedups.values())))),
    ):
        rows += [
            Row(metric, f"{case} {method}", seed, value, unit, 1) for case, value in values.items()
        ]
        spread = {"least": min(values.values()), "most": max(values.values())}
        rows.append(Row(metric, f"mean {method}", seed, mean, unit, len(values), spread))
    return rows


if __name__ == "__main__":
    here = Path(__file__).parent
    main(here, __doc__, work, add_options, recipe=here / "recipe.toml")
