"""Firefox under control: it opens a page, runs scripts in it and answers what they give."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.scripted_page import ScriptedPage, browser_process

__all__ = ["FIREFOX", "FirefoxPage", "opened"]

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
_ANSWER_S = 60
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # key of an element's reference, by WebDriver
_PREFERENCES = {"marionette.port": 0, "datareporting.policy.dataSubmissionEnabled": False}


class FirefoxPage(ScriptedPage):
    """Page of a running Firefox, controlled by Marionette, WebDriver's commands over a socket.

    Args:
        port: Port of this machine that Firefox listens to.
    """

    def __init__(self, port: int) -> None:
        self._numbers = itertools.count(1)
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S)
        self._answers = self._socket.makefile("rb")
        self._read()  # the greeting
        self.call("WebDriver:NewSession", acceptInsecureCerts=True)

    def call(self, command: str, **parameters: Any) -> Any:
        """Send a command, and return its result.

        Raises:
            RuntimeError: The command failed.
        """
        number = next(self._numbers)
        body = json.dumps([0, number, command, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(body), body))
        _, answered, error, result = self._read()
        if error or answered != number:
            raise RuntimeError(f"{command}: {(error or {}).get('message')}")
        return result

    def _read(self) -> Any:
        size = b"".join(iter(lambda: self._answers.read(1), b":"))
        return json.loads(self._answers.read(int(size)))

    def evaluate(self, script: str) -> Any:
        """See `ScriptedPage.evaluate`."""
        return self.call("WebDriver:ExecuteScript", script=f"return ({script})", args=[])["value"]

    def navigate(self, url: str) -> None:
        """See `ScriptedPage.navigate`."""
        self.call("WebDriver:Navigate", url=url)

    def choose_file(self, selector: str, file: Path) -> None:
        """See `ScriptedPage.choose_file`."""
        found = self.call("WebDriver:FindElement", using="css selector", value=selector)
        self.call("WebDriver:ElementSendKeys", id=found["value"][_ELEMENT], text=str(file))

    def close(self) -> None:
        """See `ScriptedPage.close`."""
        self._answers.close()
        self._socket.close()


@contextmanager
def opened(folder: Path, url: str) -> Iterator[FirefoxPage]:
    """Open a page in a new Firefox, whose profile is in a folder.

    It accepts every certificate, as a user does for the agent's own one.
    """
    assert FIREFOX is not None
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});\n" for k, v in _PREFERENCES.items())
    (folder / "user.js").write_text("".join(lines))
    port_file = folder / "MarionetteActivePort"
    command = [FIREFOX, "--headless", "--marionette", "--no-remote", "--profile", str(folder)]
    with browser_process(command, port_file) as port:
        page = FirefoxPage(int(port))
        try:
            page.navigate(url)
            yield page
        finally:
            page.close()
