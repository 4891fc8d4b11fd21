"""The state of a training as one safetensors file, from which it goes on exactly."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hwnas.atomic import replacing
from hwnas.deploy.weights import write_weights
from hwnas.errors import ArtifactError, RunError
from hwnas.search.training.averaging import MovingAverage
from hwnas.search.training.config import TrainConfig

__all__ = [
    "Position",
    "checkpoint_run",
    "differing_keys",
    "load_checkpoint",
    "load_weights",
    "read_position",
    "restamp_checkpoint",
    "save_checkpoint",
    "save_weights",
    "weights_identity",
]

SCHEMA = 1


@dataclass(frozen=True)
class Position:
    """How far a training is.

    Attributes:
        step: Steps that were made.
        seconds: Training time so far, over all sessions.
        run: What is trained, on what and how (a hash); a checkpoint serves only that.
        parts: In how many parts each batch goes through; 0 for as many as the recipe says.
        offset: What is added to ``step`` for the number of steps that would have shown as many
            images at the present batch size.
        settings: `TrainConfig.continuable` of the session; empty where an older hwnas wrote it.
    """

    step: int
    seconds: float
    run: str
    parts: int = 0
    offset: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Position:
        """Read it from what a checkpoint says of itself.

        Raises:
            KeyError, ValueError, TypeError: Something is missing, or is no number.
        """
        return cls(
            int(about["step"]),
            float(about["seconds"]),
            str(about["run"]),
            int(about.get("parts", 0)),
            int(about.get("offset", 0)),
            dict(about.get("settings", {})),
        )


def save_checkpoint(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    position: Position,
    average: MovingAverage | None = None,
) -> None:
    """Write weights, optimiser and position; the older file stays until the new one is whole."""
    tensors = {f"network.{k}": v for k, v in network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.tensors.items()}
    _save(path, tensors, {"schema": SCHEMA, **vars(position)})


def load_checkpoint(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: str,
    average: MovingAverage | None = None,
) -> Position:
    """Put the saved state into a network, its optimiser and the moving average of its weights.

    Raises:
        ArtifactError: The file is damaged.
        RunError: It is the checkpoint of another training, or of another version of hwnas; the
            message says which weights differ.
    """
    tensors, about = _load(path)
    schema, weights = about.get("schema"), _under("network.", tensors)
    different = differing_keys(weights, network.state_dict())
    if schema not in (SCHEMA, None):
        raise RunError(
            f"{path} was written by another version of hwnas (schema {schema}, this one reads "
            f"{SCHEMA}){different and '; ' + different}. Go on with that version, or remove the "
            "file to train anew"
        )
    if schema is None or about.get("run") != run:
        why = different or "its weights would fit, but images, settings or seed were others"
        raise RunError(
            f"{path} is the checkpoint of another training; {why}. Search in another run folder, "
            "or remove the file to train anew"
        )
    if different:
        raise _damaged(path, different)
    try:
        network.load_state_dict(weights)
        states: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _under("optimizer.", tensors).items():
            index, _, key = name.partition(".")
            states.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
        if average is not None:
            average.load(_under("average.", tensors))
        return Position.of(about)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error


def read_position(path: Path) -> Position | None:
    """Return where a checkpoint stands; None where only a look at its weights tells what it is.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    try:
        return Position.of(_about(path))
    except (KeyError, ValueError, TypeError):
        return None


def restamp_checkpoint(path: Path, run: str, config: TrainConfig) -> None:
    """Say anew what a checkpoint is of; for one whose run an older hwnas described otherwise.

    Args:
        path: Of a checkpoint of the training that ``run`` stands for, as the caller knows.
        run: As the training is called now.
        config: How it was trained.

    Raises:
        ArtifactError: The file is missing or damaged.
        StorageError: It cannot be written.
    """
    tensors, about = _load(path)
    try:
        position = replace(Position.of(about), run=run, settings=config.continuable)
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(path, f"it has no {error}") from error
    _save(path, tensors, {"schema": SCHEMA, **vars(position)})


def differing_keys(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Which weights differ in name or shape, in words; empty if none does.

    Args:
        given: What a file holds.
        wanted: What the network has.
    """
    shapes = [
        f"{name} is {tuple(given[name].shape)} there and {tuple(tensor.shape)} here"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    found = (
        ("it has no ", [name for name in wanted if name not in given]),
        ("this network has no ", [name for name in given if name not in wanted]),
        ("", shapes),
    )
    return "; ".join(start + _some(names) for start, names in found if names)


def _some(names: list[str]) -> str:
    further = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + further


def save_weights(path: Path, weights: dict[str, Tensor], identity: str = "") -> None:
    """Write a state dict.

    Args:
        path: The file.
        weights: The state dict.
        identity: Key of all that the weights depend on, for `weights_identity`; none if empty.
    """
    _save(path, weights, {"schema": SCHEMA, "identity": identity})


def weights_identity(path: Path) -> str | None:
    """Return the key that `save_weights` was given; None if it was given none.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return _about(path).get("identity") or None


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read what `save_weights` wrote.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return _load(path)[0]


def _save(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        write_weights(temporary, tensors, {"hwnas": json.dumps(about)})


def checkpoint_run(path: Path) -> str | None:
    """Return the training that a checkpoint is of; None if the file does not say.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return _about(path).get("run")


def _about(path: Path) -> dict[str, Any]:
    with _own_errors(path), safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {}).get("hwnas", "{}"))
    assert isinstance(about, dict)
    return about


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with _own_errors(path), safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return tensors, _about(path)


@contextlib.contextmanager
def _own_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ArtifactError(f"{path} is missing") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error


def _damaged(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged ({reason}); remove it to train anew")


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
