"""Int8 depthwise convolutions, compared with results by hand and with PyTorch."""

import pytest
import torch
from torch.nn import functional

from hwnas.errors import KernelError
from hwnas.kernels.operators.int8_depthwise import int8_depthwise


def test_int8_depthwise_pads_with_the_zero_point() -> None:
    x = torch.tensor([[[[40], [41]]]], dtype=torch.int8)
    ones = torch.ones(3, 3, 1, dtype=torch.int8)
    bias = torch.tensor([-9 * 40], dtype=torch.int32)  # a zero point of 40 for nine weights of 1
    y = int8_depthwise(x, ones, bias, torch.ones(1), x_zero=40, y_scale=1.0, y_zero=5)
    assert y.flatten().tolist() == [6, 6]


@pytest.mark.slow
@pytest.mark.parametrize(("side", "stride"), [(1, 1), (3, 1), (3, 2), (5, 2), (7, 1)])
def test_int8_depthwise_equals_a_grouped_conv2d_of_pytorch(side: int, stride: int) -> None:
    generator = torch.Generator().manual_seed(side)
    x = torch.randint(-9, 10, (2, 4, 5, 6), generator=generator, dtype=torch.int8)
    weight = torch.randint(-1, 2, (side, side, 6), generator=generator, dtype=torch.int8)
    ones, zeros = torch.ones(6), torch.zeros(6, dtype=torch.int32)
    y = int8_depthwise(x, weight, zeros, ones, 0, 1.0, 0, stride=stride)
    truth = functional.conv2d(
        x.permute(0, 3, 1, 2).double(),
        weight.permute(2, 0, 1)[:, None].double(),
        stride=stride,
        padding=side // 2,
        groups=6,
    )
    assert torch.equal(y.permute(0, 3, 1, 2).double(), truth.clamp(-128, 127))


def test_int8_depthwise_refuses_even_windows_and_a_stride_of_three() -> None:
    x = torch.zeros(1, 4, 4, 1, dtype=torch.int8)
    rest = torch.zeros(1, dtype=torch.int32), torch.ones(1), 0, 1.0, 0
    even, odd = (torch.zeros(side, side, 1, dtype=torch.int8) for side in (2, 3))
    with pytest.raises(KernelError, match=r"odd k.*\(2, 2, 1\)"):
        int8_depthwise(x, even, *rest)
    with pytest.raises(KernelError, match=r"stride 1 or 2; given .* and stride=3"):
        int8_depthwise(x, odd, *rest, stride=3)
