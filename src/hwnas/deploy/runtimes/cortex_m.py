"""Emulated microcontrollers as targets: C code in integers, with simulated times.

A time is the number of instructions of the C code on QEMU's Cortex-M, one each cycle of 100 MHz. An
emulator has no pipeline, caches or slow flash, so the times rank networks but are not those of a
board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.onnx.graph import check_graph, read_model
from hwnas.deploy.onnx.node_names import foreign, in_words
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.runtimes.onnx import OnnxSession, in_format
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.targets.target import Target
from hwnas.errors import UnsupportedOperator
from hwnas.registry import Plugin

if TYPE_CHECKING:
    from hwnas.deploy.microcontroller.network import IntegerNetwork

__all__ = ["PLUGINS", "CortexM"]

_HERTZ = 100e6
_PACKAGE = "hwnas.deploy.microcontroller"


@dataclass(frozen=True)
class CortexM:
    """Emulated Cortex-M.

    Attributes:
        core: Processor core, a key of `hwnas.deploy.microcontroller.emulated.BOARDS`.
    """

    core: str = "cortex-m4"
    formats: tuple[str, ...] = ("int8",)
    hardware: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ("onnxruntime",)

    @property
    def name(self) -> str:
        """Name of the runtime."""
        return self.core.replace("-", "")

    def unavailable(self, hardware: str = "cpu") -> str | None:
        """Return why the runtime cannot be used here and what to install, or None if it can."""
        if find_spec(_PACKAGE) is None:
            return "the packed agent has no emulator; install hwnas"
        from hwnas.deploy.microcontroller.emulated import missing_emulator

        return missing_emulator()

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Return the ONNX file in int8; see `hwnas.deploy.runtimes.onnx.in_format`.

        Raises:
            ArtifactError: The file is damaged or cannot be quantised.
            UnsupportedOperator: An operator is not one of ONNX.
        """
        import onnx

        check_graph(artifact)
        known = {schema.name for schema in onnx.defs.get_all_schemas()}
        if odd := foreign(read_model(artifact).graph, known):
            raise UnsupportedOperator(
                f"{artifact}: there is no integer version of {in_words(odd)}; build that block "
                "from other operators or choose another runtime",
                odd,
            )
        return in_format(artifact, target.format, target.device.batch, folder)

    def load(self, executable: Path, target: Target) -> Session:
        """Load an ONNX file in int8, and count the instructions of its C code.

        Raises:
            ArtifactError: The file is damaged, or has an operator without an integer version.
            DeviceError: The emulator is missing, or the network does not fit into its memory.
        """
        check_usable(self, target)
        from hwnas.deploy.io import Preprocessing
        from hwnas.deploy.microcontroller.c_source import CSource
        from hwnas.deploy.microcontroller.emulated import emulated
        from hwnas.deploy.microcontroller.reading import read_integer_network

        channels, height, width = OnnxSession(executable, target.device.batch, 1).input_shape
        # Any preprocessing: it is a table, which takes the same instructions with other entries.
        how = Preprocessing(height, width, channels, (0.5,) * channels, (0.5,) * channels)
        network = read_integer_network(executable, how)
        pixels = np.zeros((1, height, width, channels), np.uint8)
        counted = emulated(CSource.of(network, "network", ()), pixels, self.core)
        seconds = float(counted.instructions[0]) / _HERTZ
        return EmulatedSession(network, (channels, height, width), seconds, self.core)


class EmulatedSession:
    """Integer network with a simulated clock.

    Args:
        network: Network.
        input_shape: Channels, height and width.
        seconds: Simulated time of one image.
        core: Processor core.
    """

    def __init__(
        self, network: IntegerNetwork, input_shape: tuple[int, ...], seconds: float, core: str
    ) -> None:
        self._network, self._seconds, self._core = network, seconds, core
        self._clock = 0.0
        self._last: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        self.input_shape = input_shape

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings that affect latency."""
        return {
            "emulated": f"{self._core}, one instruction each cycle of {_HERTZ / 1e6:g} MHz",
            "threads": "1",
        }

    def run(self, batch: NDArray[np.float32]) -> NDArray[Any]:
        """Return the outputs (N, ...) of inputs (N, C, H, W); the simulated clock moves on.

        A batch that is the one before, as in a timing, is not computed again.
        """
        if self._last is None or self._last[0] is not batch:
            outputs = self._network.real(self._network.run_on_inputs(batch))
            self._last = batch, outputs
        self._clock += len(batch) * self._seconds
        return self._last[1].copy()

    def cpu_clock(self) -> float:
        """Return the simulated time in seconds that all runs have taken."""
        return self._clock


_CORES = (CortexM("cortex-m4"), CortexM("cortex-m7"))
PLUGINS = tuple(
    Plugin("runtime", each.name, each, f"C code on an emulated {each.core}, in simulated time")
    for each in _CORES
)
