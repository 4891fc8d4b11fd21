"""Tiles of inverted bottlenecks: their input windows, and the default configuration."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.primitives.bottleneck_tiles import Tile, bottleneck_default, bottleneck_problem


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.sampled_from(range(1, 12, 2)),
    st.sampled_from([1, 2]),
    st.integers(1, 28),
)
def test_tile_window_covers_all_input_pixels_of_its_outputs(
    shape: tuple[int, int], kernel: int, stride: int, side: int
) -> None:
    sizes = {"images": 1, "height": shape[0], "width": shape[1]}
    tile = Tile.of(sizes | {"kernel": kernel, "stride": stride}, side)
    for size, own, window in (
        (shape[0], tile.height, tile.window_height),
        (shape[1], tile.width, tile.window_width),
    ):
        for first in range(0, (size - 1) // stride + 1, own):
            start = min(max(first * stride - kernel // 2, 0), size - window)
            last = min(first + own, (size - 1) // stride + 1) - 1
            assert 0 <= start <= max(0, first * stride - kernel // 2)
            assert min(size, last * stride + kernel // 2 + 1) <= start + window <= size


def test_bottleneck_default_fuses_only_many_tiles_without_squeeze() -> None:
    block = {"inputs": 24, "hidden": 72, "outputs": 24, "kernel": 3, "stride": 1, "residual": 1}
    large = {"images": 8, "height": 56, "width": 56} | block
    small = {"images": 1, "height": 7, "width": 7} | block
    assert bottleneck_default(large | {"squeezed": 0}, torch.float16)["FUSED"] == 1
    assert bottleneck_default(large | {"squeezed": 18}, torch.float16)["FUSED"] == 0
    assert bottleneck_default(small | {"squeezed": 0}, torch.float16)["FUSED"] == 0


@given(
    st.tuples(*(st.integers(1, 120),) * 2),
    st.tuples(*(st.integers(1, 1000),) * 3),
    st.sampled_from(range(1, 12, 2)),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 24]),
    st.sampled_from([1, 8]),
)
def test_bottleneck_default_keeps_all_constraints_at_every_size(
    shape: tuple[int, int],
    channels: tuple[int, int, int],
    kernel: int,
    stride: int,
    squeezed: int,
    images: int,
) -> None:
    sizes = dict(zip(("inputs", "hidden", "outputs"), channels, strict=True))
    sizes |= {"images": images, "height": shape[0], "width": shape[1], "kernel": kernel}
    sizes |= {"stride": stride, "squeezed": squeezed, "residual": 0}
    for dtype in (torch.float16, torch.float32):
        problem = bottleneck_problem(sizes, dtype, ACCELERATORS["nvidia-a100"])
        assert problem.broken(bottleneck_default(sizes, dtype)) == []
