"""The Open Inference Protocol (KServe's version 2) over HTTP, with its binary tensors.

Of a request: one input, ``images``, UINT8 (N, H, W, C): pixels of the network's own size, which are
prepared here. Its numbers stand in the JSON, or as bytes after it, whose length is then in the
header ``Inference-Header-Content-Length``. The answer has one output in the same manner.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.export import INPUT, OUTPUT
from hwnas.deploy.serve.limits import Refusal
from hwnas.deploy.serve.service import Service

__all__ = ["HEADER_LENGTH", "Inference", "metadata", "read_inference", "render_inference"]

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Inference:
    """A request.

    Attributes:
        images: uint8 (N, H, W, C).
        id: The client's own, if it gave one; comes back with the answer.
        binary: Whether the outputs are wanted as bytes.
    """

    images: NDArray[np.uint8]
    id: str | None
    binary: bool


def metadata(service: Service) -> dict[str, Any]:
    """What the model takes and gives."""
    shape = service.bundle.description["outputs"]["shape"]
    return {
        "name": service.name,
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *service.image_shape]}],
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, *shape[1:]]}],
    }


def read_inference(body: bytes, header_length: str | None, service: Service) -> Inference:
    """Read the body of a request.

    Args:
        body: JSON, perhaps with bytes after it.
        header_length: Of the JSON, where there are bytes after it.
        service: Whose images these are.

    Raises:
        Refusal: 400, with what is wrong.
    """
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit()) or int(header_length) > length:
            raise Refusal(400, f"{HEADER_LENGTH} is {header_length!r}; the body has {length} bytes")
        length = int(header_length)
    try:
        request = json.loads(body[:length])
        (tensor,) = request["inputs"]
        name, datatype, shape = tensor["name"], tensor["datatype"], list(tensor["shape"])
        parameters = tensor.get("parameters", {})
        binary_size, data = parameters.get("binary_data_size"), tensor.get("data")
        identity = request.get("id")
        binary = _wants_binary(request)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refusal(400, f"the request is no inference with one input ({error!r})") from None
    if (name, datatype) != (INPUT, "UINT8") or shape[1:] != list(service.image_shape):
        expected = f"{INPUT!r} of UINT8 {['N', *service.image_shape]}"
        raise Refusal(400, f"the input is {name!r} of {datatype} {shape}; expected {expected}")
    pixels = body[length:] if binary_size is not None else _listed(data)
    if binary_size not in (None, len(pixels)):
        raise Refusal(400, f"binary_data_size is {binary_size!r}; {len(pixels)} bytes follow")
    images = service.read_pixels(pixels)
    if len(images) != shape[0]:
        raise Refusal(400, f"{len(images)} images were sent, and the shape says {shape[0]!r}")
    return Inference(images, identity if isinstance(identity, str) else None, binary)


def render_inference(
    request: Inference, outputs: NDArray[Any], service: Service
) -> tuple[bytes, Mapping[str, str]]:
    """The body and the headers of an answer."""
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
    """As the protocol's extension has it: for all outputs, or for the one that is named."""
    for_all = bool(request.get("parameters", {}).get("binary_data_output", False))
    outputs = request.get("outputs") or [{}]
    return bool(outputs[0].get("parameters", {}).get("binary_data", for_all))


def _listed(data: Any) -> bytes:
    """Pixels that stand in the JSON, flat or nested."""
    try:
        found = np.asarray(data)
    except ValueError:  # rows of different lengths
        found = np.empty(0)
    whole = found.size > 0 and found.dtype.kind == "i"
    if not whole or found.min() < 0 or found.max() > 255:
        raise Refusal(400, "data is no list of whole numbers from 0 to 255")
    return found.astype(np.uint8).tobytes()
