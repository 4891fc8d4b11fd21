"""Answers of `hwnas serve` to clients, over real connections."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hwnas.deploy import Bundle
from hwnas.deploy.serve import BatchSettings, BundleServer, ServerLimits, Service
from hwnas.errors import ArtifactError, ConfigError

HEADER_LENGTH = "Inference-Header-Content-Length"
Serving = Callable[..., Any]
Images = NDArray[np.uint8]


@pytest.fixture
def server(serving: Serving, packed: Bundle) -> Iterator[tuple[BundleServer, Any]]:
    with serving(packed) as found:
        yield found


@pytest.fixture
def client(server: tuple[BundleServer, Any]) -> Any:
    return server[1]


def test_predict_gives_the_answer_of_the_bundle_for_an_image_file(
    client: Any, packed: Bundle, png: Path
) -> None:
    for kind in ("image/png", "application/x-www-form-urlencoded"):
        answer = client.post("/predict", png.read_bytes(), kind)
        assert answer.status == 200
        assert answer.json == {"predictions": packed.run([png])}
    photograph = io.BytesIO()
    Image.open(png).save(photograph, "JPEG")
    assert client.post("/predict", photograph.getvalue(), "image/jpeg").status == 200


def test_predict_gives_labels_or_numbers_for_raw_pixels(
    client: Any, packed: Bundle, digits: Images
) -> None:
    answer = client.post("/predict", digits[:3].tobytes())
    said = [each["label"] for each in answer.json["predictions"]]
    assert said == [each["label"] for each in packed.run(digits[:3])]
    numbers = client.post("/predict?output=numbers", digits[:3].tobytes()).json["outputs"]
    assert np.allclose(numbers, packed.predict(digits[:3]), atol=1e-4)


def inference(images: Images, **more: Any) -> dict[str, Any]:
    tensor = {"name": "images", "datatype": "UINT8", "shape": list(images.shape)}
    return {"inputs": [{**tensor, "data": images.tolist()}], **more}


def test_server_follows_the_open_inference_protocol(
    client: Any, packed: Bundle, digits: Images
) -> None:
    model = f"/v2/models/{packed.description['id']}"
    assert client.get("/v2/health/live").status == client.get("/v2/health/ready").status == 200
    assert client.get(f"{model}/ready").status == 200
    about = client.get(model).json
    assert about["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, 8, 8, 1]}]
    body = json.dumps(inference(digits[:2], id="mine")).encode()
    answer = client.post(f"{model}/infer", body, "application/json").json
    (outputs,) = answer["outputs"]
    assert (answer["id"], answer["model_name"]) == ("mine", packed.description["id"])
    assert (outputs["name"], outputs["datatype"], outputs["shape"]) == ("outputs", "FP32", [2, 10])
    expected = packed.predict(digits[:2])
    assert np.allclose(outputs["data"], expected.reshape(-1), atol=1e-4)


def test_infer_supports_binary_tensors(client: Any, packed: Bundle, digits: Images) -> None:
    raw = digits[:2].tobytes()
    request = inference(digits[:2], parameters={"binary_data_output": True})
    del request["inputs"][0]["data"]
    request["inputs"][0]["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps(request).encode()
    path = f"/v2/models/{packed.description['id']}/infer"
    length = {HEADER_LENGTH.replace("-", "_"): str(len(head))}
    answer = client.ask("POST", path, head + raw, **length)
    end = int(answer.headers[HEADER_LENGTH])
    (outputs,) = json.loads(answer.body[:end])["outputs"]
    assert outputs["parameters"] == {"binary_data_size": len(answer.body) - end}
    found = np.frombuffer(answer.body[end:], "<f4").reshape(outputs["shape"])
    assert np.allclose(found, packed.predict(digits[:2]), atol=1e-4)
    for wrong in ("-1", "x", str(10**9)):
        bad = client.ask("POST", path, head + raw, **{HEADER_LENGTH.replace("-", "_"): wrong})
        bad.refused(400, HEADER_LENGTH)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"inputs": []}, "one input"),
        ({"inputs": 3}, "one input"),
        ({"parameters": 3}, "one input"),
        ({"name": "pixels"}, "'images' of UINT8 ['N', 8, 8, 1]"),
        ({"datatype": "FP32"}, "UINT8"),
        ({"shape": [2, 1, 8, 8]}, "expected"),
        ({"shape": [3, 8, 8, 1]}, "2 images were sent; the shape says 3"),
        ({"data": [[256] * 64] * 2}, "integers from 0 to 255"),
        ({"data": [[1], [1, 2]]}, "not a list of integers"),
        ({"data": None}, "not a list of integers"),
        ({"data": [1, 2]}, "a multiple of 64"),
        ({"parameters": {"binary_data_size": 5}}, "binary_data_size is 5; 0 bytes follow"),
    ],
)
def test_infer_refuses_invalid_requests(
    client: Any, packed: Bundle, digits: Images, change: dict[str, Any], part: str
) -> None:
    request = inference(digits[:2])
    own = {"name", "datatype", "shape", "data"}
    if own & set(change) or isinstance(change.get("parameters"), dict):
        request["inputs"][0].update(change)
    else:
        request.update(change)
    path = f"/v2/models/{packed.description['id']}/infer"
    client.post(path, json.dumps(request).encode(), "application/json").refused(400, part)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"\xff", b"3"])
def test_infer_refuses_bodies_that_are_not_json(client: Any, packed: Bundle, body: bytes) -> None:
    answer = client.post(f"/v2/models/{packed.description['id']}/infer", body)
    answer.refused(400, "not an inference")


def test_predict_returns_a_mask_of_one_image_within_its_memory_limit(
    serving: Serving, masks_bundle: Bundle, digits: Images, png: Path
) -> None:
    with serving(masks_bundle, ServerLimits(mask_bytes=20 * 14 * 8)) as (_, client):
        answer = client.post("/predict?output=mask", png.read_bytes(), "image/png")
        assert answer.headers["Content-Type"] == "image/png"
        mask = np.asarray(Image.open(io.BytesIO(answer.body)))
        assert np.array_equal(mask, masks_bundle.masks([png])[0])
        (said,) = client.post("/predict", digits[:1].tobytes()).json["predictions"]
        assert set(said["shares"]) == {"paper", "ink"}
        several = client.post("/predict?output=mask", digits[:2].tobytes())
        several.refused(400, "needs exactly one")
        large = io.BytesIO()
        Image.new("L", (21, 14)).save(large, "PNG")
        much = client.post("/predict?output=mask", large.getvalue(), "image/png")
        much.refused(413, "too much memory")


def test_server_reports_bad_input_in_one_line_and_keeps_the_connection(
    client: Any, digits: Images
) -> None:
    client.post("/predict", b"text", "image/png").refused(400, "not an image", "PNG or JPEG")
    client.post("/predict", b"", "image/png").refused(400, "not an image")
    client.post("/predict", b"12345").refused(400, "5 bytes", "8 x 8 x 1")
    client.post("/predict", b"").refused(400, "0 bytes")
    client.post("/predict", b"{}", "application/json").refused(415, "application/json")
    client.post("/predict?output=maks", digits[0].tobytes()).refused(400, "output=maks")
    client.post("/predict?mask=1", digits[0].tobytes()).refused(400, "'mask'")
    client.post("/predict?output=mask", digits[0].tobytes()).refused(400, "makes no masks")
    client.get("/predict").refused(405, "accepts POST")
    client.post("/health", b"").refused(405, "accepts GET")
    client.get("/nothing").refused(404, "/predict")
    assert client.get("/predict").headers["Allow"] == "POST"
    assert client.post("/predict", digits[0].tobytes()).status == 200


def test_predict_refuses_damaged_and_too_large_images(
    serving: Serving, packed: Bundle, png: Path
) -> None:
    with serving(packed, ServerLimits(pixels=20 * 14)) as (_, client):
        whole = png.read_bytes()
        assert client.post("/predict", whole, "image/png").status == 200
        client.post("/predict", whole[:-30], "image/png").refused(400, "cannot be read")
        large = io.BytesIO()
        Image.new("L", (20, 15)).save(large, "PNG")
        client.post("/predict", large.getvalue(), "image/png").refused(413, "at most 280")


def raw(server: BundleServer, request: bytes, end: bool = False) -> bytes:
    """Send the bytes and return the whole reply, until the server closes the connection."""
    with socket.create_connection(server.server_address[:2], timeout=20) as connection:
        connection.sendall(request)
        if end:
            connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(2**16):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /hea", 408),
        (b"GET /health HTTP/1.1\r\n", 408),
        (b"GET /health HTTP/1.1\r\nHost: he", 408),
        (b"GET /health HTTP/9.9\r\n\r\n", 505),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"GET /health HTTP/1.1\r\n" + (b"A: " + b"b" * 60_000 + b"\r\n") * 2 + b"\r\n", 431),
        (b"BREW /health HTTP/1.1\r\n\r\n", 501),
        (b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nContent-Length: many\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nContent-Length: +1\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nContent-Length:\r\n\r\n", 400),
        (b"POST /predict HTTP/1.1\r\nContent-Length : 1\r\n\r\n1", 400),
        (b"GET /health HTTP/1.1\r\nno colon here\r\nContent-Length: 0\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n: nameless\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n A: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nA: b\0c\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (
            b"POST /predict HTTP/1.1\r\nExpect: 100-continue\r\nbroken\r\n"
            b"Content-Length: 3\r\n\r\n",
            400,
        ),
        (
            b"POST /predict HTTP/1.1\r\nContent-Length: 1\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST /predict HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /predict HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort", 408),
        (
            b"POST /predict HTTP/1.1\r\nContent-Length: 99999999999\r\n"
            b"Expect: 100-continue\r\n\r\n",
            413,
        ),
    ],
)
def test_server_refuses_malformed_http_requests(
    server: tuple[BundleServer, Any], request_: bytes, status: int
) -> None:
    answer = raw(server[0], request_, end=True)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"Connection: close" in head
    assert set(json.loads(body)) == {"error"}
    assert server[1].get("/health").status == 200


def test_server_answers_expect_100_continue(
    server: tuple[BundleServer, Any], digits: Images
) -> None:
    with socket.create_connection(server[0].server_address[:2], timeout=20) as connection:
        head = b"POST /predict HTTP/1.1\r\nContent-Type: application/octet-stream\r\n"
        connection.sendall(head + b"Content-Length: 64\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(2**16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(digits[0].tobytes())
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.slow
def test_server_disconnects_slow_clients_and_serves_others(
    serving: Serving, packed: Bundle, digits: Images
) -> None:
    with serving(packed, ServerLimits(client_s=0.5)) as (server, client):
        for begun in (
            b"",
            b"GET /hea",
            b"POST /predict HTTP/1.1\r\nContent-Length: 64\r\n\r\nhalf",
        ):
            began = time.monotonic()
            answer = raw(server, begun)
            assert time.monotonic() - began < 5
            assert answer == b"" or answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))
        client.connection.close()
        assert client.post("/predict", digits[0].tobytes()).status == 200


def test_server_disconnects_a_client_that_sends_single_bytes(
    serving: Serving, packed: Bundle
) -> None:
    with (
        serving(packed, ServerLimits(client_s=0.6)) as (server, _),
        socket.create_connection(server.server_address[:2], timeout=20) as connection,
    ):
        dripped = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while dripped < 100:
                connection.sendall(b"a")
                dripped += 1
                time.sleep(0.1)
        assert dripped < 50


def test_server_refuses_too_many_connections_with_retry_after(
    serving: Serving, packed: Bundle
) -> None:
    with serving(packed, ServerLimits(connections=1)) as (server, client):
        assert client.get("/health").status == 200
        answer = raw(server, b"GET /health HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in answer
        client.connection.close()
        for _ in range(100):
            try:
                assert client.get("/metrics").status == 200
                break
            except (AssertionError, OSError):
                client.connection.close()
                time.sleep(0.05)
        else:
            pytest.fail("the place was not given back")


def test_predict_answers_503_if_the_queue_is_full(
    serving: Serving, packed: Bundle, digits: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), threading.Event()
    with (
        serving(packed, ServerLimits(waiting_images=2)) as (server, client),
        ThreadPoolExecutor() as pool,
    ):
        run = server.service._session.run

        def held(batch: Any) -> Any:
            entered.set()
            gate.wait(20)
            return run(batch)

        monkeypatch.setattr(server.service._batcher, "_run", held)
        others = [type(client)(server) for _ in range(2)]
        running = pool.submit(others[0].post, "/predict", digits[0].tobytes())
        assert entered.wait(20)
        waiting = pool.submit(others[1].post, "/predict", digits[:2].tobytes())
        while server.service._batcher.waiting < 2:
            time.sleep(0.01)
        full = client.post("/predict", digits[0].tobytes())
        full.refused(503, "try again")
        assert full.headers["Retry-After"] == "1"
        client.post("/predict", digits[:3].tobytes()).refused(413, "at most 2")
        gate.set()
        assert running.result(20).status == waiting.result(20).status == 200
        for other in others:
            other.connection.close()


def test_server_answers_many_clients_at_once_and_counts_them(
    server: tuple[BundleServer, Any], packed: Bundle, digits: Images, exposition: Any
) -> None:
    expected = [each["label"] for each in packed.run(digits)]

    def ask(place: int) -> list[str]:
        client = type(server[1])(server[0])
        found = [
            client.post("/predict", digits[i].tobytes()).json["predictions"][0]["label"]
            for i in range(place, 40, 8)
        ]
        client.connection.close()
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert [answers[i % 8][i // 8] for i in range(40)] == expected
    samples = exposition(server[1].get("/metrics").body.decode())
    predicted = frozenset({("path", "/predict"), ("status", "200")})
    assert samples["hwnas_requests_total", predicted] == 40
    assert samples["hwnas_images_total", frozenset()] == 40
    assert samples["hwnas_batch_images_sum", frozenset()] == 40
    assert samples["hwnas_request_seconds_count", frozenset()] == 40
    assert samples["hwnas_queue_images", frozenset()] == 0


def test_metrics_combine_unknown_paths(client: Any, exposition: Any) -> None:
    for path in ("/a", "/b", "/c?d"):
        client.get(path)
    answer = client.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = exposition(answer.body.decode())
    other = frozenset({("path", "other"), ("status", "404")})
    assert samples["hwnas_requests_total", other] == 3
    assert samples["hwnas_connections", frozenset()] == 1


def test_predict_answers_500_if_the_network_fails_and_continues(
    server: tuple[BundleServer, Any], digits: Images, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fails(batch: Any) -> Any:
        raise ArtifactError("it does not run")

    with monkeypatch.context() as patch:
        patch.setattr(server[0].service._batcher, "_run", fails)
        server[1].post("/predict", digits[0].tobytes()).refused(500, "it does not run")
    assert "ArtifactError" in capsys.readouterr().err
    assert server[1].post("/predict", digits[0].tobytes()).status == 200


def test_server_refuses_a_port_in_use_and_an_invalid_model_name(
    server: tuple[BundleServer, Any], packed: Bundle
) -> None:
    service = server[0].service
    with pytest.raises(ConfigError, match="choose another --host or --port"):
        BundleServer(service, port=server[0].server_address[1])
    with pytest.raises(ConfigError, match="cannot be a model's name"):
        Service(packed, BatchSettings(), ServerLimits(), "../a")


def test_artifact_of_the_bundle_can_be_chosen(
    with_two_artifacts: Bundle, digits: NDArray[np.uint8]
) -> None:
    service = Service(with_two_artifacts, BatchSettings(), ServerLimits(), artifact="fp32@pytorch")
    try:
        assert isinstance(service._session, type(with_two_artifacts.session(8, 1, "fp32@pytorch")))
        with service.claim(lambda: True) as claim:
            found = service.outputs(digits[:3], claim)
        np.testing.assert_allclose(found, with_two_artifacts.predict(digits[:3]), atol=1e-5)
    finally:
        service.close()


def test_serve_command_refuses_artifacts_that_the_bundle_lacks(
    with_two_artifacts: Bundle, hwnas: Callable[..., Any]
) -> None:
    hwnas("serve", with_two_artifacts.folder, "--artifact", "int8@openvino").refused(
        "has no artifact 'int8@openvino'", "known: fp32@onnxruntime, fp32@pytorch"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_serve_command_finishes_open_requests_after_a_signal(
    packed: Bundle, png: Path, number: int, status: int
) -> None:
    command = [sys.executable, "-m", "hwnas.cli", "serve", str(packed.folder), "--port", "0"]
    # A single request waits 3 s for others to fill its batch; the signal arrives meanwhile.
    with subprocess.Popen(
        [*command, "--max-wait-ms", "3000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().split()[-1]
        with ThreadPoolExecutor() as pool:
            host, port = url.removeprefix("http://").split(":")
            body = png.read_bytes()
            head = b"POST /predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(head + body)
                answer = pool.submit(connection.recv, 2**16)
                time.sleep(0.5)
                process.send_signal(number)
                assert answer.result(30).startswith(b"HTTP/1.1 200 OK")
        assert process.wait(30) == status
        assert "Traceback" not in process.stderr.read()


def test_head_gives_the_headers_of_get_without_a_body(client: Any, packed: Bundle) -> None:
    for path in ("/health", "/metrics", "/v2", f"/v2/models/{packed.description['id']}"):
        whole, head = client.get(path), client.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Type"] == whole.headers["Content-Type"]
        if path != "/metrics":  # its counters have changed
            assert head.headers["Content-Length"] == str(len(whole.body))
    assert client.ask("HEAD", "/predict").status == 405
    assert client.ask("HEAD", "/nothing").status == 404
    assert client.post("/health", b"").headers["Allow"] == "GET, HEAD"
    assert client.get("/health").status == 200, "the connection is as good as before"


@pytest.fixture
def held(
    server: tuple[BundleServer, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[threading.Event]:
    """Gate that holds back the network, whose first batch has already started."""
    gate, entered = threading.Event(), threading.Event()
    run = server[0].service._session.run

    def waits(batch: Any) -> Any:
        entered.set()
        assert gate.wait(20)
        return run(batch)

    monkeypatch.setattr(server[0].service._batcher, "_run", waits)
    with ThreadPoolExecutor(1) as pool:
        first = type(server[1])(server[0])
        answer = pool.submit(first.post, "/predict", bytes(64))
        assert entered.wait(20)
        yield gate
        gate.set()
        assert answer.result(20).status == 200
        first.connection.close()


def dropped(samples: Any, reason: str) -> float:
    found: float = samples.get(("hwnas_dropped_requests_total", frozenset({("reason", reason)})), 0)
    return found


def batcher_has(batcher: Any, images: int) -> bool:
    found: bool = batcher.waiting == images
    return found


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_server_drops_requests_of_disconnected_clients(
    server: tuple[BundleServer, Any], held: threading.Event, exposition: Any
) -> None:
    batcher = server[0].service._batcher
    for number in (1, 2, 3):
        with socket.create_connection(server[0].server_address[:2]) as connection:
            head = b"POST /predict HTTP/1.1\r\nContent-Type: application/octet-stream\r\n"
            connection.sendall(head + b"Content-Length: 64\r\n\r\n" + bytes(64))
            until(partial(batcher_has, batcher, number))
    held.set()
    until(lambda: batcher.waiting == 0)
    samples = {}

    def counted() -> bool:
        nonlocal samples
        samples = exposition(server[1].get("/metrics").body.decode())
        freed = samples["hwnas_memory_bytes", frozenset()] == 0
        return freed and dropped(samples, "gone") == 3

    until(counted)
    assert samples["hwnas_images_total", frozenset()] == 1, "the one that was being run"


def test_server_drops_requests_after_their_time_limit(
    serving: Serving, packed: Bundle, digits: Images, monkeypatch: pytest.MonkeyPatch,
    exposition: Any,
) -> None:  # fmt: skip
    gate = threading.Event()
    with serving(packed, ServerLimits(answer_s=0.3)) as (server, client):
        run = server.service._session.run
        monkeypatch.setattr(
            server.service._batcher, "_run", lambda batch: run(batch) if gate.wait(20) else None
        )
        with ThreadPoolExecutor(4) as pool:
            others = [type(client)(server) for _ in range(4)]
            asked = []
            for other in others:
                asked.append(pool.submit(other.post, "/predict", digits[:8].tobytes()))
                time.sleep(0.05)
            for each in asked:
                each.result(20).refused(504, "no answer within 0.3 s")
            for other in others:
                other.connection.close()
        gate.set()
        until(lambda: server.service._batcher.waiting == 0)
        samples: Any = {}

        def over() -> bool:
            nonlocal samples
            samples = exposition(client.get("/metrics").body.decode())
            return samples["hwnas_memory_bytes", frozenset()] == 0

        until(over)
        assert samples["hwnas_images_total", frozenset()] == 8
        assert dropped(samples, "late") == 3


def png_of(size: tuple[int, int], mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, "PNG")
    return file.getvalue()


def test_predict_refuses_a_large_image_before_decoding_it(
    serving: Serving, packed: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(packed, ServerLimits(memory_bytes=20_000_000)) as (server, client):
        read = type(server.service.model.preprocessing).read_image
        decoded: list[int] = []
        monkeypatch.setattr(
            type(server.service.model.preprocessing), "read_image",
            lambda self, *how: decoded.append(1) or read(self, *how),
        )  # fmt: skip
        large = client.post("/predict", png_of((2000, 2000)), "image/png")
        large.refused(413, "2000 x 2000 pixels needs", "MB of memory", "--memory-mb")
        narrow = client.post("/predict", png_of((1, 1_000_000)), "image/png")
        narrow.refused(413, "1 x 1000000 pixels needs")
        client.post("/predict", bytes(6_000_000)).refused(413, "a body of 6000000 bytes")
        assert not decoded
        assert client.post("/predict", png_of((1000, 1000)), "image/png").status == 200
        assert server.service.memory.used_bytes == 0


def test_predict_answers_503_if_other_requests_use_the_memory(
    serving: Serving, packed: Bundle, exposition: Any
) -> None:
    limits = ServerLimits(memory_bytes=20_000_000, memory_wait_s=0.2)
    with serving(packed, limits) as (server, client):
        body = png_of((1000, 1000))
        with server.service.memory.reserve("work", 12_000_000, "a test"):
            busy = client.post("/predict", body, "image/png")
            busy.refused(503, "1000 x 1000", "other requests use 12 of 15 MB")
            assert busy.headers["Retry-After"] == "2"
            samples = exposition(client.get("/metrics").body.decode())
            assert samples["hwnas_memory_bytes", frozenset()] == 12_000_000
            assert samples["hwnas_memory_limit_bytes", frozenset()] == 20_000_000
        assert client.post("/predict", body, "image/png").status == 200


def test_service_refuses_a_memory_limit_that_is_too_small(packed: Bundle) -> None:
    with pytest.raises(ConfigError, match="give a larger --memory-mb"):
        Service(packed, BatchSettings(), ServerLimits(memory_bytes=1000))


def test_predict_scales_16_bit_images_to_8_bits(
    client: Any, packed: Bundle, tmp_path: Path
) -> None:
    ramp = np.linspace(0, 65535, 64).reshape(8, 8)
    Image.fromarray(ramp.astype(np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(np.round(ramp / 257).astype(np.uint8)).save(tmp_path / "flat.png")
    deep, flat = (
        client.post("/predict?output=numbers", (tmp_path / name).read_bytes(), "image/png").json[
            "outputs"
        ]
        for name in ("deep.png", "flat.png")
    )
    assert np.allclose(deep, flat, atol=1e-4)


@pytest.mark.parametrize("datatype", ["\\ud800", "x" * 5000], ids=["half a character", "very long"])
def test_infer_error_stays_valid_and_short_for_any_quoted_text(
    client: Any, packed: Bundle, digits: Images, datatype: str
) -> None:
    body = json.dumps(inference(digits[:1])).replace("UINT8", datatype).encode()
    answer = client.post(f"/v2/models/{packed.description['id']}/infer", body)
    answer.refused(400, "the input is 'images' of")
    assert len(answer.body) < 2000


def test_infer_refuses_a_header_length_of_thousands_of_digits(client: Any, packed: Bundle) -> None:
    path = f"/v2/models/{packed.description['id']}/infer"
    length = {HEADER_LENGTH.replace("-", "_"): "1" * 5000}
    client.ask("POST", path, b"{}", **length).refused(400, HEADER_LENGTH)


def test_infer_refuses_long_texts_instead_of_numbers_quickly(client: Any, packed: Bundle) -> None:
    """Regression test: NumPy stored each text at the length of the longest, 4 GB for 1 MB."""
    data = ["x" * 1_000_000, *[""] * 999]
    tensor = {"name": "images", "datatype": "UINT8", "shape": [1, 8, 8, 1], "data": data}
    body = json.dumps({"inputs": [tensor]}).encode()
    began = time.monotonic()
    answer = client.post(f"/v2/models/{packed.description['id']}/infer", body)
    answer.refused(400, "not a list of integers")
    assert time.monotonic() - began < 1


def test_predict_answers_500_for_outputs_that_are_not_finite(
    server: tuple[BundleServer, Any], digits: Images, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(
        server[0].service._batcher, "_run", lambda batch: np.full((len(batch), 10), np.nan)
    )
    for path in ("/predict", "/predict?output=numbers"):
        server[1].post(path, digits[0].tobytes()).refused(500, "not finite")
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["twice", "empty", "no size"])
def test_predict_refuses_images_with_inconsistent_headers(client: Any, damage: str) -> None:
    whole = png_of((8, 8))
    size = whole[8:33]
    bodies = {
        "twice": whole[:33] + size + whole[33:],
        "empty": whole[:16] + bytes(8) + whole[24:],
        "no size": whole[:8] + whole[33:],
    }
    answer = client.post("/predict", bodies[damage], "image/png")
    answer.refused(400, "the body is not a valid image")


@pytest.mark.slow
def test_server_disconnects_a_client_that_reads_its_answer_slowly(
    serving: Serving, packed: Bundle
) -> None:
    """Regression test: each read restarted the timeout, so the connection stayed open forever."""
    with serving(packed, ServerLimits(client_s=0.5, waiting_images=5000)) as (server, _):
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        with socket.create_connection(server.server_address[:2], timeout=20) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
            head = b"POST /predict?output=numbers HTTP/1.1\r\nContent-Length: 320000\r\n"
            kind = b"Content-Type: application/octet-stream\r\n\r\n"
            connection.sendall(head + kind + bytes(320_000))
            connection.recv(512)
            end = time.monotonic() + 4
            with contextlib.suppress(ConnectionResetError):
                while len(server.clients) and time.monotonic() < end:
                    connection.recv(8192)
                    time.sleep(0.1)
            assert len(server.clients) == 0
