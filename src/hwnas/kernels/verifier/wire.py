"""Messages between processes that do not trust each other: a line of JSON and plain arrays.

Nothing is unpickled: the data that a process sends can be wrong, but cannot run any code here.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import ConfigError, KernelError
from hwnas.kernels.operator import Inputs, dtype_name

__all__ = [
    "DTYPES",
    "flat_bytes",
    "frame",
    "from_bytes",
    "inputs_from",
    "inputs_to",
    "message",
    "messages",
    "received",
    "to_bytes",
]

DTYPES: dict[str, torch.dtype] = {
    dtype_name(dtype): dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    )
}
_LENGTH = 8


def message(header: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> bytes:
    """Return a message as bytes; its tensors arrive contiguous, on the CPU."""
    kinds = [[dtype_name(tensor.dtype), list(tensor.shape)] for tensor in tensors]
    line = json.dumps({"header": header, "tensors": kinds}).encode()
    return b"".join(
        [len(line).to_bytes(_LENGTH, "little"), line, *(to_bytes(tensor) for tensor in tensors)]
    )


def messages(data: bytes) -> Iterator[tuple[dict[str, Any], list[Tensor]]]:
    """Yield all complete messages in order; the last one may have been cut off.

    Raises:
        KernelError: The data are not messages.
    """
    stream = io.BytesIO(data)
    while len(length := stream.read(_LENGTH)) == _LENGTH:
        size = int.from_bytes(length, "little")
        line = stream.read(min(size, len(data)))
        if len(line) < size:
            return
        try:
            content = json.loads(line)
            kinds = [(DTYPES[name], tuple(map(int, shape))) for name, shape in content["tensors"]]
            header = dict(content["header"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise KernelError("the kernel's process sent back damaged results") from error
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in kinds]
        if any(size < 0 for _, shape in kinds for size in shape) or sum(sizes) > len(data):
            raise KernelError("the kernel's process sent back damaged results")
        parts = [stream.read(size) for size in sizes]
        if any(len(part) < size for part, size in zip(parts, sizes, strict=True)):
            return
        yield (
            header,
            [from_bytes(part, *kind) for part, kind in zip(parts, kinds, strict=True)],
        )


def frame(data: bytes) -> bytes:
    """Return a message as it is sent through a socket, preceded by its length."""
    return len(data).to_bytes(_LENGTH, "little") + data


def received(read: Callable[[int], bytes], most: int = 2**40) -> bytes | None:
    """Return the next message from a socket, or None at the end of the stream.

    Args:
        read: Function that reads at most the given number of bytes, and none at the end.
        most: Largest number of bytes that a message may have.

    Raises:
        KernelError: The message has more bytes.
    """
    length = _exactly(read, _LENGTH)
    if length is None:
        return None
    size = int.from_bytes(length, "little")
    if size > most:
        raise KernelError("the kernel's process sent back damaged results, or too many")
    return _exactly(read, size)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = read(min(size - len(found), 2**20))
        if not part:
            return None
        found += part
    return bytes(found)


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the values of a tensor as bytes (n,), in the order of its indices, on its device."""
    # `contiguous` would keep the stride of an axis of length 1, which `view` does not accept.
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def to_bytes(tensor: Tensor) -> bytes:
    """Return the values of a tensor as Python's ``bytes``, in the order of its indices."""
    return flat_bytes(tensor).cpu().numpy().tobytes()


def from_bytes(data: bytes, dtype: torch.dtype, shape: Iterable[int]) -> Tensor:
    """Return a new tensor with the values that `to_bytes` gave."""
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(tuple(shape))


def inputs_to(inputs: Inputs) -> tuple[dict[str, Any], list[Tensor]]:
    """Return a description of inputs for a message's header, and their tensors.

    Raises:
        ConfigError: An input is not a tensor, a number, a text or None.
    """
    header: dict[str, Any] = {}
    tensors: list[Tensor] = []
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            header[name] = {"tensor": len(tensors)}
            tensors.append(value)
        elif value is None or isinstance(value, bool | int | float | str):
            header[name] = {"value": value}
        else:
            raise ConfigError(
                f"input {name!r} is a {type(value).__name__}; inputs are tensors, numbers, texts "
                "and None"
            )
    return header, tensors


def inputs_from(header: Mapping[str, Any], tensors: Sequence[Tensor]) -> Inputs:
    """Return the inputs of a description and its tensors, as the inverse of `inputs_to`."""
    return {
        name: tensors[of["tensor"]] if "tensor" in of else of["value"]
        for name, of in header.items()
    }
