"""Server of the agent: it refuses unauthorised requests and stays available to authorised ones."""

import contextlib
import http.client
import json
import os
import random
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.deploy.agent.client.added_devices import AddedDevice
from hwnas.deploy.agent.client.client import ask, connected
from hwnas.deploy.agent.client.transport import HttpsTransport, _connection
from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.deploy.agent.server import guarded
from hwnas.deploy.agent.server import server as door
from hwnas.deploy.agent.server.certificate import Certificate
from hwnas.deploy.agent.signing import digest_of, key_of, request_signature

Agent = Any
REFUSED = {401, 404}


def reply_to(agent: Agent, content: bytes) -> bytes:
    """Send the bytes, close that direction, and return the whole reply."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = ("127.0.0.1", agent.server.server_port)
    with (
        socket.create_connection(address, 30) as plain,
        context.wrap_socket(plain) as connection,
    ):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            connection.sendall(content)
            with socket.socket(fileno=os.dup(connection.fileno())) as same:
                same.shutdown(socket.SHUT_WR)
        got = b""
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            while more := connection.recv(2**16):
                got += more
        return got


def status_of(reply: bytes) -> int:
    return int(reply.split()[1])


def ask_plainly(
    agent: Agent, method: str, path: str, body: bytes = b"", headers: Any = None
) -> http.client.HTTPResponse:
    connection = _connection("127.0.0.1", agent.server.server_port, 30)
    connection.request(method, path, body, headers or {})
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return reply


PATHS = ["/", "/v1/about", "/v1/models/" + "0f" * 32, "/v1/jobs/" + "0f" * 16, "/health/..", "//"]


@pytest.mark.parametrize(
    "method", ["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH", "BREW"]
)
def test_server_refuses_every_method_without_the_token(agent: Agent, method: str) -> None:
    for path in PATHS:
        assert ask_plainly(agent, method, path).status in REFUSED, path


def test_health_reports_only_that_the_server_is_up(agent: Agent) -> None:
    reply = reply_to(agent, b"GET /health HTTP/1.1\r\n\r\n")
    assert status_of(reply) == 200
    assert reply.endswith(b'{"status": "up"}')
    assert b"hwnas 0" not in reply


def test_server_refuses_wrong_keys_and_replayed_or_changed_requests(
    agent: Agent, device: AddedDevice
) -> None:
    challenge = ask_plainly(agent, "GET", "/").headers["X-Hwnas-Challenge"]

    def headers(key: str, path: str = "/v1/about", nonce: str = "n") -> dict[str, str]:
        parts = (device.certificate, challenge, nonce, "GET", path, digest_of(b""))
        return {
            "X-Hwnas-Challenge": challenge,
            "X-Hwnas-Nonce": nonce,
            "X-Hwnas-Digest": digest_of(b""),
            "X-Hwnas-Signature": request_signature(key, *parts),
        }

    right = headers(device.key)
    assert ask_plainly(agent, "GET", "/v1/about", headers=right).status == 200
    assert ask_plainly(agent, "GET", "/v1/about", headers=right).status == 401, "replayed"
    wrong = headers(key_of("wrong"), nonce="m")
    assert ask_plainly(agent, "GET", "/v1/about", headers=wrong).status == 401
    moved = headers(device.key, nonce="o")
    assert ask_plainly(agent, "DELETE", "/v1/about", headers=moved).status == 401
    assert ask_plainly(agent, "GET", "/v1/jobs/1", headers=moved).status == 401
    for name in right:
        without = {k: v for k, v in headers(device.key, nonce="p").items() if k != name}
        assert ask_plainly(agent, "GET", "/v1/about", headers=without).status == 401


@settings(max_examples=30)
@given(content=st.binary(max_size=300))
def test_server_refuses_random_bytes(agent: Agent, content: bytes) -> None:
    reply = reply_to(agent, content)
    assert reply == b"" or status_of(reply) in REFUSED


@pytest.mark.parametrize(
    "content",
    [
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 50_000,
        b"GET / HTTP/1.1\r\na: " + b"b" * 10_000_000,
        b"GET /\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"PUT /v1/jobs/x HTTP/1.1\r\nContent-Length: 99999999999999999\r\n\r\n",
        b"PUT /v1/jobs/x HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /v1/jobs/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"GET / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
        b"\x16\x03\x01" * 100,
    ],
    ids=range(10),
)
def test_server_refuses_malformed_and_oversized_requests(agent: Agent, content: bytes) -> None:
    reply = reply_to(agent, content)
    assert reply == b"" or status_of(reply) in REFUSED


def test_server_answers_signed_but_invalid_requests_with_an_error(
    agent: Agent, device: AddedDevice
) -> None:
    transport = HttpsTransport(device)
    for method, path, body, right in (
        ("GET", "/v1/nothing", b"", 404),
        ("GET", "/v1/jobs/" + "0" * 32, b"", 404),
        ("GET", "/v1/../v1/about", b"", 404),
        ("GET", "/v1/about/../../key", b"", 404),
        ("GET", "/v1/about#", b"", 404),
        ("GET", "any://[/v1/about", b"", 404),
        ("BREW", "/v1/about", b"", 404),
        ("DELETE", "/v1/jobs/../../key", b"", 400),
        ("PUT", "/v1/jobs/" + "0" * 32, b"", 400),
        ("PUT", "/v1/jobs/" + "0" * 32, b"{}", 400),
        ("PUT", "/v1/jobs/" + "0" * 32, b"[" * 1000, 400),
        ("PUT", "/v1/jobs/" + "0" * 32, b" " * (2**20 + 1), 400),
        ("PUT", "/v1/models/" + digest_of(b"PK\x03\x04"), b"PK\x03\x04", 422),
        ("PUT", "/v1/models/..%2f..%2fkey", b"x", 400),
        ("PUT", "/v1/models/" + "0" * 64, b"\x3a\x00", 422),
    ):
        status, content = transport.request(method, path, body, 10)
        assert status == right, (method, path, content)
        assert json.loads(content)["message"]
    assert ask(device).jobs == 0


def test_server_refuses_a_body_that_differs_from_the_signed_one(
    agent: Agent, device: AddedDevice
) -> None:
    transport = HttpsTransport(device)
    transport.request("GET", "/v1/about", b"", 10)
    challenge, path, nonce = transport._challenge, "/v1/jobs/" + "0" * 32, "q"
    digest = digest_of(b"{}")
    signature = request_signature(
        device.key, device.certificate, challenge, nonce, "PUT", path, digest
    )
    names = ("Challenge", "Nonce", "Digest", "Signature")
    values = (challenge, nonce, digest, signature)
    headers = {f"X-Hwnas-{name}": value for name, value in zip(names, values, strict=True)}
    assert ask_plainly(agent, "PUT", path, b"[]", headers).status == 400


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "GREETING_S", 0.5)
    monkeypatch.setattr(guarded, "GREETING_S", 0.5)


def test_server_closes_slow_connections(agent: Agent, impatient: None, device: AddedDevice) -> None:
    address = ("127.0.0.1", agent.server.server_port)
    with socket.create_connection(address, 10) as silent:
        assert silent.recv(1) == b"", "no handshake, and the agent goes"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    began = time.monotonic()
    with (
        socket.create_connection(address, 10) as plain,
        context.wrap_socket(plain) as dripping,
        contextlib.suppress(OSError),
    ):
        for _ in range(100):  # each byte arrives in time, but the whole request does not
            dripping.sendall(b"G")
            time.sleep(0.1)
    assert time.monotonic() - began < 8


@pytest.fixture
def narrow(agent: Agent) -> Iterator[door.AgentServer]:
    """Server of the same agent that allows three connections."""
    api = replace(agent.server.api, limits=replace(AgentLimits(), connections=3))
    certificate = Certificate(agent.folder / "certificate.pem")
    with door.AgentServer(("127.0.0.1", 0), api, agent.server.key, certificate) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_server_limits_connections_and_accepts_new_ones_later(
    narrow: door.AgentServer, device: AddedDevice
) -> None:
    address = ("127.0.0.1", narrow.server_port)
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(socket.create_connection(address, 10)) for _ in range(3)]
        time.sleep(0.5)
        with socket.create_connection(address, 10) as fourth:
            assert fourth.recv(1) == b""
        for connection in silent:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(64):
                pass
    there = replace(device, address=f"https://127.0.0.1:{narrow.server_port}", patience_s=5.0)
    with connected(there) as client:
        assert client.about().machine["processor"] == device.processor


def attack(agent: Agent, times: int) -> None:
    rng = random.Random(0)
    for number in range(times):
        kind = number % 5
        if kind == 0:
            content = rng.randbytes(rng.randrange(1, 2000))
        elif kind == 1:
            content = b"PUT /v1/models/" + b"0f" * 32 + b" HTTP/1.1\r\nContent-Length: 9999\r\n\r\n"
            content += rng.randbytes(9999)
        elif kind == 2:
            content = (
                b"POST /v1/jobs/../../x HTTP/1.1\r\nX-Hwnas-Nonce: " + b"a" * 5000 + b"\r\n\r\n"
            )
        elif kind == 3:
            content = (
                b"PUT /v1/jobs/x HTTP/1.1\r\nContent-Length: 4000000000\r\n\r\n" + b"{" * 50_000
            )
        else:
            content = b"GET /v1/about HTTP/1.1\r\nX-Hwnas-Signature: " + b"0f" * 32 + b"\r\n\r\n"
        reply = reply_to(agent, content)
        assert reply == b"" or status_of(reply) in REFUSED, content[:100]


def test_server_refuses_a_hundred_harmful_requests(agent: Agent, device: AddedDevice) -> None:
    attack(agent, 100)
    assert ask(device).jobs == 0


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param(3_000, marks=pytest.mark.slow),
        pytest.param(10_000, marks=pytest.mark.exhaustive),
    ],
)
def test_server_needs_bounded_memory_for_thousands_of_requests(
    requests: int, agent: Agent, device: AddedDevice
) -> None:
    attack(agent, 200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attack(agent, requests)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < 50
    assert ask(device).jobs == 0
