"""Sums split into parts: same values, fixed order, and used only where programs are few."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.kernels.accelerator import ACCELERATORS, Accelerator
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.suite.tolerance import in_float64, worst_error

CPU = torch.device("cpu")
BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_warps": 1, "num_stages": 1}
gpus = st.sampled_from([*ACCELERATORS.values()])
dtypes = st.sampled_from(pointwise.dtypes)


def of_sizes(pixels: int, inputs: int, outputs: int, more: int = 0) -> dict[str, int]:
    shape = {"images": 1, "pixels": pixels, "inputs": inputs, "outputs": outputs}
    return {**shape, "gate": more, "residual": more}


@pytest.mark.parametrize("dtype", pointwise.dtypes)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_split_sum_equals_the_reference_with_gate_and_residual(
    parts: int, dtype: torch.dtype
) -> None:
    sizes = of_sizes(pixels=5, inputs=131, outputs=19, more=1)
    inputs = pointwise.example(sizes, dtype, torch.Generator().manual_seed(0), CPU)
    inputs["activation"] = "relu6"
    y = pointwise.run(inputs, BLOCKS | {"SPLIT_K": parts})
    assert worst_error(y, pointwise.reference(**in_float64(inputs))) <= 1


def test_split_sum_adds_parts_in_order() -> None:
    """Beside 2^26 the first 1 is lost and the last is not; any other order or grouping gives 0."""
    x = torch.zeros(1, 64)
    x[0, ::16] = torch.tensor([2.0**26, 1.0, -(2.0**26), 1.0])
    inputs = pointwise.bound(x, torch.ones(64, 1), torch.zeros(1))
    assert pointwise.run(inputs, BLOCKS | {"SPLIT_K": 4}).item() == 1


@settings(max_examples=60)
@given(st.integers(1, 5000), st.integers(1, 20_000), st.integers(1, 3000), dtypes, gpus)
def test_default_config_splits_sums_only_for_few_programs(
    rows: int, inner: int, columns: int, dtype: torch.dtype, gpu: Accelerator
) -> None:
    sizes = of_sizes(rows, inner, columns)
    config = pointwise.default_config(sizes, dtype)
    assert pointwise.problem(sizes, dtype, gpu).broken(config) == []
    blocks = -(-rows // config["BLOCK_M"]) * -(-columns // config["BLOCK_N"])
    assert config["SPLIT_K"] == 1 or blocks * config["SPLIT_K"] <= gpu.multiprocessors * 1.5


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(1, 300), st.integers(1, 2000), st.integers(1, 300), gpus)
def test_split_sum_solutions_have_no_empty_part(
    rows: int, inner: int, columns: int, gpu: Accelerator
) -> None:
    for config in pointwise.problem(of_sizes(rows, inner, columns), torch.float16, gpu).solutions():
        steps = -(-inner // config["BLOCK_K"])
        assert (config["SPLIT_K"] - 1) * -(-steps // config["SPLIT_K"]) < steps


def test_default_config_splits_long_sums_and_traffic_counts_the_parts() -> None:
    sizes = of_sizes(pixels=1, inputs=4096, outputs=64)
    config = pointwise.default_config(sizes, torch.float16)
    assert config["SPLIT_K"] == 4
    whole = pointwise.traffic(sizes, torch.float16, {**config, "SPLIT_K": 1})
    assert pointwise.traffic(sizes, torch.float16, config) - whole == 2 * 4 * 4 * 64
    assert pointwise.default_config(of_sizes(3136, 24, 144), torch.float16)["SPLIT_K"] == 1
