from pathlib import Path

import numpy as np
import onnx
import pytest

from hwnas.deploy import RUNTIMES, Export, Target
from hwnas.deploy.number_format import number_format, to_float16
from hwnas.deploy.quantize import quantize_int8, random_batches
from hwnas.errors import ArtifactError


def test_files_tell_their_format_and_targets_of_another_refuse_them(
    exported: Export, tmp_path: Path
) -> None:
    half = to_float16(exported.path, tmp_path / "half.onnx")
    whole = quantize_int8(exported.path, tmp_path / "int8.onnx", random_batches((1, 8, 8), 4))
    assert [number_format(p) for p in (exported.path, half, whole)] == ["fp32", "fp16", "int8"]
    assert half.stat().st_size < 0.7 * exported.path.stat().st_size
    runtime = RUNTIMES["onnxruntime"]
    for path, found in ((half, "fp16"), (whole, "int8")):
        own = Target.parse(f"cpu-onnxruntime-{found}-b1-t1")
        assert runtime.prepare(path, own, tmp_path) == path
        with pytest.raises(ArtifactError, match=f"computes in {found} and the target in fp32"):
            runtime.prepare(path, Target.parse("cpu-onnxruntime-fp32-b1-t1"), tmp_path)


def test_half_precision_keeps_inputs_and_outputs(exported: Export, tmp_path: Path) -> None:
    half = to_float16(exported.path, tmp_path / "half.onnx")
    runtime = RUNTIMES["onnxruntime"]
    images = np.random.default_rng(0).standard_normal((2, 1, 8, 8), dtype=np.float32)
    found, expected = (
        runtime.load(path, Target.parse(f"cpu-onnxruntime-{name}-b2-t1")).run(images)
        for path, name in ((half, "fp16"), (exported.path, "fp32"))
    )
    assert found.dtype == np.float32
    onnx.checker.check_model(half, full_check=True)
    assert 0 < np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_what_is_no_onnx_file_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no model")
    for path in (damaged, tmp_path / "nowhere.onnx"):
        with pytest.raises(ArtifactError, match=path.name):
            number_format(path)
