"""Error-compensating rounding of int8 files: what changes in them, and second moments of inputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from hwnas.deploy import export_onnx
from hwnas.deploy.quantization.error_compensation import compensate_rounding
from hwnas.deploy.quantization.quantize import Int8Quantizer
from hwnas.deploy.quantization.weighted_layers import QuantisedLayer
from hwnas.deploy.variants.sweep import outputs_of

rng = np.random.default_rng(0)
BATCHES = [np.abs(rng.standard_normal((16, 3, 8, 8), dtype=np.float32)) for _ in range(2)]


class Mixed(nn.Module):
    """Dense, grouped and depthwise convolutions, a Gemm and a MatMul."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, stride=2, groups=16)
        self.grouped = nn.Conv2d(16, 16, 1, groups=4)
        self.tokens, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.grouped(self.depthwise(self.dense(images).relu()).relu()).relu()
        return self.head(self.tokens(x.flatten(2).transpose(1, 2)).relu().mean(1))


@pytest.mark.slow
@pytest.mark.parametrize("reduced", [True, False])
def test_compensated_file_differs_in_bytes_only_and_no_layer_is_worse(
    tmp_path: Path, reduced: bool
) -> None:
    torch.manual_seed(0)
    plain = export_onnx(Mixed(), (3, 8, 8), tmp_path / "plain.onnx", traceable=True).path
    with Int8Quantizer(plain, BATCHES, ["full"], reduced) as quantizer:
        nearest = quantizer.write(tmp_path / "nearest.onnx")
        made = quantizer.write(tmp_path / "made.onnx")
        ratios = compensate_rounding(made, quantizer.prepared, BATCHES, quantizer.largest)
    assert len(ratios) == 5
    assert max(ratios.values()) <= 1
    assert np.mean(list(ratios.values())) < 0.7
    before, after = onnx.load(nearest), onnx.load(made)
    assert before.graph.node == after.graph.node
    for old, new in zip(before.graph.initializer, after.graph.initializer, strict=True):
        was, now = numpy_helper.to_array(old), numpy_helper.to_array(new)
        if was.dtype != np.int8:
            assert np.array_equal(was, now), old.name
        else:
            assert now.dtype == np.int8
            assert np.abs(now.astype(int)).max() <= quantizer.largest
    expected = outputs_of(plain, BATCHES)
    errors = [np.square(outputs_of(each, BATCHES) - expected).mean() for each in (nearest, made)]
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("groups", "kernel", "attributes"),
    [
        (1, (3, 3), {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
        (6, (3, 3), {"pads": (1, 1, 1, 1)}),
        (2, (2, 3), {"dilations": (2, 1)}),
        (3, (1, 1), {"strides": (2, 2)}),
        (1, (1, 1), {}),
    ],
)
def test_hessian_gives_the_squared_outputs_of_a_convolution(
    groups: int, kernel: tuple[int, int], attributes: dict[str, tuple[int, ...]]
) -> None:
    layer = QuantisedLayer(
        "conv", "Conv", {**attributes, "kernel_shape": kernel}, "x", "w", "s", 0, groups
    )
    images = rng.standard_normal((3, 6, 9, 8), dtype=np.float32)
    weights = rng.standard_normal((12, 6 // groups, *kernel), dtype=np.float32)
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    outputs = nn.functional.conv2d(
        nn.functional.pad(torch.from_numpy(images), (left, right, top, bottom)),
        torch.from_numpy(weights),
        stride=attributes.get("strides", (1, 1)),
        dilation=attributes.get("dilations", (1, 1)),
        groups=groups,
    )
    rows = layer.rows(weights).double()
    squared = ((rows @ layer.hessian(images)) * rows).sum(2).flatten()
    assert torch.allclose(squared, outputs.square().sum((0, 2, 3)).double(), rtol=1e-4)
    assert np.array_equal(layer.stored_form(layer.rows(weights), weights.shape), weights)
