"""Depthwise convolutions, compared with results by hand and with PyTorch's layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.operators.depthwise import depthwise


def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """Weight (k, k, C) and bias of a depthwise convolution and the normalisation after it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    weight = (conv.weight[:, 0] * factor[:, None, None]).permute(1, 2, 0)
    return weight.detach(), (norm.bias - norm.running_mean * factor).detach()


def test_depthwise_equals_a_result_computed_by_hand() -> None:
    x, weight = torch.ones(1, 3, 3, 1), torch.ones(3, 3, 1)
    y, sums = depthwise(x, weight, torch.tensor([-5.0]), activation="relu", sums=True)
    assert y[0, :, :, 0].tolist() == [[0, 1, 0], [1, 4, 1], [0, 1, 0]]
    assert sums.tolist() == [[8]]


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 6), st.integers(1, 5), st.integers(1, 20)),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from([1, 2]),
)
def test_depthwise_equals_pytorch_layers_with_folded_normalisation(
    shape: tuple[int, int, int, int], kernel: int, stride: int
) -> None:
    torch.manual_seed(0)
    x, channels = torch.randn(shape), shape[3]
    conv = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False)
    norm = nn.BatchNorm2d(channels).eval()
    for values in norm.parameters():
        values.data.uniform_(0.5, 2)
    truth = nn.Sequential(conv, norm, nn.Hardswish())(x.permute(0, 3, 1, 2)).detach()
    y, sums = depthwise(x, *folded(conv, norm), stride, "hard_swish", True)
    torch.testing.assert_close(y.permute(0, 3, 1, 2), truth, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sums, truth.sum((2, 3)), atol=1e-4, rtol=1e-5)


def test_depthwise_sums_do_not_depend_on_tiles_and_repeat_exactly() -> None:
    torch.manual_seed(0)
    inputs = depthwise.bound(torch.randn(2, 6, 3, 9), torch.randn(3, 3, 9), torch.randn(9))
    inputs["sums"] = True
    whole, tiled, again = (
        depthwise.run(inputs, {"BLOCK_P": block, "BLOCK_C": 16, "num_warps": 2})[1]
        for block in (32, 8, 8)
    )
    torch.testing.assert_close(tiled, whole)
    assert torch.equal(tiled, again)


def test_depthwise_returns_empty_sums_unless_requested() -> None:
    y, sums = depthwise(torch.ones(2, 1, 1, 3), torch.ones(1, 1, 3), torch.zeros(3))
    assert (y.shape, sums.shape) == ((2, 1, 1, 3), (2, 0))


def test_depthwise_spreads_nan_only_to_windows_that_contain_it() -> None:
    x = torch.zeros(1, 1, 6, 1)
    x[0, 0, 4] = torch.nan
    y, _ = depthwise(x, torch.ones(3, 3, 1), torch.zeros(1))
    assert y.flatten().isnan().tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("kernel", "stride", "activation", "message"),
    [
        (4, 1, "none", "windows of odd sizes up to 11; given 4"),
        (13, 1, "none", "sizes up to 11; given 13"),
        (3, 3, "none", "strides 1 and 2; given 3"),
        (3, 1, "swish", "'swish' is not one of none, relu, relu6"),
    ],
)
def test_depthwise_refuses_unsupported_windows_strides_and_activations(
    kernel: int, stride: int, activation: str, message: str
) -> None:
    x, weight = torch.ones(1, 5, 5, 1), torch.ones(kernel, kernel, 1)
    with pytest.raises(KernelError, match=message):
        depthwise(x, weight, torch.zeros(1), stride, activation)


@given(
    st.tuples(st.integers(1, 64), st.integers(1, 300), st.integers(1, 300), st.integers(1, 2000)),
    st.sampled_from(range(1, 12, 2)),
    st.sampled_from([1, 2]),
)
def test_depthwise_default_config_keeps_all_constraints_at_every_size(
    shape: tuple[int, int, int, int], kernel: int, stride: int
) -> None:
    sizes = dict(zip(("images", "height", "width", "channels"), shape, strict=True))
    sizes |= {"kernel": kernel, "stride": stride, "sums": 1}
    for dtype in (torch.float16, torch.float32):
        problem = depthwise.problem(sizes, dtype, ACCELERATORS["nvidia-a100"])
        assert problem.broken(depthwise.default_config(sizes, dtype)) == []
