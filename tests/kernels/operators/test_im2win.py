"""The windows that im2win stores: their order and their number."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.operators.im2win import im2win


def packed(x: Tensor, side: int, stride: int) -> Tensor:
    """Return the windows that the first kernel stores."""
    weight, bias = torch.ones(side, side, x.shape[3], 1), torch.zeros(1)
    inputs = im2win.bound(x, weight, bias, stride=stride)
    sizes = im2win.sizes(inputs)
    pack, _ = im2win.launches(inputs, im2win.outputs(inputs), im2win.default_config(sizes, x.dtype))
    pack.run()
    return pack.arguments["packed"]


@pytest.mark.parametrize(("side", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_im2win_stores_windows_column_by_column(side: int, stride: int) -> None:
    x = torch.arange(2.0 * 6 * 5 * 3).reshape(2, 6, 5, 3) + 1
    lines = packed(x, side, stride).flatten(2)
    border = side // 2
    framed = functional.pad(x, (0, 0, border, border, border, border))
    for row, column in ((0, 0), (1, 1), (2, 2)):
        window = framed[:, row * stride :, column * stride :][:, :side, :side].transpose(1, 2)
        start = column * stride * side * 3
        assert torch.equal(lines[:, row, start : start + side * side * 3], window.flatten(1))


def test_im2win_refuses_too_many_windows_before_allocating_memory() -> None:
    """The input has 2^30 values, its windows have 3 x 2^30; a meta tensor takes no memory."""
    x = torch.empty(1, 2**10, 2**10, 2**10, device="meta", dtype=torch.float16)
    weight = torch.empty(3, 3, 2**10, 1, device="meta", dtype=torch.float16)
    inputs = im2win.bound(x, weight, weight.new_empty(1))
    config = im2win.default_config(im2win.sizes(inputs), x.dtype)
    with pytest.raises(KernelError, match="use fewer images"):
        im2win.launches(inputs, im2win.outputs(inputs), config)


def test_im2win_stores_about_a_third_of_the_values_of_im2col() -> None:
    x = torch.zeros(1, 30, 30, 3)
    assert packed(x, 3, 1).numel() == 30 * 32 * 3 * 3
    assert packed(x, 3, 1).numel() / (30 * 30 * 9 * 3) < 0.36
