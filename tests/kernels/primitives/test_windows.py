"""Windows of convolutions: the sizes of their outputs."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from hwnas.kernels.primitives.windows import out_map, out_shape


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 30), st.integers(1, 30)),
    st.sampled_from(range(1, 12, 2)),
    st.sampled_from([1, 2]),
)
def test_out_map_and_out_shape_equal_the_sizes_of_pytorch(
    shape: tuple[int, int, int], kernel: int, stride: int
) -> None:
    x = torch.empty(shape[0], 1, *shape[1:], device="meta")
    window = torch.empty(1, 1, kernel, kernel, device="meta")
    images, _, height, width = functional.conv2d(x, window, None, stride, kernel // 2).shape
    sizes = {"images": shape[0], "height": shape[1], "width": shape[2], "stride": stride}
    assert out_map(sizes) == (images, height, width)
    assert out_shape(x.permute(0, 2, 3, 1), stride, 7) == (images, height, width, 7)
