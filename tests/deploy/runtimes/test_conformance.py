"""Conformance tests of every runtime, in every number format that it supports."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hwnas.deploy import RUNTIMES, Device, Export, Target, TimingSettings, measure
from hwnas.deploy.export.to_onnx import relative_error
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.runtimes.runtime import Session
from hwnas.errors import ArtifactError, DeviceError

TARGETS = [
    Target(Device(hardware, name), number_format)
    for name, runtime in RUNTIMES.items()
    for hardware in runtime.hardware
    for number_format in runtime.formats
]
COMPILED = ("pytorch_compile", "aotinductor", "executorch", "litert")


def marks(target: Target) -> list[pytest.MarkDecorator]:
    """Mark compilers as slow: they take at least ten seconds per network, or even minutes."""
    slow = [pytest.mark.slow] if target.device.runtime in COMPILED else []
    return slow if target.device.hardware == "cpu" else [pytest.mark.gpu]


# Largest difference from ONNX Runtime's fp32, as a share of the largest output.
TOLERANCE = {"fp32": 1e-4, "fp16": 0.01, "bf16": 0.05, "int8": 0.25}


@pytest.fixture(
    scope="module",
    params=[pytest.param(target, marks=marks(target)) for target in TARGETS],
    ids=lambda target: target.name,
)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    reason = RUNTIMES[found.device.runtime].unavailable(found.device.hardware)
    if reason is not None:
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def session(target: Target, exported: Export) -> Session:
    return open_session(exported.path, target)


def images(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 1, 8, 8), dtype=np.float32)


def test_runtime_gives_the_outputs_of_the_network(
    target: Target, session: Session, exported: Export
) -> None:
    plain = RUNTIMES["onnxruntime"]
    assert session.input_shape == (1, 8, 8)
    expected = plain.load(exported.path, Target(Device("cpu", "onnxruntime"))).run(images(4))
    found = session.run(images(4))
    assert found.shape == (4, 10)
    assert relative_error(found, expected) < TOLERANCE[target.format]
    if target.format == "int8":
        assert relative_error(found, expected) > 1e-4  # the outputs are not those of fp32


def test_session_does_not_overwrite_earlier_outputs(session: Session) -> None:
    first = session.run(images(1))
    kept = first.copy()
    session.run(images(1) + 1)
    np.testing.assert_array_equal(first, kept)


def test_session_has_a_cpu_clock_and_reports_its_threads(session: Session) -> None:
    before = session.cpu_clock()
    for _ in range(200):
        session.run(images(8))
    assert session.cpu_clock() > before
    assert any("thread" in name.lower() for name in session.settings)


@pytest.mark.slow
def test_measure_works_with_every_runtime(target: Target, exported: Export) -> None:
    settings = TimingSettings(warmup=2, rounds=5, round_ms=1.0)
    before = exported.path.read_bytes()
    found = measure({"a": exported.path, "b": exported.path}, target, settings)
    assert exported.path.read_bytes() == before
    for measurement in found.values():
        assert measurement.target == target.name
        assert 0 < measurement.latency_ms < 100
        assert set(RUNTIMES[target.device.runtime].packages) & set(measurement.versions)


def test_runtime_refuses_damaged_and_missing_files_in_one_line(
    target: Target, exported: Export, tmp_path: Path
) -> None:
    runtime = RUNTIMES[target.device.runtime]
    half = tmp_path / "half.onnx"
    half.write_bytes(exported.path.read_bytes()[:1000])
    for path in (half, tmp_path / "nowhere.onnx"):
        with pytest.raises(ArtifactError, match=path.name) as raised:
            runtime.load(runtime.prepare(path, target, tmp_path), target)
        assert len(str(raised.value).splitlines()) == 1


def test_runtime_refuses_more_threads_than_cores(target: Target, exported: Export) -> None:
    cores = os.cpu_count() or 1
    many = replace(target, device=replace(target.device, threads=cores + 1))
    with pytest.raises(DeviceError, match=f"-t{cores} or less"):
        open_session(exported.path, many)
