"""Weights in safetensors files."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from hwnas.deploy.bundles.weights import write_weights


def test_write_weights_round_trips_shared_and_strided_tensors(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4).requires_grad_()
    tensors = {"whole": whole, "transposed": whole.T, "row": whole[1]}
    write_weights(tmp_path / "x.safetensors", tensors, {"made": "here"})
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        assert file.metadata() == {"made": "here"}
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_write_weights_raises_an_os_error_for_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_weights(tmp_path / "missing" / "x.safetensors", {"x": torch.zeros(1)})
