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
    """Write tensors as safetensors, each copied to memory of its own, as the format requires.

    Args:
        path: File to write; use `hwnas.atomic` to write it atomically.
        tensors: Tensors by name, on any device.
        about: Text metadata to store beside them.

    Raises:
        OSError: The file cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    # `save_file` would write a file that only its owner may read, whatever the umask.
    path.write_bytes(save(plain, metadata=None if about is None else dict(about)))
