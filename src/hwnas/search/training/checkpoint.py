"""The state of a training as one safetensors file, from which it goes on exactly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hwnas.atomic import replacing
from hwnas.deploy.weights import write_weights
from hwnas.errors import ArtifactError, RunError

__all__ = ["Position", "load_checkpoint", "load_weights", "save_checkpoint", "save_weights"]

SCHEMA = 1


@dataclass(frozen=True)
class Position:
    """How far a training is.

    Attributes:
        step: Steps that were made.
        seconds: Training time so far, over all sessions.
        run: What is trained, on what and how (a hash); a checkpoint serves only that.
    """

    step: int
    seconds: float
    run: str


def save_checkpoint(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, position: Position
) -> None:
    """Write weights, optimiser and position; the older file stays until the new one is whole."""
    tensors = {f"network.{k}": v for k, v in network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
    _save(path, tensors, {"schema": SCHEMA, **vars(position)})


def load_checkpoint(
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, run: str
) -> Position:
    """Put the saved state into a network and its optimiser.

    Raises:
        ArtifactError: The file is damaged.
        RunError: It is the checkpoint of another training.
    """
    tensors, about = _load(path)
    if about.get("schema") != SCHEMA or about.get("run") != run:
        raise RunError(
            f"{path} is the checkpoint of another training; search in another run folder, "
            "or remove the file to train anew"
        )
    try:
        network.load_state_dict(_under("network.", tensors))
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under("optimizer.", tensors).items():
            index, _, key = name.partition(".")
            states.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
        return Position(int(about["step"]), float(about["seconds"]), run)
    except (RuntimeError, KeyError, ValueError) as error:
        raise _damaged(path, error) from error


def save_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """Write a state dict."""
    _save(path, weights, {"schema": SCHEMA})


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read what `save_weights` wrote.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return _load(path)[0]


def _save(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        write_weights(temporary, tensors, {"hwnas": json.dumps(about)})


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("hwnas", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ArtifactError:
    reason = str(error).splitlines()[0]
    return ArtifactError(f"{path} is damaged ({reason}); remove it to train anew")


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
