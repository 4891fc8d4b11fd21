"""Kernel plan that is shipped beside an ONNX file that runs on the kernels of hwnas."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.deploy import Bundle
from hwnas.deploy.bundles.repacking import write_variants
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.variants import ConvertedNetwork
from hwnas.deploy.variants.sweep import Sweep, VariantResult
from hwnas.errors import ArtifactError

TARGET = "cuda-triton-fp32-b1-t1"


def fastest_on_a_gpu(model: Path, measurement: Measurement) -> Sweep:
    timed = replace(measurement, target=TARGET)
    contender = VariantResult(
        "fp32", TARGET, ConvertedNetwork(model), 1, difference=0.0, measurement=timed
    )
    return Sweep((contender,), max_loss=0.0)


def test_write_variants_adds_a_verified_kernel_plan_to_a_bundle(
    packed: Bundle, measurement: Measurement, tmp_path: Path
) -> None:
    found = fastest_on_a_gpu(packed.onnx_file, measurement)
    write_variants(packed, found, tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    [artifact] = bundle.artifacts
    assert (artifact.file, artifact.beside) == ("model.onnx", (f"model.{TARGET}.json",))
    assert f"model.{TARGET}.json" in {check.name for check in bundle.verify()}
    plan = bundle.folder / artifact.beside[0]
    told = json.loads(plan.read_text())
    assert told["target"] == TARGET
    assert {"operator", "revision", "config", "sizes"} <= set(told["calls"][0])
    plan.write_text(plan.read_text().replace("pointwise", "pintwise"))
    with pytest.raises(ArtifactError, match=plan.name):
        bundle.verify()


def test_write_variants_adds_the_kernel_plan_to_a_folder(
    packed: Bundle, measurement: Measurement, tmp_path: Path
) -> None:
    found = fastest_on_a_gpu(packed.onnx_file, measurement)
    write_variants(packed.onnx_file, found, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"model.onnx", f"model.{TARGET}.json", "sweep.json"}
