"""Fingerprint of a target: times of small models in its runtime and format."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.target import Target
from hwnas.predictors.features.physical import Machine

__all__ = ["PROBES", "Fingerprint", "fingerprint", "write_probe"]

_OPSET, _IR_VERSION = 17, 8
_SETTINGS = TimingSettings(warmup=3, rounds=15, round_ms=5.0, max_seconds=1.0, retries=2)


@dataclass(frozen=True)
class Probe:
    """Small model of equal layers, which all do one kind of work.

    Attributes:
        channels: Channels of the input and of every feature map.
        side: Height and width of the input.
        layers: Number of equal layers, one after the other.
        kernel_size: Kernel size of the convolution; 0 for an elementwise operation in its place.
        depthwise: Whether the convolution is depthwise.
    """

    channels: int
    side: int
    layers: int
    kernel_size: int = 0
    depthwise: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one image."""
        inputs = 1 if self.depthwise else self.channels
        per_layer = self.side**2 * self.channels * inputs * self.kernel_size**2
        return self.layers * per_layer

    @property
    def bytes_moved(self) -> int:
        """Float32 bytes that the layers move for one image: activations in and out, and weights."""
        inputs = 1 if self.depthwise else self.channels
        weights = self.channels * inputs * self.kernel_size**2
        return 4 * self.layers * (2 * self.channels * self.side**2 + weights)


PROBES: dict[str, Probe] = {
    "overhead": Probe(8, 2, 40, 1),
    "overhead_elementwise": Probe(8, 2, 40),
    "copy_small": Probe(32, 32, 4),
    "copy_large": Probe(64, 112, 4),
    "pointwise_small": Probe(64, 7, 8, 1),
    "pointwise": Probe(128, 14, 6, 1),
    "pointwise_wide": Probe(512, 7, 3, 1),
    "depthwise_3": Probe(96, 14, 6, 3, depthwise=True),
    "depthwise_5": Probe(96, 14, 6, 5, depthwise=True),
    "depthwise_large": Probe(64, 56, 3, 3, depthwise=True),
    "conv_3": Probe(64, 14, 4, 3),
    "conv_3_large": Probe(32, 56, 3, 3),
}
"""Probes that are timed, by name. Their sizes are those of networks for phones, tiny to large."""


def write_probe(probe: Probe, path: Path) -> None:
    """Write a probe as ONNX; its weights are small, so that nothing overflows."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights: list[Any] = []
    nodes: list[Any] = []
    current = "images"
    for layer in range(probe.layers):
        if probe.kernel_size:
            inputs = 1 if probe.depthwise else probe.channels
            shape = (probe.channels, inputs, probe.kernel_size, probe.kernel_size)
            values = np.cos(1.3 * np.arange(np.prod(shape)) + layer) / np.sqrt(np.prod(shape[1:]))
            name = f"weight{layer}"
            weights.append(numpy_helper.from_array(values.reshape(shape).astype(np.float32), name))
            node = helper.make_node(
                "Conv",
                [current, name],
                [f"y{layer}"],
                group=probe.channels if probe.depthwise else 1,
                kernel_shape=[probe.kernel_size] * 2,
                pads=[probe.kernel_size // 2] * 4,
            )
        else:
            node = helper.make_node("HardSigmoid", [current], [f"y{layer}"])
        nodes.append(node)
        current = f"y{layer}"
    sizes: list[str | int | None] = ["batch", probe.channels, probe.side, probe.side]
    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info(current, TensorProto.FLOAT, sizes)],
        weights,
    )
    opset = helper.make_opsetid("", _OPSET)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION), path)


@dataclass(frozen=True)
class Fingerprint:
    """Times of the probes on a target.

    Attributes:
        target: Name of the target.
        probes_ms: Milliseconds per batch of each probe, the median of the measurement.
        batch: Images per batch.
    """

    target: str
    probes_ms: Mapping[str, float]
    batch: int = 1

    def machine(self) -> Machine:
        """Return the constants of the roofline model that explain the probes, per image."""
        per_layer = {
            name: 1e-3 * self.probes_ms[name] / probe.layers for name, probe in PROBES.items()
        }
        overhead = min(per_layer["overhead"], per_layer["overhead_elementwise"])

        def rate(names: tuple[str, ...], amount: Callable[[Probe], int]) -> float:
            """Return the geometric mean of amounts per second, less overhead, in units of 1e9."""
            rates = []
            for name in names:
                busy = max(per_layer[name] - overhead, 0.1 * per_layer[name])
                rates.append(self.batch * amount(PROBES[name]) / PROBES[name].layers / busy)
            return 1e-9 * float(np.exp(np.mean(np.log(rates))))

        dense = ("pointwise_small", "pointwise", "pointwise_wide", "conv_3", "conv_3_large")
        gmacs = rate(dense, lambda probe: probe.macs)
        depthwise = rate(
            ("depthwise_3", "depthwise_5", "depthwise_large"), lambda probe: probe.macs
        )
        gbytes = rate(("copy_small", "copy_large"), lambda probe: probe.bytes_moved)
        return Machine(gmacs, gbytes, 1e6 * overhead, depthwise / gmacs)


def fingerprint(target: Target, progress: Callable[[float], None] | None = None) -> Fingerprint:
    """Time the probes on a target of this machine, in about ten seconds.

    Raises:
        DeviceError: The target cannot be used here.
    """
    with tempfile.TemporaryDirectory() as folder:
        models = {name: Path(folder, f"{name}.onnx") for name in PROBES}
        for name, path in models.items():
            write_probe(PROBES[name], path)
        measured = measure(models, target, _SETTINGS, progress)
    probes = {name: each.latency_ms for name, each in measured.items()}
    return Fingerprint(target.name, probes, target.device.batch)
