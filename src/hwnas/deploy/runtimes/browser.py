"""ONNX Runtime Web, which runs networks in the browser of a phone, tablet or laptop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.runtimes.session import ArraySession
from hwnas.deploy.targets.target import BROWSER, Target
from hwnas.errors import DeviceError
from hwnas.registry import Plugin

__all__ = ["BROWSER", "BROWSER_RUNTIMES", "PLUGINS", "BrowserRuntime"]

_WHY = "networks run in a browser only if it is paired with: hwnas agent web"


@dataclass(frozen=True)
class BrowserRuntime:
    """Runtime of browsers, of which only paired ones can be measured.

    Attributes:
        name: ``"ortweb"`` for WebAssembly on the processor, ``"webgpu"`` for the GPU.
        formats: Number formats.
    """

    name: str
    formats: tuple[str, ...]
    hardware: tuple[str, ...] = (BROWSER,)
    packages: tuple[str, ...] = ()

    def unavailable(self, hardware: str = BROWSER) -> str | None:
        """Return why this process cannot use the runtime: it is no browser."""
        return _WHY

    def prepare(self, artifact: Path, target: Target, folder: Path) -> Path:
        """Return the file itself; browsers run ONNX files."""
        return artifact

    def load(self, executable: Path, target: Target) -> ArraySession:
        """Raise: networks are loaded by the page.

        Raises:
            DeviceError: Always.
        """
        raise DeviceError(f"target {target.name}: {_WHY}")


BROWSER_RUNTIMES = (
    BrowserRuntime("ortweb", ("fp32", "int8")),
    BrowserRuntime("webgpu", ("fp32", "fp16")),
)
PLUGINS = tuple(
    Plugin("runtime", runtime.name, runtime, f"ONNX Runtime Web in a paired browser, on {place}")
    for runtime, place in zip(BROWSER_RUNTIMES, ("the processor", "the GPU"), strict=True)
)
