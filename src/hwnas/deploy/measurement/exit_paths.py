"""Measured costs of networks with an early exit, as means over images.

Timings use random images, whose confidence at an exit says nothing about real ones. Both paths
through the network are therefore measured, and weighted by the share of images that left where the
threshold was fitted.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.deploy.measurement.measurement import Measurement, Quantiles, TimedNetwork
from hwnas.deploy.onnx.early_exit import early_exit_of, write_paths
from hwnas.deploy.runtimes.registry import SKIPPING
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError

__all__ = ["ExitPath", "exit_paths", "mean_measurement", "timed_paths"]


@dataclass(frozen=True)
class ExitPath:
    """Path through a network, as a file on its own.

    Attributes:
        model: ONNX file that takes this path for every image.
        weight: Share of batches that take it, in [0, 1].
        name: ``"exit"``, ``"end"``, or empty for a network without an exit.
    """

    model: Path
    weight: float = 1.0
    name: str = ""


@contextlib.contextmanager
def exit_paths(model: Path, target: Target) -> Iterator[tuple[ExitPath, ...]]:
    """Yield the paths through an ONNX file; the last is that through the whole network.

    Args:
        model: ONNX file, which is its own only path if it has no exit, or if no image leaves.
        target: Target on which it runs. On targets that compute the whole network for all images,
            there is one path. A batch skips the rest only if all of its images leave.
    """
    found = None
    if (target.device.runtime, target.format) == SKIPPING:
        with contextlib.suppress(ArtifactError):  # raised where the file is loaded
            found = early_exit_of(model)
    share = 0.0 if found is None else found.share_of_batches(target.device.batch)
    if not share:
        yield (ExitPath(model),)
        return
    with tempfile.TemporaryDirectory() as folder:
        early, whole = write_paths(model, Path(folder))
        yield ExitPath(early, share, "exit"), ExitPath(whole, 1 - share, "end")


@contextlib.contextmanager
def timed_paths(
    subjects: Mapping[str, TimedNetwork],
) -> Iterator[dict[str, list[tuple[float, TimedNetwork]]]]:
    """Yield each path of the networks to time, with its weight, by the name of the network."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, subject in subjects.items():
            paths = stack.enter_context(exit_paths(subject.model, subject.target))
            found[name] = [(path.weight, replace(subject, model=path.model)) for path in paths]
        yield found


def mean_measurement(parts: Sequence[tuple[float, Measurement]]) -> Measurement:
    """Return the mean of the measurements of a network's paths; its settings state the parts.

    Quantiles are means of quantiles, as if the disturbances of both timings came together.

    Args:
        parts: Weights and measurements of the paths: of the exit, then of the end; or of one path.
    """
    if len(parts) == 1:
        return parts[0][1]
    (share, early), (_, whole) = parts
    return replace(
        whole,
        cpu_ms=_mean([(weight, each.cpu_ms) for weight, each in parts]),
        wall_ms=_mean([(weight, each.wall_ms) for weight, each in parts]),
        n=min(early.n, whole.n),
        contended=early.contended or whole.contended,
        settings={
            **whole.settings,
            "early_exit_share": f"{share:.4g}",
            "early_exit_ms": f"{early.latency_ms:.6g}",
            "whole_network_ms": f"{whole.latency_ms:.6g}",
        },
    )


def _mean(parts: Sequence[tuple[float, Quantiles]]) -> Quantiles:
    def mean(values: Sequence[tuple[float, float]]) -> float:
        return sum(weight * value for weight, value in values)

    p20, p50, p80 = (
        mean([(weight, getattr(each, name)) for weight, each in parts])
        for name in ("p20", "p50", "p80")
    )
    last = [(weight, each.p95) for weight, each in parts if each.p95 is not None]
    return Quantiles(p20, p50, p80, mean(last) if len(last) == len(parts) else None)
