from __future__ import annotations

import pytest
import torch

from hwnas.search.training.memory import ran_out_of_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("cuBLAS: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("the size of tensor a must match"), False),
        (ValueError("out of memory of a user's own"), False),
    ],
)
def test_ran_out_of_memory_recognises_memory_errors(error: BaseException, expected: bool) -> None:
    assert ran_out_of_memory(error) == expected


def test_ran_out_of_memory_recognises_the_cpu_error_of_torch() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert ran_out_of_memory(caught.value)
