"""Weights as safetensors files: names, shapes and numbers, and nothing that could run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

__all__ = ["write_weights"]


def write_weights(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None
) -> None:
    """Write tensors, each with memory of its own, as safetensors wants them.

    Args:
        path: The file; make it whole or not at all with `hwnas.atomic`.
        tensors: By name, on any device.
        about: Words to keep beside them.

    Raises:
        OSError: The file cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # Not by `save_file`, whose files only their owner may read, whatever the umask says.
    path.write_bytes(save(plain, metadata=None if about is None else dict(about)))
