"""Interfaces of a runtime and its sessions, in which networks are measured and run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.targets.target import Target

__all__ = ["Computation", "Runtime", "Session"]


class Computation(Protocol):
    """Computation of outputs from inputs."""

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """Return the outputs (N, ...) of inputs (N, *input_shape).

        N may differ from the target's batch.
        """
        ...


class Session(Computation, Protocol):
    """Network that is loaded and ready to run."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Sizes of the input without the batch: channels, height and width for images."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the runtime that change latency."""
        ...

    def cpu_clock(self) -> float:
        """Return the CPU time, in seconds, that the threads which compute have used so far."""
        ...


class Runtime(Protocol):
    """Inference engine that runs ONNX files on some hardware."""

    @property
    def name(self) -> str:
        """Name of the runtime in the names of targets."""
        ...

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats in which the runtime computes."""
        ...

    @property
    def hardware(self) -> tuple[str, ...]:
        """Hardware of this machine that hwnas uses it on, the main one first; of `HARDWARE`."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """Python packages whose versions a measurement on the runtime should state."""
        ...

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can.

        Args:
            hardware: Hardware of this machine, one of `hwnas.deploy.targets.target.HARDWARE`.
        """
        ...

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Convert an ONNX file to what `load` takes; this may compile for other hardware.

        Args:
            artifact: ONNX file.
            target: Target on which the file will run.
            folder: Folder for intermediate files.
        """
        ...

    def load(self, executable: Path, target: Target) -> Session:
        """Load the result of `prepare`; its folder may be deleted afterwards.

        Raises:
            ArtifactError: The file is damaged, or this runtime cannot run it.
            DeviceError: The target cannot be used on this machine.
        """
        ...
