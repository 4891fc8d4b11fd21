"""Chromium under control: it opens a page, runs scripts in it and answers what they give."""

import asyncio
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "Page", "opened"]

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_ANSWER_S = 60


class Page:
    """Page of a running Chromium, controlled by its DevTools protocol.

    Args:
        address: Address of the page's WebSocket.
    """

    def __init__(self, address: str) -> None:
        from tornado.websocket import websocket_connect

        self._runner, self._numbers = asyncio.Runner(), itertools.count(1)

        async def connect() -> Any:
            return await websocket_connect(address)

        try:
            self._socket = self._runner.run(connect())
        except BaseException:
            self._runner.close()
            raise

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol, and return its result.

        Raises:
            RuntimeError: The method failed.
        """
        number = next(self._numbers)

        async def answer() -> Any:
            await self._socket.write_message(
                json.dumps({"id": number, "method": method, "params": parameters})
            )
            while True:
                found = json.loads(await self._socket.read_message())
                if found.get("id") == number:
                    return found

        found = self._runner.run(asyncio.wait_for(answer(), _ANSWER_S))
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]

    def evaluate(self, script: str) -> Any:
        """Return the value of a script, which may be a promise.

        Raises:
            RuntimeError: The script failed, or there is no page yet.
        """
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script[:200]}: {found['result'].get('description')}")
        return found["result"].get("value")

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

    def close(self) -> None:
        """Close the connection."""

        async def leave() -> None:
            self._socket.close()
            await asyncio.sleep(0.1)  # the other side answers, and the socket is closed

        self._runner.run(leave())
        self._runner.close()


@contextmanager
def opened(folder: Path, url: str) -> Iterator[Page]:
    """Open a page in a new Chromium, whose profile is in a folder.

    It accepts every certificate, as a user does for the agent's own one.
    """
    assert CHROMIUM is not None
    port_file = folder / "DevToolsActivePort"
    port_file.unlink(missing_ok=True)
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--ignore-certificate-errors", "--remote-debugging-port=0", f"--user-data-dir={folder}",
        "--remote-allow-origins=*", url,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while not port_file.exists() or not port_file.read_text().strip():
            assert time.monotonic() < until, "Chromium did not start"
            time.sleep(0.1)
        port = port_file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as reply:
            pages = [each for each in json.load(reply) if each["type"] == "page"]
        page = Page(pages[0]["webSocketDebuggerUrl"])
        try:
            yield page
        finally:
            page.close()
    finally:
        process.terminate()
        process.wait(30)
