"""Trained networks of the sides of a comparison, and their recorded rows."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from experiments.record import Row
from hwnas.deploy import RUNTIMES, Bundle, Measurement, Session, Target, measure
from hwnas.deploy.bundles.bundle import MODEL
from hwnas.errors import ConfigError
from hwnas.experiment import Experiment, specialise
from hwnas.progress import SilentReporter
from hwnas.recipe.keys import parts_of
from hwnas.run_folder import RunFolder
from hwnas.search.evaluation.scoring import score
from hwnas.search_spaces import Workload
from hwnas.stages.finalists.bundles import read_bundles, score_of
from hwnas.stages.run_inputs import RunInputs

__all__ = [
    "TARGETS",
    "Network",
    "best_within",
    "error_row",
    "measured_rows",
    "of_bundle",
    "of_job",
    "rows_of",
    "tested_on",
    "usable",
]

TARGETS = (
    "cpu-onnxruntime-fp32-b1-t1",
    "cpu-openvino-fp32-b1-t1",
    "cpu-openvino-bf16-b1-t1",
)
"""Targets on which the networks of both sides are timed; each network counts on its best target."""


@dataclass(frozen=True)
class Network:
    """Trained network of one side.

    Attributes:
        side: Name of its side.
        id: Identifier, unique on its side.
        onnx: Path of its ONNX file.
        validation: Accuracy on the validation images, in 0..1.
        test: Accuracy on the test images, in 0..1.
        macs: Multiply-accumulates of one image.
        params: Number of trainable parameters.
        architecture: Description of the architecture, as JSON.
        layers: Kind, output channels and output side in pixels of each convolution, in order; empty
            if unknown.
    """

    side: str
    id: str
    onnx: Path
    validation: float
    test: float
    macs: int
    params: int
    architecture: Mapping[str, object]
    layers: tuple[tuple[str, int, int], ...] = ()

    @property
    def subject(self) -> str:
        """Subject of its rows; unique in a comparison."""
        return f"{self.side} {self.id}"


def of_job(
    side: str, job: Experiment, run: Path, further: Sequence[str] = ()
) -> tuple[list[Network], RunInputs, float]:
    """Run a whole job, resuming it if it was interrupted.

    Devices that this user has calibrated have no part in it.

    Args:
        side: Name of the side of its networks.
        job: Job to run.
        run: Folder of its run.
        further: Targets that it is specialised for afterwards.

    Returns:
        Its finalists; data, task and space, with the recipe as planned; seconds of the job, or of
        all its stages if it was interrupted.
    """
    resumed, begun = run.exists(), time.monotonic()
    with _own_home(run.with_name(f"{run.name}-home")):
        job.run(run)
        seconds = time.monotonic() - begun
        if further:
            specialise(run, further, SilentReporter())
    with RunFolder.open(run) as opened:
        recipe = opened.recipe
        if resumed:
            seconds = sum(
                stage.wall_s
                for name, stage in opened.stages.items()
                if parts_of(name)[1] not in further
            )
    run_inputs = RunInputs.prepare(recipe, job.folder)
    bundles = read_bundles(run / "bundles").values()
    return [of_bundle(side, bundle, run_inputs) for bundle in bundles], run_inputs, seconds


@contextlib.contextmanager
def _own_home(folder: Path) -> Iterator[None]:
    """Let hwnas keep what it knows of devices in a folder, instead of the user's."""
    before = os.environ.get("HWNAS_HOME")
    os.environ["HWNAS_HOME"] = str(folder.absolute())
    try:
        yield
    finally:
        os.environ.pop("HWNAS_HOME")
        if before is not None:
            os.environ["HWNAS_HOME"] = before


def of_bundle(side: str, bundle: Bundle, run_inputs: RunInputs) -> Network:
    """Return the network of a run's finalist."""
    metric = run_inputs.task.metrics[0].name
    workload = run_inputs.space.workload(bundle.architecture)
    return Network(
        side,
        bundle.architecture.id,
        bundle.folder / MODEL,
        score_of(bundle, metric, "validation")["value"],
        score_of(bundle, metric, "test")["value"],
        workload.macs,
        workload.params,
        bundle.architecture.to_json(),
        _convolutions(workload),
    )


def _convolutions(workload: Workload) -> tuple[tuple[str, int, int], ...]:
    shapes = {tensor.id: tensor.shape for tensor in workload.tensors}
    outputs = [
        (operator.kind, shapes[operator.outputs[0]])
        for operator in workload.operators
        if operator.name == "convolution"
    ]
    return tuple((kind, int(shape[1]), int(shape[2])) for kind, shape in outputs)


def rows_of(network: Network, measured: Measurement, n: int, seed: int) -> list[Row]:
    """Return the rows of test error and latency of one network on one target.

    Args:
        network: Network of either side.
        measured: Its measurement on the target.
        n: Number of test images.
        seed: Seed of the rows.
    """
    quantiles = {"p20": measured.headline.p20, "p80": measured.headline.p80}
    about = {"target": measured.target, "clock": measured.clock, "contended": measured.contended}
    latency = measured.latency_ms
    return [
        error_row(network, n, seed, {"latency_ms": latency}),
        Row("latency", network.subject, seed, latency, "ms", measured.n, quantiles, about),
    ]


def error_row(network: Network, n: int, seed: int, cost: Mapping[str, float]) -> Row:
    """Return the row of a network's test error.

    Args:
        network: Network of any side.
        n: Number of test images.
        seed: Seed of the row.
        cost: Name and value of the cost that it is compared by.
    """
    error = 1 - network.test
    details = {
        "side": network.side,
        **cost,
        "validation_accuracy": network.validation,
        "macs": network.macs,
        "params": network.params,
        "architecture": network.architecture,
        **({"layers": network.layers} if network.layers else {}),
    }
    deviation = {"standard_error": (error * (1 - error) / n) ** 0.5}
    return Row("test_error", network.subject, seed, error, "fraction", n, deviation, details)


def best_within(rows: Sequence[Row], budget_ms: float) -> Row | None:
    """Return the row of the network with the best validation accuracy among those fast enough.

    Args:
        rows: Rows of test errors.
        budget_ms: Highest allowed latency.
    """
    fast = [row for row in rows if row.details["latency_ms"] <= budget_ms]
    return max(fast, key=lambda row: float(row.details["validation_accuracy"]), default=None)


def usable(names: Sequence[str]) -> list[Target]:
    """Parse targets, so that an unusable one is refused before an hour of training.

    Raises:
        ConfigError: A name is no target, or its runtime is not installed.
    """
    targets = [Target.parse(name) for name in names]
    for target in targets:
        if reason := RUNTIMES[target.device.runtime].unavailable():
            raise ConfigError(f"--targets {target.name}: {reason}")
    return targets


def measured_rows(
    networks: Sequence[Network], targets: Sequence[Target], run_inputs: RunInputs, seed: int
) -> list[Row]:
    """Time the networks of all sides against each other; each counts on its own best target.

    If that target computes in fewer than 32 bits, the network is tested again as it runs there.

    Returns:
        The rows of `rows_of`, and one for each network and target.
    """
    models = {network.subject: network.onnx for network in networks}
    found = {target.name: measure(models, target) for target in targets}
    n, rows = len(run_inputs.data.test), []
    for network in networks:
        name = min(found, key=lambda target: found[target][network.subject].latency_ms)
        target = Target.parse(name)
        if target.format != "fp32":
            network = tested_on(network, target, run_inputs)
        rows += rows_of(network, found[name][network.subject], n, seed)
        rows += [
            Row("latency_on", f"{network.subject} {target}", seed, m.latency_ms, "ms", m.n,
                details={"wall_ms": m.wall_ms.p50, "anchor_ms": m.anchor_ms,
                         "contended": m.contended})
            for target, measurements in found.items()
            for m in [measurements[network.subject]]
        ]  # fmt: skip
    return rows


def tested_on(network: Network, target: Target, run_inputs: RunInputs) -> Network:
    """Return the network with the accuracies that its file has in the format of a target."""
    task, data, runtime = run_inputs.task, run_inputs.data, RUNTIMES[target.device.runtime]
    executable = runtime.prepare(network.onnx, target, network.onnx.parent)
    running = _Running(runtime.load(executable, target))
    _, height, width = running.session.input_shape
    shape, metric = (data.image_shape[2], height, width), task.metrics[0].name
    validation = score(running, task, data.validation, shape, "validation").values[metric]
    test = score(running, task, data.test, shape, "test").values[metric]
    return replace(network, validation=validation, test=test)


class _Running(nn.Module):
    """Inference session wrapped as a module."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(images.numpy()).copy())
