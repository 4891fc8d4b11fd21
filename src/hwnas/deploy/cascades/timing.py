"""Timing of cascades image by image, since images differ in how many networks run on them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.cascades.runner import unsure
from hwnas.deploy.measurement.latency_timer import LatencyTimer, TimingSettings, interleave
from hwnas.deploy.measurement.measurement import Quantiles
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.target import Target

__all__ = ["Pass", "cascade_pass", "decision_ms", "network_pass", "time_passes"]

Pass = Callable[[], object]
"""Function that runs a network or a cascade on a number of images, one after the other."""
_PASSES = TimingSettings(warmup=1, rounds=10, max_seconds=20.0, max_slowdown=math.inf)


def network_pass(bundle: Bundle, images: NDArray[np.uint8], target: Target) -> Pass:
    """Return a function that runs one network on preprocessed images."""
    session, inputs = _ready(bundle, images, target)

    def work() -> None:
        for each in inputs:
            session.run(each)

    return work


def cascade_pass(
    small: Bundle,
    big: Bundle,
    rule: str,
    threshold: float,
    images: NDArray[np.uint8],
    target: Target,
) -> Pass:
    """Return a function that runs a cascade on images preprocessed for both of its networks."""
    (first, inputs), (second, again) = (_ready(b, images, target) for b in (small, big))

    def work() -> None:
        for each, other in zip(inputs, again, strict=True):
            if unsure(first.run(each), rule, threshold)[0]:
                second.run(other)

    return work


def decision_ms(bundle: Bundle, images: NDArray[np.uint8], rule: str, target: Target) -> float:
    """Return the time per image that a decision adds to a network, in milliseconds.

    That is more than the time of the decision by itself, because the decision evicts part of the
    network from the caches.
    """
    never = 0.0
    deciding = cascade_pass(bundle, bundle, rule, never, images, target)
    passes = {"alone": network_pass(bundle, images, target), "deciding": deciding}
    found = time_passes(passes, len(images), target)
    return max(0.0, found["deciding"].p50 - found["alone"].p50)


def time_passes(passes: Mapping[str, Pass], images: int, target: Target) -> dict[str, Quantiles]:
    """Time one image, averaged over a pass; the quantiles are over repeated passes.

    The timing of the passes is interleaved. The clock is that of `measure`: CPU time for one
    thread, otherwise wall time.

    Args:
        passes: Passes by name.
        images: Number of images in each pass.
        target: Target on which the passes run.
    """
    one = target.device.threads == 1
    cpu = time.thread_time if one else time.process_time
    watches = {
        name: LatencyTimer(work, _PASSES, cpu, one_thread=one) for name, work in passes.items()
    }
    interleave([], list(watches.values()), _PASSES.retries)
    found = {name: watch.quantiles("cpu" if one else "wall") for name, watch in watches.items()}
    return {n: Quantiles(q.p20 / images, q.p50 / images, q.p80 / images) for n, q in found.items()}


def _ready(
    bundle: Bundle, images: NDArray[np.uint8], target: Target
) -> tuple[Session, Sequence[NDArray[np.float32]]]:
    session = open_session(bundle.onnx_file, target)
    return session, [bundle.preprocessing(i[None]).contiguous().numpy() for i in images]
