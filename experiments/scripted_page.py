"""Page of a browser that a program controls."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["ScriptedPage", "browser_process"]

_START_S = 60


class ScriptedPage(ABC):
    """Page of a running browser, in which scripts can be run."""

    @abstractmethod
    def evaluate(self, script: str) -> Any:
        """Return the value of an expression, or what it promises.

        Raises:
            RuntimeError: The script failed, or there is no page yet.
        """

    @abstractmethod
    def navigate(self, url: str) -> None:
        """Open another page."""

    @abstractmethod
    def choose_file(self, selector: str, file: Path) -> None:
        """Choose a file in the input element that a CSS selector names."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection to the browser."""

    def wait_until(self, script: str, seconds: float = 30) -> None:
        """Wait until an expression is true; while it fails, it is not.

        Raises:
            TimeoutError: It was never true.
        """
        until = time.monotonic() + seconds
        while not self._is_true(script):
            if time.monotonic() > until:
                raise TimeoutError(f"{script}: {self.evaluate('document.body.innerText')}")
            time.sleep(0.1)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.evaluate(script))
        except RuntimeError:
            return False


@contextmanager
def browser_process(command: Sequence[str], port_file: Path) -> Iterator[str]:
    """Start a browser, and yield the first line of the file that it writes its port into."""
    port_file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": own},  # it leaves files there
        )
        try:
            until = time.monotonic() + _START_S
            while not port_file.exists() or not port_file.read_text().strip():
                assert time.monotonic() < until, f"{command[0]} did not start"
                time.sleep(0.1)
            yield port_file.read_text().split()[0]
        finally:
            process.terminate()
            process.wait(30)
