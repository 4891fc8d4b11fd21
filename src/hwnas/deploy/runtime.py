"""What a runtime must offer so that networks can be measured and run on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.device import Target

__all__ = ["Runtime", "Session"]


class Session(Protocol):
    """A network that is loaded and ready to run."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The input's sizes without the batch: channels, height and width for images."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Those settings of the runtime that change latency."""
        ...

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """Outputs (N, ...) of inputs (N, *input_shape); N need not be the target's batch."""
        ...

    def cpu_clock(self) -> float:
        """Seconds of CPU time that the threads which compute have used so far."""
        ...


class Runtime(Protocol):
    """A way to run an ONNX file on some hardware."""

    @property
    def name(self) -> str:
        """As it appears in the names of targets."""
        ...

    @property
    def formats(self) -> tuple[str, ...]:
        """The number formats that it computes in."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """Python packages whose versions a measurement on it should state."""
        ...

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Why it cannot be used here and what to install, or None if it can.

        Args:
            hardware: Of this machine, one of `hwnas.deploy.device.RUNS_ON`.
        """
        ...

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Turn an ONNX file into what `load` takes; may compile for other hardware.

        Args:
            artifact: The ONNX file.
            target: Where it shall run.
            folder: For what is written on the way.
        """
        ...

    def load(self, executable: Path, target: Target) -> Session:
        """Load what `prepare` made; its folder may be deleted afterwards.

        Raises:
            ArtifactError: The file is damaged or not what this runtime can run.
            DeviceError: The target cannot be used on this machine.
        """
        ...
