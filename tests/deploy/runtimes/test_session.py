import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hwnas.deploy.runtimes.session import in_batches


@given(count=st.integers(1, 20), size=st.integers(1, 8))
def test_in_batches_runs_any_number_of_inputs_in_batches_of_one_size(count: int, size: int) -> None:
    sizes = []

    def run(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        sizes.append(len(batch))
        return batch.sum(axis=1)

    inputs = np.arange(2.0 * count, dtype=np.float32).reshape(count, 2)
    np.testing.assert_array_equal(in_batches(run, inputs, size), inputs.sum(axis=1))
    assert set(sizes) == {size}
    assert len(sizes) == -(-count // size)
