import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hwnas.deploy import RUNTIMES, Export, Target, export_onnx
from hwnas.deploy.export.comparison import relative_error
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.deploy.runtimes import open_session

COMMAND = """
from pathlib import Path
import sys
from hwnas.deploy import Target
from hwnas.deploy.runtimes import open_session
print(open_session(Path(sys.argv[1]), Target.parse("cpu-mnn-fp32-b1-t1")).input_shape)
"""
INT8 = Target.parse("cpu-mnn-int8-b1-t1")


class Products(nn.Module):
    """Two products, one of many weights, whose ReLU the quantiser leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3 * 16 * 16, 128), nn.Linear(128, 5)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.first(images.flatten(1)).relu())
        return outputs


@pytest.fixture(autouse=True)
def installed() -> None:
    if reason := RUNTIMES["mnn"].unavailable():
        pytest.skip(reason)


@pytest.mark.slow
def test_mnn_writes_nothing_to_standard_output(exported: Export) -> None:
    """The MNN library writes to standard output, which would corrupt the JSON of hwnas."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, exported.path], capture_output=True, text=True, check=True
    )
    assert done.stdout == "(1, 8, 8)\n"


def of_onnx_runtime(file: Path, tmp_path: Path) -> tuple[float, Path]:
    """Return the error of MNN's outputs for a file in int8, and the file that MNN made."""
    plain = open_session(file, Target.parse("cpu-onnxruntime-int8-b1-t1"))
    images = random_batches(plain.input_shape, 4)[0]
    made = RUNTIMES["mnn"].prepare(file, INT8, tmp_path)
    found = RUNTIMES["mnn"].load(made, INT8).run(images)
    return relative_error(found, plain.run(images)), made


def test_int8_has_the_rounding_of_the_file_and_small_weights(
    int8_file: Path, tmp_path: Path
) -> None:
    error, made = of_onnx_runtime(int8_file, tmp_path)
    assert error < 0.05
    whole = tmp_path / "whole.mnn"
    RUNTIMES["mnn"].convert(int8_file.with_name("model.onnx"), whole)
    assert made.stat().st_size < 0.6 * whole.stat().st_size  # of tiny networks


def test_int8_product_of_many_weights_is_exact(tmp_path: Path) -> None:
    torch.manual_seed(0)
    made = export_onnx(Products().eval(), (3, 16, 16), tmp_path / "model.onnx")
    batches = random_batches((3, 16, 16), 8)
    file = quantize_int8(made.path, tmp_path / "model.int8.onnx", batches)
    error, converted = of_onnx_runtime(file, tmp_path)
    assert error < 0.01
    assert converted.stat().st_size < 1.2 * (3 * 16 * 16 * 128 + 128 * 5)


def test_converter_leaves_the_current_folder_alone(
    exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RUNTIMES["mnn"].prepare(exported.path, Target.parse("cpu-mnn-fp32-b1-t1"), Path())
    assert os.listdir() == [f"{exported.path.stem}.mnn"]
