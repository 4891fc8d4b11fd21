"""Slim attention, compared with a result by hand, a searched network and other operators."""

import pytest
import torch

from hwnas.kernels.operators.attention import attention
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.operators.slim_attention import slim_attention
from hwnas.search_spaces.layers.conv_attention import ConvAttention


def test_slim_attention_equals_a_result_computed_by_hand() -> None:
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    log3 = torch.tensor(3.0).log().item()
    # Each query is 1; keys are 0 and log 3, so weights are 1 to 3; values are 10 and 20.
    weight = torch.tensor([[1.0, 0.0, 10.0], [1.0, log3, 20.0]]).view(2, 3, 1, 1)
    torch.testing.assert_close(slim_attention(x, weight).flatten(), torch.tensor([17.5, 17.5]))


def test_slim_attention_equals_the_middle_of_a_conv_attention_layer() -> None:
    torch.manual_seed(0)
    layer = ConvAttention(24, heads=3, head_width=8, stride=2).eval()
    convolutions = (layer.query, layer.key, layer.value)
    x = torch.randn(2, 24, 14, 12)
    with torch.no_grad():
        weight = torch.stack([c.weight[:, :, 0, 0].T.unflatten(1, (3, 8)) for c in convolutions], 1)
        mixed = slim_attention(layer.shrink(x).permute(0, 2, 3, 1), weight)
        y = layer.grow(mixed.flatten(3).permute(0, 3, 1, 2))
        torch.testing.assert_close(y, layer(x))


@pytest.mark.slow
def test_slim_attention_equals_pointwise_and_attention_in_sequence() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 70, 20, generator=generator)
    weight = torch.randn(20, 3, 2, 8, generator=generator) / 4
    bias = torch.randn(3, 2, 8, generator=generator)
    layers = pointwise(x, weight.flatten(1), bias.flatten()).unflatten(2, (3, 2, 8))
    truth = attention(*layers.unbind(2))
    torch.testing.assert_close(slim_attention(x, weight, bias), truth, atol=2e-5, rtol=2e-5)
