"""Chromium under control: it opens a page, runs scripts in it and answers what they give."""

import asyncio
import itertools
import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.scripted_page import ScriptedPage, browser_process

__all__ = ["CHROMIUM", "ChromiumPage", "opened"]

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_ANSWER_S = 60
_WEBGPU = (
    "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",
)  # fmt: skip


class ChromiumPage(ScriptedPage):
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
        """See `ScriptedPage.evaluate`."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script[:200]}: {found['result'].get('description')}")
        return found["result"].get("value")

    def navigate(self, url: str) -> None:
        """See `ScriptedPage.navigate`."""
        self.call("Page.navigate", url=url)

    def choose_file(self, selector: str, file: Path) -> None:
        """See `ScriptedPage.choose_file`."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def close(self) -> None:
        """See `ScriptedPage.close`."""

        async def leave() -> None:
            self._socket.close()
            await asyncio.sleep(0.1)  # the other side answers, and the socket is closed

        self._runner.run(leave())
        self._runner.close()


@contextmanager
def opened(folder: Path, url: str, webgpu: bool = False) -> Iterator[ChromiumPage]:
    """Open a page in a new Chromium, whose profile is in a folder.

    It accepts every certificate, as a user does for the agent's own one. With ``webgpu``, it has
    WebGPU, computed by the processor (SwiftShader): what it computes is right, its times are not
    those of a GPU.
    """
    assert CHROMIUM is not None
    port_file = folder / "DevToolsActivePort"
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--no-first-run",
        *(_WEBGPU if webgpu else ("--disable-gpu",)),
        "--ignore-certificate-errors", "--remote-debugging-port=0", f"--user-data-dir={folder}",
        "--remote-allow-origins=*", url,
    ]  # fmt: skip
    with browser_process(command, port_file) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as reply:
            pages = [each for each in json.load(reply) if each["type"] == "page"]
        page = ChromiumPage(pages[0]["webSocketDebuggerUrl"])
        try:
            yield page
        finally:
            page.close()
