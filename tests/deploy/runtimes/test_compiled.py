"""PyTorch's compiler with several networks in one process, as in calibration and sweeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hwnas.deploy import RUNTIMES, Device, Target, export_onnx

COMPILE = RUNTIMES["pytorch_compile"]
TARGET = Target(Device("cpu", "pytorch_compile"))


@pytest.mark.slow
def test_pytorch_compile_compiles_each_of_several_networks_once(tmp_path: Path) -> None:
    if reason := COMPILE.unavailable():
        pytest.skip(reason)
    images = np.random.default_rng(0).random((1, 1, 4, 4), dtype=np.float32)
    with torch._dynamo.config.patch(recompile_limit=1):
        for channels in (2, 3, 4):
            network = nn.Sequential(nn.Conv2d(1, channels, 3), nn.ReLU(), nn.Flatten()).eval()
            export_onnx(network, (1, 4, 4), tmp_path / "network.onnx")
            session = COMPILE.load(tmp_path / "network.onnx", TARGET)
            expected = network(torch.from_numpy(images)).detach().numpy()
            np.testing.assert_allclose(session.run(images), expected, atol=1e-5)
