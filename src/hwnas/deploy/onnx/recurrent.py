"""ONNX operators LSTM and GRU in PyTorch, with weights in the order of PyTorch's gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import ArtifactError

__all__ = ["GATES", "gates_in_order", "gru", "lstm"]

GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""Places of PyTorch's gates (i, f, g, o of an LSTM and r, z, n of a GRU) in ONNX, by operator."""

_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}


def lstm(
    a: Mapping[str, Any],
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    hidden: Tensor | None = None,
    cell: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute an LSTM.

    Args:
        a: Attributes of the node.
        x: Input, (T, N, I).
        weight: Weights of the input, (directions, 4 H, I).
        recurrence: Recurrent weights, (directions, 4 H, H).
        bias: Biases of both, (directions, 8 H); zeros if None.
        lengths: Lengths of the sequences; only None is supported.
        hidden: First outputs, (directions, N, H); zeros if None.
        cell: First states, (directions, N, H); zeros if None.
        peepholes: Weights of the states; only None is supported.

    Returns:
        Outputs of all steps, (T, directions, N, H), last outputs and last states, (directions, N,
        H).

    Raises:
        ArtifactError: The node has an option that PyTorch's layer lacks.
    """
    if peepholes is not None or a.get("input_forget", 0):
        raise _unsupported("LSTM", "peepholes or coupled gates")
    _check(a, "LSTM", lengths)
    states = (_state(x, recurrence, hidden), _state(x, recurrence, cell))
    weights = _weights("LSTM", weight, recurrence, bias)
    y, h, c = torch.lstm(
        _turned(a, x), states, weights, bias is not None, 1, 0.0, False, len(weight) == 2, False
    )
    return _by_direction(a, y, len(weight)), h, c


def gru(
    a: Mapping[str, Any],
    x: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Tensor | None = None,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute a GRU whose reset gate multiplies the recurrent product, as in PyTorch.

    Args are those of `lstm`, with three gates.

    Returns:
        Outputs of all steps, (T, directions, N, H), and last outputs, (directions, N, H).

    Raises:
        ArtifactError: The node has an option that PyTorch's layer lacks.
    """
    if not a.get("linear_before_reset", 0):
        raise _unsupported("GRU", "a reset gate before the product (linear_before_reset = 0)")
    _check(a, "GRU", lengths)
    weights = _weights("GRU", weight, recurrence, bias)
    y, h = torch.gru(
        _turned(a, x),
        _state(x, recurrence, hidden),
        weights,
        bias is not None,
        1,
        0.0,
        False,
        len(weight) == 2,
        False,
    )
    return _by_direction(a, y, len(weight)), h


def gates_in_order(kind: str, weight: Tensor) -> Tensor:
    """Return weights or biases (gates H, ...) of a node, with the gates in PyTorch's order."""
    places = GATES[kind]
    return weight.reshape(len(places), -1, *weight.shape[1:])[list(places)].flatten(0, 1)


def _check(a: Mapping[str, Any], kind: str, lengths: Tensor | None) -> None:
    given = [
        name.decode() if isinstance(name, bytes) else name for name in a.get("activations", [])
    ]
    usual = _ACTIVATIONS[kind]
    if lengths is not None or a.get("layout", 0) or "clip" in a:
        raise _unsupported(kind, "lengths of sequences, batches first (layout = 1) or clipping")
    if given and given != usual * (len(given) // len(usual)):
        raise _unsupported(kind, f"activations {', '.join(given)}")


def _unsupported(kind: str, what: str) -> ArtifactError:
    return ArtifactError(f"{kind} with {what} is not supported; export it as PyTorch's {kind}")


def _state(x: Tensor, recurrence: Tensor, state: Tensor | None) -> Tensor:
    if state is not None:
        return state.to(x.dtype)
    return x.new_zeros(len(recurrence), x.shape[1], recurrence.shape[2])


def _weights(kind: str, weight: Tensor, recurrence: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return the weights of all directions as PyTorch takes them."""
    found = []
    for direction in range(len(weight)):
        parts = [weight[direction], recurrence[direction]]
        parts += [] if bias is None else bias[direction].chunk(2)
        found += [gates_in_order(kind, part) for part in parts]
    return found


def _turned(a: Mapping[str, Any], x: Tensor) -> Tensor:
    return x.flip(0) if a.get("direction") == "reverse" else x


def _by_direction(a: Mapping[str, Any], y: Tensor, directions: int) -> Tensor:
    """Return outputs (T, N, directions H) as (T, directions, N, H)."""
    return _turned(a, y.reshape(*y.shape[:2], directions, -1).transpose(1, 2))
