"""Cost of operators on a GPU, compared with calculations by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.deploy.matching.kernel_cost import KernelCost, KernelSite, kernel_work
from hwnas.deploy.targets.target import Target
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.search_spaces import OperatorKind, OperatorSignature

H200, A100 = ACCELERATORS["nvidia-h200"], ACCELERATORS["nvidia-a100"]
HALF = KernelSite(H200, torch.float16)


def pointwise(inputs: int, outputs: int, pixels: int) -> OperatorSignature:
    sizes = inputs * outputs * pixels, 4 * inputs * pixels, 4 * outputs * pixels
    return OperatorSignature("pointwise", *sizes, 4 * inputs * outputs, 1, 1)


def test_kernel_work_equals_a_calculation_by_hand() -> None:
    """The grid has 13 x 3 blocks of 16 x 16 results; the last row and column are padded."""
    work = kernel_work(pointwise(32, 40, 196), HALF)
    assert work.launches == 1
    assert work.torch_launches == 0
    assert work.moved_bytes == 2 * (32 * 196 + 40 * 196 + 32 * 40)
    assert work.programs == 13 * 3
    assert work.products == 208 * 48 * 32
    assert work.idle_products == 208 * 48 * 32 - 196 * 40 * 32
    assert work.rounds == 1
    assert work.idle_rounds == pytest.approx(1 - 39 / 132)
    assert work.busiest_bytes == pytest.approx(work.asked_bytes / 39)


def test_kernel_work_has_more_rounds_on_a_smaller_gpu() -> None:
    step = pointwise(32, 32, 65 * 32)  # 130 x 1 blocks of 16 x 32
    work, other = (kernel_work(step, KernelSite(gpu, torch.float16)) for gpu in (H200, A100))
    assert work.programs == other.programs == 130
    assert (work.rounds, other.rounds) == (1, 2)
    assert other.idle_rounds == pytest.approx(2 - 130 / 108)
    assert other.busiest_bytes == pytest.approx(2 * work.busiest_bytes)


def test_kernel_work_has_no_idle_products_for_multiples_of_the_block() -> None:
    assert kernel_work(pointwise(32, 64, 256), HALF).idle_products == 0
    assert kernel_work(pointwise(33, 65, 256), HALF).idle_products > 0


def test_kernel_work_grows_with_the_batch_except_weights_and_launches() -> None:
    one, eight = (kernel_work(pointwise(32, 40, 196), replace(HALF, batch=b)) for b in (1, 8))
    assert eight.launches == one.launches
    assert eight.moved_bytes == 8 * one.moved_bytes - 7 * 2 * 32 * 40
    assert eight.programs > 4 * one.programs


@pytest.mark.parametrize(
    ("step", "moved"),
    [
        (OperatorSignature("activation", 0, 4000, 4000), 0),
        (OperatorSignature("layer_norm", 0, 4000, 4000, 32), 0),
        (OperatorSignature("view"), 0),
        (OperatorSignature("elementwise", 0, 8000, 4000), 2000),  # a residual
        (OperatorSignature("elementwise", 1000, 4040, 4000), 20),  # a gate
        (OperatorSignature("pool", 0, 4000, 40), 20),  # a mean over a map
    ],
)
def test_kernel_work_counts_no_launch_for_fused_steps(step: OperatorSignature, moved: int) -> None:
    work = kernel_work(step, HALF)
    assert (work.launches, work.programs, work.moved_bytes) == (0, 0, moved)


def test_kernel_work_leaves_unsupported_steps_to_pytorch() -> None:
    pool = OperatorSignature("pool", 0, 4000, 1000)
    grouped = OperatorSignature(
        "conv", 9 * 4 * 32 * 64, 4 * 16 * 64, 4 * 32 * 64, 4 * 9 * 4 * 32, 3, 1
    )
    for step in (pool, grouped):
        work = kernel_work(step, HALF)
        assert work.launches == work.torch_launches == 1
        assert work.moved_bytes == step.bytes_moved / 2
    assert kernel_work(replace(pool, dead=True), HALF) == KernelCost()


STEPS = st.builds(
    OperatorSignature,
    kind=st.sampled_from(get_args(OperatorKind)),
    macs=st.integers(0, 2**34),
    read_bytes=st.integers(0, 2**28),
    written_bytes=st.integers(0, 2**28),
    weight_bytes=st.integers(0, 2**28),
    kernel_size=st.integers(0, 7),
    stride=st.integers(0, 3),
    dead=st.booleans(),
)


@settings(max_examples=50)
@given(step=STEPS, batch=st.sampled_from((1, 8, 64)))
def test_kernel_work_is_finite_for_any_step(step: OperatorSignature, batch: int) -> None:
    """Steps of files in other formats have byte counts that fit no float32 layer."""
    work = kernel_work(step, replace(HALF, batch=batch))
    assert all(math.isfinite(value) for value in work.values)
    assert all(value >= 0 for value in work.values[1:-1])


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB", "", "Another card"])
def test_kernel_site_finds_the_gpu_by_name_or_takes_the_default(name: str) -> None:
    site = KernelSite.of(Target.parse("cuda-triton-bf16-b8-t1"), name)
    assert site.gpu == (A100 if "A100" in name else H200)
    assert (site.dtype, site.batch) == (torch.bfloat16, 8)
