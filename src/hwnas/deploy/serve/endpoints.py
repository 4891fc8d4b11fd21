"""HTTP endpoints of a served bundle, which map requests to answers without using sockets."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qs

from hwnas.deploy.serve.costs import Answering
from hwnas.deploy.serve.limits import RequestRefusal
from hwnas.deploy.serve.metrics import CONTENT_TYPE, Metric, render
from hwnas.deploy.serve.open_inference import (
    HEADER_LENGTH,
    metadata,
    read_inference,
    render_inference,
)
from hwnas.deploy.serve.service import ResourceClaim, Service
from hwnas.errors import DataError

__all__ = ["Endpoints", "HttpRequest", "HttpResponse", "error_answer"]

_JSON = "application/json"
_PIXELS = "application/octet-stream"
_FORM = "application/x-www-form-urlencoded"  # curl's default type for any file
_LONGEST_ERROR = 1000
_OUTPUTS: tuple[Answering, ...] = ("meaning", "numbers", "mask")


@dataclass(frozen=True)
class HttpRequest:
    """HTTP request of a client.

    Attributes:
        method: HTTP method, such as ``"GET"`` or ``"POST"``.
        target: Address with its query.
        headers: Headers by name, in any case.
        body: Body as received.
        claim: Memory and time granted to the request.
    """

    method: str
    target: str
    headers: Message = field(default_factory=Message)
    body: bytes = b""
    claim: ResourceClaim = field(default_factory=ResourceClaim)

    @property
    def path(self) -> str:
        """Address without its query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, list[str]]:
        """Query parameters: the values of each name."""
        return parse_qs(self.target.partition("?")[2], keep_blank_values=True)


@dataclass(frozen=True)
class HttpResponse:
    """HTTP answer to a client.

    Attributes:
        body: Body to send.
        headers: Headers by name.
        status: HTTP status code.
    """

    body: bytes
    headers: Mapping[str, str]
    status: int = 200


def error_answer(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """Return an error as one line of JSON, in the form of the Open Inference Protocol."""
    text = " ".join(message.split())
    if len(text) > _LONGEST_ERROR:  # it may quote the request
        text = f"{text[:_LONGEST_ERROR]}..."
    # Lone surrogates, which JSON can express, cannot be encoded.
    return _json({"error": text.encode(errors="replace").decode()}, status, headers)


class Endpoints:
    """Endpoints of a service.

    Args:
        service: Service that answers requests with images.
        metrics: Metrics shown in addition to the service's own.
        ready: Function that returns whether the server accepts new requests.
    """

    def __init__(
        self, service: Service, metrics: Sequence[Metric], ready: Callable[[], bool]
    ) -> None:
        self._service, self._metrics, self._ready = service, metrics, ready
        model = f"/v2/models/{service.name}"
        self._pages: dict[str, tuple[str, Callable[[HttpRequest], HttpResponse]]] = {
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._show_metrics),
            "/predict": ("POST", self._predict),
            "/v2": (
                "GET",
                lambda _: _json({"name": "hwnas", "extensions": ["binary_tensor_data"]}),
            ),
            "/v2/health/live": ("GET", lambda _: _json({"live": True})),
            "/v2/health/ready": ("GET", self._health),
            model: ("GET", lambda _: _json(metadata(service))),
            f"{model}/ready": ("GET", self._health),
            f"{model}/infer": ("POST", self._infer),
        }

    def known(self, path: str) -> str:
        """Return the path if it has an endpoint, else ``other``, to keep the metrics few."""
        return path if path in self._pages else "other"

    def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request; errors become answers too."""
        try:
            return self._page(request)(request)
        except RequestRefusal as error:
            return error_answer(error.status, str(error), error.headers)
        except DataError as error:
            return error_answer(400, str(error))
        except Exception as error:  # the server goes on; its log holds the traceback
            traceback.print_exc(file=sys.stderr)
            return error_answer(500, str(error) or type(error).__name__)

    def _page(self, request: HttpRequest) -> Callable[[HttpRequest], HttpResponse]:
        if request.path not in self._pages:
            raise RequestRefusal(
                404, f"unknown path {request.path}; expected {', '.join(self._pages)}"
            )
        method, page = self._pages[request.path]
        allowed = [method, "HEAD"] if method == "GET" else [method]
        if request.method not in allowed:
            raise RequestRefusal(
                405,
                f"{request.path} accepts {method}, not {request.method}",
                Allow=", ".join(allowed),
            )
        return page

    def _health(self, request: HttpRequest) -> HttpResponse:
        if not self._ready():
            raise RequestRefusal(503, "the server is shutting down", Retry_After="5")
        return _json({"ready": True, "model": self._service.name})

    def _show_metrics(self, request: HttpRequest) -> HttpResponse:
        text = render([*self._service.metrics, *self._metrics])
        return HttpResponse(text.encode(), {"Content-Type": CONTENT_TYPE})

    def _predict(self, request: HttpRequest) -> HttpResponse:
        wanted = _wanted(request)
        kind = request.headers.get("Content-Type", "image/*").partition(";")[0].strip().lower()
        if not (kind in (_PIXELS, _FORM) or kind.startswith("image/")):
            raise RequestRefusal(
                415, f"Content-Type is {kind!r}; expected image/png, image/jpeg or {_PIXELS}"
            )
        service, claim = self._service, request.claim
        claim.answering = wanted
        read = service.read_pixels if kind == _PIXELS else service.read_file
        images = read(request.body, claim)
        if wanted == "mask":
            return HttpResponse(service.mask(images, claim), {"Content-Type": "image/png"})
        if wanted == "numbers":
            return _json({"outputs": service.outputs(images, claim).tolist()})
        return _json({"predictions": service.describe(images, claim)})

    def _infer(self, request: HttpRequest) -> HttpResponse:
        length = request.headers.get(HEADER_LENGTH)
        inference = read_inference(request.body, length, self._service, request.claim)
        outputs = self._service.outputs(inference.images, request.claim)
        return HttpResponse(*render_inference(inference, outputs, self._service))


def _wanted(request: HttpRequest) -> Answering:
    query = request.query
    wanted = query.pop("output", [_OUTPUTS[0]])[-1]
    for known in _OUTPUTS:
        if wanted == known and not query:
            return known
    odd = next(iter(query), f"output={wanted}")
    raise RequestRefusal(400, f"the query has {odd!r}; expected output={'|'.join(_OUTPUTS)}")


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return HttpResponse(f"{text}\n".encode(), {"Content-Type": _JSON, **(headers or {})}, status)
