"""Networks in TensorFlow Lite Micro: the weights of the C code, nearly its outputs, the memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hwnas.deploy import export_onnx
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.microcontroller import read_integer_network
from hwnas.deploy.quantization.quantize import quantize_int8


class Gated(nn.Module):
    """Convolutions of all paddings, activations, a gate and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.gate = nn.Conv2d(8, 8, 1)
        self.wide = nn.Conv2d(8, 12, 3, padding=2, dilation=2)
        self.outputs = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.hardswish(self.stem(x))
        y = nn.functional.relu6(self.depthwise(x))
        x = x + y * nn.functional.hardsigmoid(self.gate(y.mean((2, 3), keepdim=True)))
        x = nn.functional.max_pool2d(self.wide(x), 2)
        outputs: torch.Tensor = self.outputs(x.mean((2, 3)))
        return outputs


@pytest.mark.slow
def test_interpreter_gives_the_outputs_of_the_integer_network(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro", reason="tflite-micro is not installed")
    from experiments.microcontroller.tflite_micro.interpreter import interpreted
    from experiments.microcontroller.tflite_micro.translation import litert_file

    torch.manual_seed(0)
    how = Preprocessing(20, 24, 3, (0.5,) * 3, (0.25,) * 3)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 20, 24, 3), np.uint8)
    export_onnx(Gated().eval(), how.input_shape, tmp_path / "a.onnx", how(pixels), how)
    images = how(pixels).contiguous().numpy()
    model = quantize_int8(tmp_path / "a.onnx", tmp_path / "b.onnx", [images])
    network = read_integer_network(model, how, join_tables=False)
    inputs = network.steps[0].operator.run(pixels)
    padded, same = (interpreted(litert_file(network, each), inputs) for each in (False, True))
    assert np.abs(padded.outputs.astype(int) - network.run(pixels)).max() <= 3
    assert 20 * 24 * 3 <= same.activation_bytes <= padded.activation_bytes < padded.arena_bytes


def test_missing_package_is_told_with_what_installs_it(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tflite_micro", None)
    told = refusal("microcontroller.tflite_micro", "--out", tmp_path, "--work", tmp_path)
    assert "pip install tflite-micro" in told


def test_unknown_operator_of_litert_is_named(tmp_path: Path) -> None:
    pytest.importorskip("tflite_micro", reason="tflite-micro is not installed")
    from experiments.microcontroller.tflite_micro.translation import litert_file
    from hwnas.deploy.microcontroller.axes import IntegerSoftmax
    from hwnas.deploy.microcontroller.elementwise import PixelTable
    from hwnas.deploy.microcontroller.network import IntegerNetwork, IntegerStep, IntegerTensor
    from hwnas.errors import ConfigError

    tensors = [IntegerTensor((2, 2, 1), 1.0, 0)] * 3
    pixels: Any = PixelTable(np.zeros((1, 256), np.int8), 4)
    softmax = IntegerSoftmax.of(0.1, 1 / 255, -128, 2, 2)
    steps = [IntegerStep(pixels, (0,), 1, "a"), IntegerStep(softmax, (1,), 2, "scores")]
    with pytest.raises(ConfigError, match="LiteRT has no operator for softmax of scores"):
        litert_file(IntegerNetwork(tensors, steps, 2, (4,)), True)
