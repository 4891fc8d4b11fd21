"""Fused inverted bottlenecks, compared with the layer of the search spaces, in several tilings."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hwnas.errors import KernelError
from hwnas.kernels.operators.inverted_bottleneck import inverted_bottleneck
from hwnas.kernels.suite.tolerance import in_float64, worst_error
from hwnas.search_spaces.layers import InvertedBottleneck

PROJECT = {"PROJECT_M": 16, "PROJECT_N": 16, "PROJECT_K": 32, "num_warps": 4}
MAP = {"images": 1, "height": 7, "width": 5, "inputs": 12, "hidden": 20, "outputs": 12}


def folded(layer: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution and the normalisation after it, channels first."""
    conv, norm = layer.conv, layer.norm
    factor = norm.weight / (norm.running_var + norm.eps).sqrt()
    return conv.weight * factor[:, None, None, None], norm.bias - norm.running_mean * factor


@pytest.mark.slow
@pytest.mark.parametrize("squeeze_excite", [False, True])
@torch.no_grad()
def test_inverted_bottleneck_equals_the_layer_of_the_search_spaces(squeeze_excite: bool) -> None:
    torch.manual_seed(0)
    layer: Any = InvertedBottleneck(8, 24, 8, 5, 1, squeeze_excite, "hard_swish").eval()
    for norm in (part for part in layer.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.uniform_(norm.bias, -1, 1)
    x, layers = torch.randn(2, 8, 7, 6), layer.layers
    expand, expand_bias = folded(layers.expand)
    window, bias = folded(layers.depthwise)
    project, project_bias = folded(layers.project)
    gate: dict[str, Tensor] = {}
    if squeeze_excite:
        for name in ("reduce", "excite"):
            part = getattr(layers.squeeze_excite, name.replace("excite", "expand"))
            gate |= {f"{name}_weight": part.weight[:, :, 0, 0].T, f"{name}_bias": part.bias}
    nhwc = x.permute(0, 2, 3, 1)
    y = inverted_bottleneck(
        nhwc,
        expand[:, :, 0, 0].T,
        expand_bias,
        window[:, 0].permute(1, 2, 0),
        bias,
        project[:, :, 0, 0].T,
        project_bias,
        **gate,
        residual=nhwc,
        activation="hard_swish",
    )
    torch.testing.assert_close(y.permute(0, 3, 1, 2), layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("fused", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "stride", "tile", "block_m"),
    [(3, 1, 4, 16), (5, 2, 2, 32), (7, 1, 7, 32), (3, 1, 2, 16)],
)
def test_inverted_bottleneck_equals_its_reference_with_overlapping_tiles(
    fused: int, kernel: int, stride: int, tile: int, block_m: int
) -> None:
    sizes = MAP | {"kernel": kernel, "stride": stride, "squeezed": 0, "residual": 1}
    inputs = example(sizes)
    config = PROJECT | {"FUSED": fused, "TILE": tile, "BLOCK_M": block_m, "BLOCK_C": 16}
    truth = inverted_bottleneck.reference(**in_float64(inputs))
    assert worst_error(inverted_bottleneck.run(inputs, config), truth) <= 1


@pytest.mark.slow
def test_inverted_bottleneck_squeezes_over_all_tiles_reproducibly() -> None:
    sizes = MAP | {"kernel": 3, "stride": 1, "squeezed": 70, "residual": 0}
    inputs = example(sizes)
    config = PROJECT | {"FUSED": 0, "TILE": 4, "BLOCK_M": 16, "BLOCK_C": 16}
    truth = inverted_bottleneck.reference(**in_float64(inputs))
    first, second = (inverted_bottleneck.run(inputs, config) for _ in range(2))
    assert worst_error(first, truth) <= 1
    assert torch.equal(first, second)


def test_inverted_bottleneck_refuses_an_incomplete_squeeze_excite() -> None:
    inputs = example(MAP | {"kernel": 3, "stride": 1, "squeezed": 4, "residual": 0})
    with pytest.raises(KernelError, match="all or none of reduce_weight"):
        inverted_bottleneck(**inputs | {"excite_bias": None})


def example(sizes: dict[str, int]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return inverted_bottleneck.example(sizes, torch.float32, generator, torch.device("cpu"))
