"""Tiles of matrix products: properties that hold for any sizes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.kernels.accelerator import ACCELERATORS, Accelerator
from hwnas.kernels.primitives.tiles import powers, product_default, product_problem, product_reads

sizes = st.integers(1, 20_000)
dtypes = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int8])
gpus = st.sampled_from([*ACCELERATORS.values()])


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_powers_are_all_powers_of_two_within_the_limits(low: int, high: int) -> None:
    assert powers(low, high) == tuple(2**i for i in range(14) if low <= 2**i <= high)


@settings(max_examples=60)
@given(sizes, sizes, sizes, dtypes, gpus)
def test_product_default_keeps_all_constraints_for_any_product(
    rows: int, columns: int, inner: int, dtype: torch.dtype, gpu: Accelerator
) -> None:
    problem = product_problem(rows, columns, inner, dtype, gpu)
    assert problem.broken(product_default(rows, columns, inner, dtype)) == []


@settings(max_examples=5)
@given(sizes, sizes, sizes, dtypes, gpus)
def test_product_solutions_fit_shared_memory_and_registers(
    rows: int, columns: int, inner: int, dtype: torch.dtype, gpu: Accelerator
) -> None:
    for config in product_problem(rows, columns, inner, dtype, gpu).solutions():
        m, n, k = (config[f"BLOCK_{name}"] for name in "MNK")
        assert (m + n) * k * dtype.itemsize * config["num_stages"] <= gpu.shared_bytes
        assert m * n < 32 * config["num_warps"] * gpu.registers_per_thread


def test_product_reads_counts_rows_and_columns_of_each_program() -> None:
    assert product_reads(100, 60, 30, {"BLOCK_M": 64, "BLOCK_N": 64}) == 30 * (100 + 2 * 60)
    assert product_reads(100, 60, 30, {"BLOCK_M": 16, "BLOCK_N": 16}) == 30 * (4 * 100 + 7 * 60)
