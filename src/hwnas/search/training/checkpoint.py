"""Checkpoint of a training as one safetensors file, from which it resumes exactly."""

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
from hwnas.deploy.bundles.weights import write_weights
from hwnas.errors import ArtifactError, RunError
from hwnas.search.engine.remote_files import send
from hwnas.search.training.averaging import MovingAverage
from hwnas.search.training.config import TrainConfig
from hwnas.search.training.early_stopping import EarlyStopping

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
    """Progress of a training.

    Attributes:
        step: Number of completed steps.
        seconds: Training time so far, over all sessions.
        run: Hash of the network, the data and the settings of the training; a checkpoint of another
            hash is refused.
        parts: Number of parts that each batch is split into; 0 for the number in the recipe.
        offset: Steps that the images so far would have taken at the current batch size, less
            ``step``.
        settings: `TrainConfig.continuable` of the session; empty if an older hwnas wrote it.
    """

    step: int
    seconds: float
    run: str
    parts: int = 0
    offset: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Position:
        """Read the position from the metadata of a checkpoint.

        Raises:
            KeyError, ValueError, TypeError: A value is missing, or is not a number.
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
    stopping: EarlyStopping | None = None,
) -> None:
    """Write the state of a training and its position; the old file is replaced atomically."""
    tensors = {f"network.{k}": v for k, v in network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{k}": torch.as_tensor(v) for k, v in state.items()}
    if average is not None:
        tensors |= {f"average.{name}": tensor for name, tensor in average.tensors.items()}
    if stopping is not None:
        tensors |= {f"stopping.{name}": tensor for name, tensor in stopping.tensors.items()}
    _save(path, tensors, {"schema": SCHEMA, **vars(position)})


def load_checkpoint(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: str,
    average: MovingAverage | None = None,
    stopping: EarlyStopping | None = None,
) -> Position:
    """Load the saved state into a network, its optimiser, moving average and early stopping.

    Raises:
        ArtifactError: The file is damaged.
        RunError: The file is the checkpoint of another training, or of another version of hwnas;
            the message says which weights differ.
    """
    tensors, about = _load(path)
    schema, weights = about.get("schema"), _under("network.", tensors)
    different = differing_keys(weights, network.state_dict())
    if schema not in (SCHEMA, None):
        raise RunError(
            f"{path} was written by another version of hwnas (schema {schema}, this one reads "
            f"{SCHEMA}){different and '; ' + different}. Use that version, or remove the file to "
            "train again from the start"
        )
    if schema is None or about.get("run") != run:
        why = different or "its weights fit, but images, settings or seed differ"
        raise RunError(
            f"{path} is the checkpoint of another training; {why}. Search in another run folder, "
            "or remove the file to train again from the start"
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
        if stopping is not None:
            stopping.load(_under("stopping.", tensors))
        return Position.of(about)
    except (RuntimeError, KeyError, ValueError, TypeError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error


def read_position(path: Path) -> Position | None:
    """Return the position in a checkpoint's metadata; None if the metadata lack it.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    try:
        return Position.of(_about(path))
    except (KeyError, ValueError, TypeError):
        return None


def restamp_checkpoint(path: Path, run: str, config: TrainConfig) -> None:
    """Rewrite the hash and the settings of a checkpoint whose hash an older hwnas computed.

    Args:
        path: Checkpoint file; the caller knows that it belongs to the training of ``run``.
        run: Current hash of the training.
        config: Settings that the checkpoint was trained with.

    Raises:
        ArtifactError: The file is missing or damaged.
        StorageError: The file cannot be written.
    """
    tensors, about = _load(path)
    try:
        position = replace(Position.of(about), run=run, settings=config.continuable)
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(path, f"an entry is missing or wrong: {error}") from error
    _save(path, tensors, {"schema": SCHEMA, **vars(position)})


def differing_keys(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Describe the weights that differ in name or shape; return an empty string if none does.

    Args:
        given: Weights in a file.
        wanted: Weights of the network.
    """
    shapes = [
        f"{name} is {tuple(given[name].shape)} in the weights and {tuple(tensor.shape)} in this "
        "network"
        for name, tensor in wanted.items()
        if name in given and given[name].shape != tensor.shape
    ]
    found = (
        ("the weights have no ", [name for name in wanted if name not in given]),
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
        path: File to write.
        weights: State dict.
        identity: Key of everything that the weights depend on, for `weights_identity`; empty for
            no key.
    """
    _save(path, weights, {"schema": SCHEMA, "identity": identity})


def weights_identity(path: Path) -> str | None:
    """Return the key that was passed to `save_weights`; None if there was none.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return _about(path).get("identity") or None


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict that `save_weights` wrote.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return _load(path)[0]


def _save(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        write_weights(temporary, tensors, {"hwnas": json.dumps(about)})
    send(path)


def checkpoint_run(path: Path) -> str | None:
    """Return the hash of the training that a checkpoint belongs to; None if the file has none.

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
    return ArtifactError(f"{path} is damaged ({reason}); remove it to train again from the start")


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
