"""Kernel times of a network, as the runtime itself reports them."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hwnas.deploy.measurement.exit_paths import exit_paths
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.runtimes.onnx import OnnxSession
from hwnas.deploy.targets.target import Target
from hwnas.errors import DeviceError

__all__ = ["profile_kernels"]

_WARMUP, _RUNS = 3, 20
_ENDING = "_kernel_time"


def profile_kernels(model: Path, target: Target) -> Mapping[str, float]:
    """Return the median time of each kernel in milliseconds, by the runtime's name for the kernel.

    ONNX Runtime names a kernel after a node of the file or the last tensor that the node writes,
    with suffixes of its own. Profiling itself costs about a microsecond per kernel.

    Raises:
        ArtifactError: The file is damaged or cannot run on the target.
        DeviceError: The target cannot be used on this machine, or its runtime cannot be profiled.
    """
    if target.device.runtime != "onnxruntime" or target.device.hardware == "cuda":
        raise DeviceError(f"{target.name} cannot be profiled; choose onnxruntime on cpu")
    runtime = RUNTIMES[target.device.runtime]
    check_usable(runtime, target)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with exit_paths(model, target) as paths:  # the whole network, not the way of some images
            executable = runtime.prepare(paths[-1].model, target, folder)
            session = OnnxSession(
                executable, target.device.batch, target.device.threads, profile=folder / "kernels"
            )
        images = np.zeros((target.device.batch, *session.input_shape), dtype=np.float32)
        for _ in range(_WARMUP + _RUNS):
            session.run(images)
        events = json.loads(session.end_profile().read_text(encoding="utf-8"))
    times: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_ENDING):
            times[event["name"].removesuffix(_ENDING)].append(1e-3 * event["dur"])
    return {kernel: statistics.median(each[_WARMUP:]) for kernel, each in times.items()}
