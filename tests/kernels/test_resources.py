"""Occupancy by the rules of CUDA, and compilation ahead of time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import DeviceError
from hwnas.kernels.accelerator import ACCELERATORS, Accelerator
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.resources import Resources, compile_ahead

H200 = ACCELERATORS["nvidia-h200"]


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "at_work"),
    [
        (32, 0, 4, 64),  # 16 programs of 4 warps fill it
        (32, 0, 1, 32),  # 32 programs are the most
        (128, 0, 4, 16),  # a quarter's 16384 registers are 4 warps of 128 x 32
        (40, 0, 1, 32),
        (40, 0, 2, 48),  # 16384 // 1280 = 12 warps a quarter, 48 in all
        (255, 0, 8, 8),  # 255 is given out as 256
        (255, 0, 16, 0),  # which does not fit
        (32, 100 * 1024, 4, 8),  # 2 x (100 + 1) KiB of 228
        (32, 227 * 1024, 4, 4),
        (32, 228 * 1024, 4, 0),
    ],
)
def test_occupancy_equals_results_computed_by_hand(
    registers: int, shared_bytes: int, warps: int, at_work: int
) -> None:
    resources = Resources(registers, 0, shared_bytes, warps)
    assert resources.occupancy(H200) * 64 == at_work


@given(
    st.integers(16, 255),
    st.integers(0, 230_000),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([*ACCELERATORS.values()]),
)
def test_occupancy_does_not_rise_with_registers_or_shared_memory(
    registers: int, shared_bytes: int, warps: int, gpu: Accelerator
) -> None:
    share = Resources(registers, 0, shared_bytes, warps).occupancy(gpu)
    assert 0 <= share <= 1
    assert Resources(registers + 8, 0, shared_bytes, warps).occupancy(gpu) <= share
    assert Resources(registers, 0, shared_bytes + 512, warps).occupancy(gpu) <= share


def test_compile_ahead_refuses_to_run_in_the_interpreter() -> None:
    sizes = pointwise.checked[0]
    inputs = pointwise.example(sizes, torch.float16, torch.Generator(), torch.device("cpu"))
    config = pointwise.default_config(sizes, torch.float16)
    [launch] = pointwise.launches(inputs, pointwise.outputs(inputs), config)
    with pytest.raises(DeviceError, match="unset TRITON_INTERPRET"):
        compile_ahead(launch, H200)
