"""Web agents on this machine, and pages that are simulated in Python."""

import hashlib
import hmac
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.agent.conftest import token_in

from hwnas.deploy.agent.web.serve import WebAgent, WebOptions, opened
from hwnas.deploy.runtimes.ort_web_files import WEB_FILES

FACTS = {
    "device": "Pixel 8, Android",
    "browser": "Chrome 140",
    "cores": 8,
    "memory_gib": 8,
    "webgpu": "",
    "isolated": True,
}


@dataclass
class Web:
    """Web agent that runs in this process.

    Attributes:
        agent: The agent.
        told: Lines that it has shown.
        folder: Its folder.
    """

    agent: WebAgent
    told: list[str]
    folder: Path

    @property
    def code(self) -> str:
        return [line for line in self.told if "pairing code" in line][-1].partition(": ")[2]

    @property
    def token(self) -> str:
        return token_in(self.told)

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        port = self.agent.page.server_address[1]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        found = reply.status, reply.read(), reply.headers
        connection.close()
        return found

    def pair(self, name: str, code: str | None = None) -> "FakePage":
        asked = {"name": name, "code": code or self.code, "facts": FACTS}
        status, content, _ = self.request("POST", "/pair", json.dumps(asked).encode())
        assert status == 200, content
        session = json.loads(self.request("GET", "/session")[1])["session"]
        return FakePage(self, name, json.loads(content)["key"], session)


@dataclass
class FakePage:
    """Page whose browser is this process: networks take a time that a function gives.

    Attributes:
        web: Web agent.
        name: Name of the device.
        key: Key from the pairing.
        session: Number of the server's session.
        ms: Function from the key of a network and a number of runs to their time.
        id: Id of the page, which is new when it is loaded again.
        done: Commands that it has done.
    """

    web: Web
    name: str
    key: str
    session: str
    ms: Callable[[str, int], float] = lambda key, repeats: 0.5 * repeats
    id: str = "page"
    grain_ms: float = 0.005
    hidden: Callable[[int], bool] = lambda number: False
    refuses: str = ""
    done: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def headers(self, path: str, body: bytes, count: int | None = None) -> dict[str, str]:
        number = str(time.monotonic_ns() if count is None else count)
        parts = self.session, "POST", path, number, hashlib.sha256(body).hexdigest()
        text = "\n".join(parts).encode()
        signature = hmac.new(bytes.fromhex(self.key), text, hashlib.sha256).hexdigest()
        return {"X-Hwnas-Count": number, "X-Hwnas-Signature": signature}

    def post(self, path: str, body: bytes = b"") -> tuple[int, bytes]:
        status, content, _ = self.web.request("POST", path, body, self.headers(path, body))
        return status, content

    def work(self, stop: threading.Event, most: int | None = None) -> None:
        """Do commands until the event is set, or until some are done."""
        result: Any = None
        while not stop.is_set() and (most is None or len(self.done) < most):
            body = json.dumps({"page": self.id, "result": result, "facts": FACTS}).encode()
            status, content = self.post(f"/poll/{self.name}", body)
            assert status == 200, content
            command = json.loads(content)["command"]
            if command is not None:
                self.done.append(command["do"])
                result = {**self.answer(command), "number": command["number"]}
            else:
                result = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["do"] == self.refuses:
            return {"error": "it is refused"}
        if command["do"] == "open":
            threads = command["threads"]
            return {"version": "1.30.0", "grain_ms": self.grain_ms, "threads": threads}
        if command["do"] == "load":
            status, content = self.post(f"/models/{self.name}/{command['model']}")
            assert status == 200
            assert hashlib.sha256(content).hexdigest() == command["model"]
            self.loaded.append(command["model"])
            return {"load_ms": 12.0, "first_ms": 3.0}
        if command["do"] == "run":
            hidden = self.hidden(len(self.done))
            return {"ms": self.ms(command["key"], command["repeats"]), "hidden": hidden}
        return {}


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with files of the names that the page needs, but no runtime."""
    folder = tmp_path_factory.mktemp("runtime")
    for name in WEB_FILES:
        (folder / name).write_text(f"// {name}")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _short_polls() -> Iterator[None]:
    """Answer pages soon, so that tests end soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hwnas.deploy.agent.web.page_server._POLL_S", 0.3)
        yield


@pytest.fixture
def web(tmp_path: Path, runtime: Path) -> Iterator[Web]:
    told: list[str] = []
    folder = tmp_path / "web-agent"
    options = WebOptions("127.0.0.1", 0, 0, http=True, folder=folder, runtime_files=runtime)
    with opened(options, told.append) as agent:
        yield Web(agent, told, folder)
