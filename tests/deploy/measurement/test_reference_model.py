from pathlib import Path

import numpy as np

from hwnas.deploy import RUNTIMES, Target
from hwnas.deploy.measurement.reference_model import write_reference_model

GOLDEN = (-0.00277236, 0.00212964, 0.00222358, -0.00270263)
"""What it gave when it was made; latencies that were recorded beside it count on it."""


def test_write_reference_model_writes_the_same_file_every_time(tmp_path: Path) -> None:
    for name in ("first.onnx", "second.onnx"):
        write_reference_model(tmp_path / name)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()


def test_reference_model_gives_its_recorded_outputs(tmp_path: Path) -> None:
    path = tmp_path / "reference.onnx"
    write_reference_model(path)
    session = RUNTIMES["onnxruntime"].load(path, Target.parse("cpu-onnxruntime-fp32-b2-t1"))
    pixels = np.linspace(-1, 1, 2 * np.prod(session.input_shape), dtype=np.float32)
    outputs = session.run(pixels.reshape(2, *session.input_shape))
    assert outputs.shape == (2, 10)
    np.testing.assert_allclose(outputs[0, :4], GOLDEN, atol=1e-6)
