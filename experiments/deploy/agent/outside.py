"""Agent in a separate process on this machine, packed as it is for a device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

import psutil

from hwnas.deploy.agent.pack import write_pack
from hwnas.errors import RunError

__all__ = ["OutsideAgent"]

_TOKEN = "token, shown only once: "
_LAST_LINE = "only this machine can reach the agent"


class OutsideAgent:
    """Agent that can be killed, and restarted in the same folder and on the same port.

    Args:
        folder: Folder for the packed agent and, in ``agent``, the files that the agent keeps.
        options: Further arguments of its command line.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options = folder / "agent", options
        self._pack = write_pack(folder / "agent.pyz")
        self.token, self._port = "", 0

    def __enter__(self) -> OutsideAgent:
        self.start("--new-token")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        try:
            self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def address(self) -> str:
        """Address under which the agent is added as a device."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """Port on which the agent listens."""
        return self._port

    def start(self, *more: str) -> None:
        """Start the agent and wait until it answers.

        Raises:
            RunError: The agent ended at once.
        """
        words = ["serve", "--port", str(self._port), "--folder", str(self.folder)]
        self.process = subprocess.Popen(
            [sys.executable, str(self._pack), *words, *self._options, *more],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("agent of hwnas"):
                self._port = int(line.rpartition(":")[2])
            elif line.startswith(_TOKEN):
                self.token = line.removeprefix(_TOKEN).strip()
            elif line.startswith(_LAST_LINE):
                return
        raise RunError(f"the agent ended with status {self.process.wait()}; see above")

    def kill(self) -> None:
        """Kill the agent with SIGKILL, which is as sudden as a power failure."""
        self.process.kill()
        self.process.communicate()

    def resident_mb(self) -> tuple[float, float]:
        """Return the resident memory of the agent and of its child processes, in MB."""
        try:
            own = psutil.Process(self.process.pid)
            return _resident_mb(own), sum(map(_resident_mb, own.children(recursive=True)))
        except psutil.NoSuchProcess:  # the agent died
            return 0.0, 0.0


def _resident_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 1e6
    except psutil.NoSuchProcess:  # the process ended in between
        return 0.0
