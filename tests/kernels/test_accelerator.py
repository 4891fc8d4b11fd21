"""Accelerators: their keys, and how they are found by name or on this machine."""

import pytest
import torch

from hwnas.errors import ConfigError, DeviceError
from hwnas.kernels.accelerator import ACCELERATORS, Accelerator


def test_accelerator_is_found_by_its_key() -> None:
    assert set(ACCELERATORS) == {"nvidia-a100", "nvidia-b200", "nvidia-h200"}
    assert Accelerator.named("nvidia-h200").capability == 90


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm4-40gb"),
        ("Quadro RTX 6000/8000", "quadro-rtx-6000-8000"),
        ("../card (x)", "card-x"),
    ],
)
def test_accelerator_key_is_made_from_any_device_name(name: str, key: str) -> None:
    assert Accelerator(name, 80, 108, 1024).key == key


def test_accelerator_named_refuses_an_unknown_name_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown accelerator 'nvidia-h20'; did you mean 'nvidia"):
        Accelerator.named("nvidia-h20")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_accelerator_here_without_a_gpu_says_to_name_one() -> None:
    with pytest.raises(DeviceError, match=r"name one of .*nvidia-h200"):
        Accelerator.here()
