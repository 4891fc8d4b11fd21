"""Dense int8 convolutions, compared with results by hand and with PyTorch."""

import pytest
import torch
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.operators.int8_convolution import int8_convolution


def test_int8_convolution_pads_with_the_zero_point() -> None:
    x = torch.tensor([[[[40, 40], [41, 40]]]], dtype=torch.int8)
    ones = torch.ones(1, 3, 3, 2, dtype=torch.int8)
    bias = torch.tensor([-18 * 40], dtype=torch.int32)  # a zero point of 40 for 18 weights of 1
    y = int8_convolution(x, ones, bias, torch.ones(1), x_zero=40, y_scale=1.0, y_zero=5)
    assert y.flatten().tolist() == [6, 6]


@pytest.mark.parametrize(
    ("channels", "side", "stride"), [(6, 1, 1), (32, 3, 1), (3, 3, 2), (40, 5, 2), (1, 7, 1)]
)
def test_int8_convolution_equals_conv2d_of_pytorch(channels: int, side: int, stride: int) -> None:
    generator = torch.Generator().manual_seed(side)
    x = torch.randint(-9, 10, (2, 4, 5, channels), generator=generator, dtype=torch.int8)
    shape = (9, side, side, channels)
    weight = torch.randint(-1, 2, shape, generator=generator, dtype=torch.int8)
    ones, zeros = torch.ones(9), torch.zeros(9, dtype=torch.int32)
    y = int8_convolution(x, weight, zeros, ones, 0, 1.0, 0, stride=stride)
    images, filters = (each.permute(0, 3, 1, 2).double() for each in (x, weight))
    truth = functional.conv2d(images, filters, stride=stride, padding=side // 2)
    assert torch.equal(y.permute(0, 3, 1, 2).double(), truth.clamp(-128, 127))


def test_int8_convolution_refuses_even_windows_and_a_stride_of_three() -> None:
    x = torch.zeros(1, 4, 4, 1, dtype=torch.int8)
    rest = torch.zeros(1, dtype=torch.int32), torch.ones(1), 0, 1.0, 0
    even, odd = (torch.zeros(1, side, side, 1, dtype=torch.int8) for side in (2, 3))
    with pytest.raises(KernelError, match=r"odd k.*\(1, 2, 2, 1\)"):
        int8_convolution(x, even, *rest)
    with pytest.raises(KernelError, match=r"stride 1 or 2; given .* and stride=3"):
        int8_convolution(x, odd, *rest, stride=3)
