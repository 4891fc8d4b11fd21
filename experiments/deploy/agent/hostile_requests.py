"""Requests that an agent must refuse; each is a function of its number.

Some come from any client that reaches the port. Others are signed with the token, since a host that
has the token may be faulty or compromised.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.deploy.agent.hostile_jobs import plain_job
from hwnas.deploy.agent.signing import (
    CHALLENGE,
    DIGEST,
    NONCE,
    SIGNATURE,
    digest_of,
    request_signature,
)

__all__ = [
    "METHODS",
    "PATHS",
    "Attempt",
    "Signer",
    "everywhere",
    "request",
    "signed",
    "tampered",
    "unsigned",
]

METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH", "CONNECT", "BREW")
_MODEL, _JOB = f"/v1/models/{'0f' * 32}", f"/v1/jobs/{'0f' * 16}"
PATHS = ("/", "/v1", "/v1/", "/v1/about", _MODEL, _JOB, f"{_JOB}?wait=20", "/health/", "//", "*")
_TRICKS = (
    "/v1/../v1/about", "/v1/about/../../key", "/v1/./about", "//v1//about", "/v1/about%00",
    "/v1%2fabout", "/v1/models/../../key", "/v1/models/..%2f..%2fkey",
    "/v1/models/%2e%2e/%2e%2e/key",
    "/v1/jobs/../../../etc/passwd", "/v1/jobs/%2e%2e%2f%2e%2e%2fkey", "/v1/jobs/..\\..\\key",
    "/v1/jobs/\x00", f"{_JOB}\x00.json", f"{_MODEL}/../key", "/v1/jobs/", "/v1/jobs/~root",
    "file:///etc/passwd", "https://[/v1/about", "https://[::1/v1/about", "https://x/v1/about",
    "/\xff\xfe", "/v1/jobs/$(id)", "/v1/jobs/-rf", f"{_JOB}?wait=nan", f"{_JOB}?wait=-1",
    f"{_JOB}?wait=1e999", f"{_JOB}?" + "&=" * 1500, "/health/../v1/about",
    "/v1/about#/health", "/health?/v1/about",
)  # fmt: skip
_LENGTHS = ("-1", "0x10", "1e9", "9" * 30, "1, 2", "", " ", "+5", "²", "999999999999", "4294967296")
_NUMBERS = (-1, 0, 2**63, 10**400, 1e308, -0.5, True, None, "5", [], {}, float("nan"), float("inf"))


@dataclass(frozen=True)
class Attempt:
    """Hostile request.

    Attributes:
        kind: Kind of attack.
        content: Bytes that are sent.
        due: Whether the agent must answer; otherwise it may also close the connection.
        encrypted: Whether the request is sent over TLS.
    """

    kind: str
    content: bytes
    due: bool = True
    encrypted: bool = True


@dataclass
class Signer:
    """Signer of requests to an agent.

    Attributes:
        key: Key derived from the token.
        certificate: SHA-256 of the agent's certificate.
        challenge: Last challenge that the agent gave.
    """

    key: str
    certificate: str
    challenge: str

    def __call__(
        self, rng: random.Random, method: str, path: str, body: bytes = b""
    ) -> dict[str, str]:
        """Return the headers of a request, with the correct content length."""
        nonce, digest = rng.randbytes(16).hex(), digest_of(body)
        signature = request_signature(
            self.key, self.certificate, self.challenge, nonce, method, path, digest
        )
        return {
            CHALLENGE: self.challenge,
            NONCE: nonce,
            DIGEST: digest,
            SIGNATURE: signature,
            "Content-Length": str(len(body)),
        }


def request(
    method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b""
) -> bytes:
    """Return the raw bytes of a request, whether or not its parts are valid."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def everywhere(kind: str, signer: Signer | None) -> list[Attempt]:
    """Return requests of each method on each path, signed with a key or unsigned."""
    rng = random.Random(0)
    return [
        Attempt(
            kind,
            request(method, path, [*signer(rng, method, path).items()] if signer else []),
        )
        for method in METHODS
        for path in (*PATHS, *_TRICKS, *(["/health"] if method != "GET" else []))
    ]


def tampered(seed: int, signer: Signer) -> Attempt:
    """Return a request that was changed after it was signed."""
    rng = random.Random(f"tampered {seed}")
    headers = signer(rng, "GET", "/v1/about")
    changed = rng.choice(["method", "path", CHALLENGE, NONCE, DIGEST, SIGNATURE])
    if changed in headers:
        value = headers[changed]
        place = rng.randrange(len(value))
        other = rng.choice(
            [each for each in "0123456789abcdefXYZ_- \x00\xff" if each != value[place]]
        )
        headers[changed] = rng.choice(["", value[:-1], value[:place] + other + value[place + 1 :]])
    method = "DELETE" if changed == "method" else "GET"
    path = _JOB if changed == "path" else "/v1/about"
    return Attempt("tampered with", request(method, path, [*headers.items()]))


def unsigned(seed: int) -> Attempt:
    """Return a malformed request that any client could send."""
    rng = random.Random(f"unsigned {seed}")
    kinds: Sequence[Callable[[random.Random], Attempt]] = (
        lambda rng: Attempt("bytes", rng.randbytes(rng.randrange(1, 4000)), due=False),
        lambda rng: Attempt(
            "bytes without TLS", rng.randbytes(rng.randrange(1, 4000)), False, encrypted=False
        ),
        lambda rng: Attempt("first line", _first_line(rng), due=False),
        lambda rng: Attempt(
            "headers", request("GET", "/v1/about", _headers(rng)), due=False
        ),
        lambda rng: Attempt("length", request("PUT", _job(rng), _length(rng), b"{}")),
        lambda rng: Attempt(
            "body", request("PUT", _job(rng), [("Content-Length", "9" * 9)], _junk(rng))
        ),
        lambda rng: Attempt("path", request(rng.choice(METHODS), _path(rng))),
    )  # fmt: skip
    found = rng.choice(kinds)(rng)
    return Attempt(f"unsigned: {found.kind}", found.content, found.due, found.encrypted)


def signed(seed: int, signer: Signer) -> Attempt:
    """Return a malformed request from a holder of the token."""
    rng = random.Random(f"signed {seed}")

    def whole(kind: str, method: str, path: str, body: bytes = b"") -> Attempt:
        return Attempt(
            kind, request(method, path, [*signer(rng, method, path, body).items()], body)
        )

    def other_length(rng: random.Random) -> Attempt:
        path, body = rng.choice([(_job(rng), _valid_job()), (_model(rng.randbytes(9)), b"x" * 99)])
        headers = signer(rng, "PUT", path, body)
        del headers["Content-Length"]
        return Attempt("length", request("PUT", path, [*headers.items(), *_length(rng)], body))

    def more_headers(rng: random.Random) -> Attempt:
        headers = [*signer(rng, "PUT", _JOB, b"{}").items(), *_headers(rng)]
        rng.shuffle(headers)
        return Attempt("headers", request("PUT", _JOB, headers, b"{}"), due=False)

    def model(rng: random.Random) -> Attempt:
        body = _no_model(rng)
        named = _model(body if rng.random() < 0.8 else b"another")
        return whole("model", "PUT", named, body)

    kinds: Sequence[Callable[[random.Random], Attempt]] = (
        lambda rng: whole("job", "PUT", _job(rng), _no_job(rng)),
        lambda rng: whole("changed job", "PUT", _job(rng), _changed_job(rng)),
        lambda rng: whole("path", rng.choice(METHODS), _path(rng), rng.choice([b"", _valid_job()])),
        other_length,
        more_headers,
        model,
    )
    found = rng.choice(kinds)(rng)
    return Attempt(f"signed: {found.kind}", found.content, found.due)


def _job(rng: random.Random) -> str:
    return f"/v1/jobs/{rng.randbytes(16).hex()}"


def _model(content: bytes) -> str:
    return f"/v1/models/{digest_of(content)}"


def _path(rng: random.Random) -> str:
    """Return one of the tricks, or a random path made of the same parts."""
    if rng.random() < 0.5:
        return rng.choice(_TRICKS)
    parts = ["..", ".", "%2e%2e", "%00", "\x00", "key", "models", "jobs", "\\", "é", "%", "?", ";"]
    return "/v1/" + rng.choice(["", "/"]).join(rng.choices(parts, k=rng.randrange(1, 40)))


def _first_line(rng: random.Random) -> bytes:
    """Return a start of a request that is not a valid line METHOD PATH HTTP/1.1."""
    return rng.choice(
        [
            b"GET\r\n\r\n", b"\r\n\r\n", b"GET /v1/about\r\n", b"get /v1/about HTTP/1.1\r\n\r\n",
            b"GET /v1/about HTTP/9.9\r\n\r\n", b"GET /v1/about HTTP/1.1.1\r\n\r\n",
            b"GET /v1/about HTTP/" + b"9" * 3000 + b".1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /" + b"a" * rng.choice([4000, 5000, 10**5, 10**6]) + b" HTTP/1.1\r\n\r\n",
            b"G\x00T /v1/about HTTP/1.1\r\n\r\n", b"GET /v1 about HTTP/1.1\r\n\r\n", b"GET /v1/abo",
        ]
    )  # fmt: skip


def _headers(rng: random.Random) -> list[tuple[str, str]]:
    """Return headers that are too many, too long, or of a kind that no client sends."""
    return rng.choice(
        [
            [(f"X-{i}", "x") for i in range(rng.choice([90, 101, 5000]))],
            [("X-Long", "x" * rng.choice([5000, 70_000, 10**6]))],
            [("X" * rng.choice([3000, 10**5]), "x")],
            [("X-Nul", "a\x00b"), ("X\x00", "x"), ("", ""), ("X-\xff\xfe", "\xff")],
            [("X-Folded", "a\r\n b\r\n\tc"), ("X-Split", "a\rb"), ("X-Feed", "a\nb")],
            [("Content-Length", "5"), ("Content-Length", "6"), ("Transfer-Encoding", "chunked")],
            [("Expect", "100-continue"), ("Upgrade", "h2c"), ("Connection", "keep-alive, Upgrade")],
            [(SIGNATURE, "0f" * 32)] * 3 + [(NONCE, "é"), (DIGEST, "0" * 64), (CHALLENGE, "")],
        ]
    )


def _length(rng: random.Random) -> list[tuple[str, str]]:
    """Return a wrong, senseless or huge content length, or a chunked encoding in its place."""
    if rng.random() < 0.25:
        return [("Transfer-Encoding", rng.choice(["chunked", "gzip, chunked", "\x0bchunked"]))]
    return [("Content-Length", each) for each in rng.sample(_LENGTHS, rng.choice([1, 1, 2]))]


def _junk(rng: random.Random) -> bytes:
    return rng.randbytes(64) * rng.choice([1, 100, 10_000])


def _valid_job() -> bytes:
    """Return a job that would be accepted if its model existed."""
    return json.dumps(plain_job("0f" * 32)).encode()


def _no_job(rng: random.Random) -> bytes:
    """Return bytes that are no JSON object, or one that is hard to parse."""
    whole = _valid_job()
    return rng.choice(
        [
            b"",
            rng.randbytes(rng.randrange(1, 3000)),
            whole[: rng.randrange(1, len(whole))],
            whole.replace(b"network", b"\xff\xfe\xc0"),
            whole.decode().encode("utf-16"),
            b"[" * rng.choice([10, 1000, 10**5, 10**6]),
            b'{"a":' * rng.choice([10, 1000, 10**5]) + b"1" + b"}" * 1000,
            b'{"subjects": ' + b"9" * rng.choice([400, 5000, 10**6]) + b"}",
            whole.replace(b"0.1", rng.choice([b"1e999", b"-Infinity", b"NaN", b"0x1", b"1_0"])),
            rng.choice([b"null", b"true", b"[]", b'"job"', b"1", b"{}", b"{" + b" " * 2**20]),
            whole.replace(b'"network"', b'"' + b"n" * rng.choice([201, 10**6]) + b'"'),
        ]
    )


def _changed_job(rng: random.Random) -> bytes:
    """Return a job in which a value has a wrong type, is out of bounds, or is missing."""
    job = plain_job("0f" * 32)
    asked = job["subjects"]["network"]
    place: dict[str, Any] = rng.choice([job, job["settings"], job["settings"], asked, asked])
    name = rng.choice(sorted(place))
    words = (
        "../../key",
        "\ud800",
        "\x00",
        "cuda-tensorrt-fp16-b1-t1",
        "pi5-onnxruntime-fp32-b1-t1",
    )
    words += ("cpu-onnxruntime-fp32-b0-t0", "cpu-onnxruntime-fp32-b9999999-t1", "0F" * 32)
    if rng.random() < 0.2:
        del place[name]
    elif rng.random() < 0.2:
        place[f"{name}x"] = 1
    else:
        place[name] = rng.choice([*_NUMBERS, *words, [[{"model": []}]]])
    return json.dumps(job).encode()


def _no_model(rng: random.Random) -> bytes:
    return rng.choice(
        [
            rng.randbytes(rng.randrange(1, 3000)),
            b"PK\x03\x04" + rng.randbytes(100),
            b"\x3a" + b"\xff" * 9 + b"\x01" + rng.randbytes(100),
            b"\x08\x08" * 30_000,
            b"\x3a\xff\xff\xff\x7f",
            b"\x80" * 1000,
        ]
    )
