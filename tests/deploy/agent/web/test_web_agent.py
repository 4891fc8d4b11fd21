"""Web agent: pairing, signed requests, jobs that a page does, and hosts that measure with it."""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.agent.web.conftest import FACTS, FakePage, Web

from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.web.channel import Channel, Replaced
from hwnas.deploy.agent.web.page_server import PairingCode
from hwnas.deploy.agent.web.serve import WebOptions, opened
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError, ConfigError, DeviceError

QUICK = TimingSettings(warmup=1, rounds=5, round_ms=1.0)


@contextlib.contextmanager
def working(page: FakePage) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=page.work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        page.web.agent.page.hosts.of(page.name).channel._patience_s = 0  # type: ignore[union-attr]
        thread.join(25)


def added(web: Web, name: str) -> None:
    add_device(name, f"{web.agent.host_url}/{name}", web.token, patience_s=2, hardware="browser")


def timed(name: str, model: Path, target: str = "ortweb-fp32-b1-t1") -> Measurement:
    return measure({"net": model}, Target.parse(f"{name}-{target}"), QUICK)["net"]


# Pairing


def test_code_is_used_once_and_replaced_after_wrong_ones() -> None:
    told: list[str] = []
    code = PairingCode(told.append)
    assert not code.use("AAAA-AAAA")
    assert code.use(told[-1].lower())
    assert not code.use(told[0])
    before = len(told)
    for _ in range(5):
        assert not code.use("wrong")
    assert len(told) == before + 1
    assert not code.use(told[-2])


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"code": "WRONG"}, 403),
        ({"name": "../evil"}, 400),
        ({"name": ""}, 400),
        ({"facts": {}}, 400),
        ({"facts": {**FACTS, "cores": "many"}}, 400),
        ({"facts": {**FACTS, "device": 3}}, 400),
        ({"facts": {**FACTS, "memory_gib": 1e99}}, 400),
    ],
)
def test_pairing_refuses_wrong_requests(web: Web, changes: dict[str, object], status: int) -> None:
    asked = {"name": "phone", "code": web.code, "facts": FACTS, **changes}
    assert web.request("POST", "/pair", json.dumps(asked).encode())[0] == status
    assert web.agent.page.hosts.browsers.names() == []


def test_pairing_again_replaces_the_key(web: Web) -> None:
    first = web.pair("phone")
    second = web.pair("phone")
    body = json.dumps({"page": "p", "result": None}).encode()
    assert first.post("/poll/phone", body)[0] == 401
    web.agent.page.hosts.of("phone").channel.poll("x", None, 0)  # type: ignore[union-attr]
    assert second.key != first.key


def test_paired_browsers_are_known_after_a_restart(tmp_path: Path, runtime: Path) -> None:
    folder = tmp_path / "agent"
    options = WebOptions("127.0.0.1", 0, 0, http=True, folder=folder, runtime_files=runtime)
    told: list[str] = []
    with opened(options, told.append) as agent:
        page = Web(agent, told, folder).pair("phone")
        with pytest.raises(DeviceError, match="another agent uses"):
            opened(options, told.append).__enter__()
    [file] = folder.glob("browsers/phone/browser.json")
    assert file.stat().st_mode & 0o077 == 0
    with opened(options, told.append) as agent:
        body = json.dumps({"page": "p", "result": None, "facts": FACTS}).encode()
        page.web = Web(agent, told, folder)
        assert page.post("/poll/phone", body)[0] == 401, "signed for the session before"
        page.session = agent.page.session.number
        assert page.post("/poll/phone", body)[0] == 200


# Requests


def test_page_is_isolated_from_other_pages(web: Web) -> None:
    for path in ("/", "/app.js", "/worker.js", "/style.css", "/ort/ort.wasm.min.mjs", "/nothing"):
        _, _, headers = web.request("GET", path)
        assert "default-src 'none'" in headers["Content-Security-Policy"], path
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert "http" not in web.request("GET", "/app.js")[1].decode().replace("https", "HTTPS")


@pytest.mark.parametrize(
    "path", ["/ort/../key", "/ort/index.html", "/../key", "/browsers/phone/browser.json", "/ort/"]
)
def test_page_server_gives_no_other_files(web: Web, path: str) -> None:
    assert web.request("GET", path)[0] == 404


def test_requests_have_to_be_signed_and_new(web: Web) -> None:
    page, other = web.pair("phone"), web.pair("tablet")
    path, body = "/poll/phone", json.dumps({"page": "p", "result": {"number": 1}}).encode()
    channel = web.agent.page.hosts.of("phone").channel  # type: ignore[union-attr]
    channel.poll = lambda *_: None  # type: ignore[method-assign]  # do not wait for a command
    right = page.headers(path, body)
    assert web.request("POST", path, body)[0] == 401
    assert web.request("POST", path, body, other.headers(path, body))[0] == 401
    assert web.request("POST", path, body + b" ", right)[0] == 401
    assert web.request("POST", path, body, right)[0] == 200
    assert web.request("POST", path, body, right)[0] == 401, "replayed"
    assert web.request("POST", path, body, page.headers(path, body, 1))[0] == 401, "older"
    assert web.request("POST", "/poll/nobody", body, page.headers(path, body))[0] == 401
    page.session = "another"
    assert web.request("POST", path, body, page.headers(path, body))[0] == 401


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_requests_from_other_sites_are_refused(web: Web, headers: dict[str, str]) -> None:
    asked = {"name": "phone", "code": web.code, "facts": FACTS}
    assert web.request("POST", "/pair", json.dumps(asked).encode(), headers)[0] == 400


def test_page_gets_only_models_of_its_own_job(web: Web, model: Path) -> None:
    page, other = web.pair("phone"), web.pair("tablet")
    added(web, "phone")
    with working(page):
        timed("phone", model)
    digest = page.loaded[0]
    assert page.post(f"/models/phone/{digest}")[0] == 404, "the job is over"
    assert other.post(f"/models/phone/{digest}")[0] == 401
    assert page.post("/models/phone/key")[0] == 404


@settings(max_examples=30)
@given(content=st.binary(max_size=300))
def test_page_server_survives_random_bytes(content: bytes, hostile: Web) -> None:
    address = ("127.0.0.1", hostile.agent.page.server_address[1])
    with socket.create_connection(address, 30) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            connection.recv(2**16)
    assert hostile.request("GET", "/session")[0] == 200


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Iterator[Web]:
    folder, told = tmp_path_factory.mktemp("hostile") / "agent", list[str]()
    options = WebOptions("127.0.0.1", 0, 0, http=True, folder=folder, runtime_files=runtime)
    with opened(options, told.append) as agent:
        yield Web(agent, told, folder)


@pytest.mark.parametrize("length", ["-1", "1e9", "99999999", "x"])
def test_bodies_of_wrong_lengths_are_refused(web: Web, length: str) -> None:
    assert web.request("POST", "/pair", b"", {"Content-Length": length})[0] == 400


# Jobs


def test_host_measures_with_a_page(web: Web, model: Path) -> None:
    page = web.pair("phone")
    page.ms = lambda key, repeats: (0.2 if key.startswith("reference") else 0.5) * repeats
    added(web, "phone")
    with working(page):
        found = timed("phone", model)
    assert found.target == "phone-ortweb-fp32-b1-t1"
    assert found.latency_ms == pytest.approx(0.5)
    assert found.anchor_ms == pytest.approx(0.2)
    assert found.clock == "wall"
    assert not found.contended
    assert found.hardware == "Pixel 8, Android, 8 cores"
    assert found.versions == {"onnxruntime-web": "1.30.0", "browser": "Chrome 140"}
    assert found.conditions["first_run_ms"] == "3"
    assert found.conditions["load_ms"] == "12"
    assert page.done[0] == "reset"


def test_coarse_clock_makes_rounds_longer_and_quantiles_wider(web: Web, model: Path) -> None:
    page = web.pair("phone")
    page.grain_ms = 1.0
    page.ms = lambda key, repeats: float(int(0.01 * repeats))  # a clock of whole milliseconds
    added(web, "phone")
    with working(page):
        found = timed("phone", model)
    assert found.latency_ms == pytest.approx(0.01, rel=0.05)
    assert found.wall_ms.p80 - found.wall_ms.p20 >= 2 * 1.0 / 8192
    assert found.conditions["clock_grain_ms"] == "1"


def test_runs_while_the_page_is_hidden_are_repeated(web: Web, model: Path) -> None:
    page = web.pair("phone")
    hidden: list[int] = []

    def sometimes(number: int) -> bool:
        if number % 3 == 0:
            hidden.append(number)
        return number % 3 == 0

    page.hidden = sometimes
    page.ms = lambda key, repeats: repeats * (100 if page.hidden(len(page.done)) else 0.5)
    added(web, "phone")
    with working(page):
        found = timed("phone", model)
    assert hidden
    assert found.latency_ms == pytest.approx(0.5)
    assert found.wall_ms.p95 == pytest.approx(0.5, rel=0.1)


def test_job_starts_again_when_the_page_is_opened_again(web: Web, model: Path) -> None:
    page = web.pair("phone")
    added(web, "phone")
    found: list[Measurement] = []
    host = threading.Thread(target=lambda: found.append(timed("phone", model)))
    host.start()
    page.work(threading.Event(), most=7)  # then the tab is closed
    page.id, page.done = "another page", []
    with working(page):
        host.join(60)
    assert found[0].latency_ms == pytest.approx(0.5)
    assert page.done[:2] == ["reset", "open"]


def test_page_that_cannot_run_a_network_names_it(web: Web, model: Path) -> None:
    page = web.pair("phone")
    page.refuses = "load"
    added(web, "phone")
    with working(page), pytest.raises(ArtifactError, match="cannot run in the browser: it is ref"):
        timed("phone", model)


def test_missing_webgpu_is_refused(web: Web, model: Path) -> None:
    page = web.pair("phone")
    page.refuses = "open"
    added(web, "phone")
    with working(page), pytest.raises(DeviceError, match="cannot run webgpu"):
        timed("phone", model, "webgpu-fp32-b1-t1")


def test_closed_page_is_told(web: Web, model: Path) -> None:
    web.pair("phone")
    web.agent.page.hosts.of("phone").channel._patience_s = 0.2  # type: ignore[union-attr]
    added(web, "phone")
    with pytest.raises(DeviceError, match="the page is not open"):
        timed("phone", model)


def test_host_is_told_the_paired_browsers(web: Web) -> None:
    web.pair("phone")
    with pytest.raises((ConfigError, DeviceError), match="paired browsers: phone"):
        added(web, "tablet")


def test_devices_have_jobs_of_their_own(web: Web, model: Path) -> None:
    """Two devices measure at the same time, each its own networks."""
    phone, tablet = web.pair("phone"), web.pair("tablet")
    tablet.ms = lambda key, repeats: 2.0 * repeats
    added(web, "phone")
    added(web, "tablet")
    with working(phone), working(tablet):
        subjects = {name: timed(name, model) for name in ("phone", "tablet")}
    assert subjects["phone"].latency_ms == pytest.approx(0.5)
    assert subjects["tablet"].latency_ms == pytest.approx(2.0)


@pytest.mark.slow
def test_browser_is_calibrated_and_predicted_like_any_device(
    web: Web, hwnas: Callable[..., Any], tmp_path: Path
) -> None:
    page = web.pair("phone")
    rng = random.Random(0)
    page.ms = lambda key, repeats: repeats * rng.uniform(0.9, 1.1)
    token = tmp_path / "token"
    token.write_text(web.token)
    token.chmod(0o600)
    options = ("--web", web.agent.host_url, "--token-file", token)
    answer = hwnas("devices", "add", "phone", *options)
    assert answer.status == 0, answer.err
    assert "phone-ortweb-fp32-b{B}-t{T}" in answer.out
    target = "phone-ortweb-fp32-b1-t1"
    space = ("--space", "mobilenet", "--preset", "tiny", "--image", "8x8x1")
    with working(page):
        answer = hwnas("calibrate", "--target", target, *space, "--samples", 5)
        assert answer.status == 0, answer.err
    model = tmp_path / "model.onnx"
    write_reference_model(model)
    answer = hwnas("predict", model, "--target", target, "--json")
    assert answer.status == 0, answer.err
    [predicted] = json.loads(answer.out)
    assert predicted["target"] == target


# The channel


def test_command_stays_until_its_result_is_here() -> None:
    channel, found = Channel(), list[object]()
    stop = threading.Event()
    channel.poll("page", None, 0)
    sender = threading.Thread(target=lambda: found.append(channel.send({"do": "x"}, stop, 10)))
    sender.start()
    command = channel.poll("page", None, 5)
    assert command == channel.poll("page", None, 5), "a lost reply"
    assert command is not None
    channel.poll("page", {"number": command["number"] - 1}, 0)
    channel.poll("page", {"number": command["number"], "ms": 3}, 0)
    sender.join(5)
    assert found == [{"number": command["number"], "ms": 3}]


def test_new_page_replaces_the_one_before() -> None:
    channel, stop = Channel(), threading.Event()
    channel.poll("old", None, 0)
    raised: list[bool] = []

    def send() -> None:
        try:
            channel.send({"do": "x"}, stop, 10)
        except Replaced:
            raised.append(True)

    sender = threading.Thread(target=send)
    sender.start()
    channel.poll("old", None, 5)
    channel.poll("new", None, 0)
    sender.join(5)
    assert raised
    assert not channel.is_current("old")


# Options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"http": True}, "--http with --host"),
        ({"port": 70000}, "--port"),
        ({"host_port": -1}, "--host-port"),
        ({"seconds": 0.0}, "--seconds"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        WebOptions(**options)  # type: ignore[arg-type]


def test_runtime_files_have_to_be_there(tmp_path: Path) -> None:
    options = WebOptions("127.0.0.1", 0, 0, folder=tmp_path / "a", runtime_files=tmp_path)
    with pytest.raises(ConfigError, match="--runtime-files"), opened(options, lambda line: None):
        pass
