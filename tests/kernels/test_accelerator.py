"""Cards by name."""

import pytest
import torch

from hwnas.errors import ConfigError, DeviceError
from hwnas.kernels.accelerator import ACCELERATORS, Accelerator


def test_a_card_is_found_by_the_stem_of_its_files() -> None:
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
def test_any_name_gives_the_stem_of_a_file(name: str, key: str) -> None:
    assert Accelerator(name, 80, 108, 1024).key == key


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="unknown accelerator 'nvidia-h20'; did you mean 'nvidia"):
        Accelerator.named("nvidia-h20")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a graphics card")
def test_without_a_card_the_error_says_what_can_be_done() -> None:
    with pytest.raises(DeviceError, match=r"name one of .*nvidia-h200"):
        Accelerator.here()
