"""Open Inference Protocol (KServe version 2) over HTTP, with its binary tensor extension.

A request has one input, ``images``, UINT8 (N, H, W, C): pixels of the network's size, which the
server preprocesses. Its values are in the JSON, or are bytes after the JSON, whose length is then
in the header ``Inference-Header-Content-Length``. The answer has one output in the same format.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.error_line import first_line
from hwnas.deploy.export.to_onnx import INPUT, OUTPUT
from hwnas.deploy.serve.costs import json_bytes
from hwnas.deploy.serve.limits import RequestRefusal
from hwnas.deploy.serve.service import ResourceClaim, Service

__all__ = ["HEADER_LENGTH", "Inference", "metadata", "read_inference", "render_inference"]

HEADER_LENGTH = "Inference-Header-Content-Length"
_LONGEST_ID = 1000
_DIMENSIONS = 3  # after the first: rows, columns and channels


@dataclass(frozen=True)
class Inference:
    """Inference request.

    Attributes:
        images: Images of type uint8, (N, H, W, C).
        id: Id that the client gave, if any; it is returned with the answer.
        binary: Whether the outputs are requested as bytes.
    """

    images: NDArray[np.uint8]
    id: str | None
    binary: bool


def metadata(service: Service) -> dict[str, Any]:
    """Return the metadata of the model: its name, inputs and outputs."""
    return {
        "name": service.name,
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *service.image_shape]}],
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, *service.output_shape]}],
    }


def read_inference(
    body: bytes, header_length: str | None, service: Service, claim: ResourceClaim
) -> Inference:
    """Read the body of a request.

    Args:
        body: JSON, possibly followed by bytes.
        header_length: Length of the JSON, if bytes follow it.
        service: Service that the images are for.
        claim: Claim of the request; memory for the request is reserved in it.

    Raises:
        Refusal: 400 with the problem, or 413 or 503 if there is no memory for the request.
    """
    length = _json_length(body, header_length)
    head = body[:length]
    service.reserve(json_bytes(head), f"JSON of {length} bytes", claim)
    try:
        request = json.loads(head)
        (tensor,) = request["inputs"]
        name, datatype, shape = tensor["name"], tensor["datatype"], list(tensor["shape"])
        parameters = tensor.get("parameters", {})
        binary_size, data = parameters.get("binary_data_size"), tensor.get("data")
        identity = request.get("id")
        binary = _wants_binary(request)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = first_line(error, named=True)
        raise RequestRefusal(
            400, f"the request is not an inference with one input ({reason})"
        ) from None
    if (name, datatype) != (INPUT, "UINT8") or shape[1:] != list(service.image_shape):
        expected = f"{INPUT!r} of UINT8 {['N', *service.image_shape]}"
        raise RequestRefusal(
            400, f"the input is {name!r} of {datatype} {shape}; expected {expected}"
        )
    pixels = body[length:] if binary_size is not None else _listed(data)
    if binary_size not in (None, len(pixels)):
        raise RequestRefusal(
            400, f"binary_data_size is {binary_size!r}; {len(pixels)} bytes follow the JSON"
        )
    if not isinstance(identity, str | None) or len(identity or "") > _LONGEST_ID:
        raise RequestRefusal(400, f"the id is not a text of at most {_LONGEST_ID} characters")
    del request, tensor, parameters, data  # all memory of the parsed JSON
    claim.shrink(len(head) + len(pixels))
    claim.answering = "binary" if binary else "numbers"
    images = service.read_pixels(pixels, claim)
    if len(images) != shape[0]:
        raise RequestRefusal(400, f"{len(images)} images were sent; the shape says {shape[0]!r}")
    return Inference(images, identity, binary)


def _json_length(body: bytes, header_length: str | None) -> int:
    """Return the number of bytes of a body that are JSON."""
    if header_length is None:
        return len(body)
    whole = header_length.isascii() and header_length.isdigit() and len(header_length) <= 18
    if not whole or int(header_length) > len(body):
        raise RequestRefusal(
            400, f"{HEADER_LENGTH} is {header_length[:40]!r}; the body has {len(body)} bytes"
        )
    return int(header_length)


def render_inference(
    request: Inference, outputs: NDArray[Any], service: Service
) -> tuple[bytes, Mapping[str, str]]:
    """Return the body and the headers of an answer."""
    found = np.ascontiguousarray(outputs, np.float32)
    tensor: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": list(found.shape)}
    raw = found.astype("<f4", copy=False).tobytes() if request.binary else b""
    if request.binary:
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = found.reshape(-1).tolist()
    answer = {"model_name": service.name, "model_version": "1", "outputs": [tensor]}
    if request.id is not None:
        answer["id"] = request.id
    head = json.dumps(answer, allow_nan=False).encode()
    if not request.binary:
        return head, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return head + raw, headers


def _wants_binary(request: Mapping[str, Any]) -> bool:
    """Return whether binary output is requested, for all outputs or for the named one.

    The request parameters are those of the protocol's binary tensor extension.
    """
    for_all = bool(request.get("parameters", {}).get("binary_data_output", False))
    outputs = request.get("outputs") or [{}]
    return bool(outputs[0].get("parameters", {}).get("binary_data", for_all))


def _listed(data: Any) -> bytes:
    """Return the pixels in a flat or nested JSON list as bytes.

    NumPy is not used, because the values are not yet known to be numbers. It would convert strings
    to an array in which each takes as much memory as the longest.
    """
    if not isinstance(data, list):
        raise RequestRefusal(400, "data is not a list of integers from 0 to 255")
    for _ in range(_DIMENSIONS):
        if {type(each) for each in data} != {list}:
            break
        if len({len(each) for each in data}) != 1:
            raise RequestRefusal(400, "data is not a list of integers: its rows differ in length")
        data = list(itertools.chain.from_iterable(data))
    if {type(each) for each in data} == {int}:
        with contextlib.suppress(ValueError):
            return bytes(data)
    raise RequestRefusal(400, "data is not a list of integers from 0 to 255")
