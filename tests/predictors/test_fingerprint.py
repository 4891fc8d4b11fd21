from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hwnas.deploy import RUNTIMES, Target
from hwnas.deploy.onnx.workload import read_workload
from hwnas.predictors.devices.fingerprint import PROBES, Fingerprint, fingerprint, write_probe

TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")


@pytest.mark.parametrize("name", PROBES)
def test_probe_network_has_the_declared_work_and_runs(name: str, tmp_path: Path) -> None:
    probe = PROBES[name]
    write_probe(probe, tmp_path / "probe.onnx")
    workload = read_workload(tmp_path / "probe.onnx").workload
    assert workload.macs == probe.macs
    assert len(workload.operators) == probe.layers
    assert sum(map(workload.bytes_moved, workload.operators)) == probe.bytes_moved
    session = RUNTIMES["onnxruntime"].load(tmp_path / "probe.onnx", TARGET)
    found = session.run(np.ones((1, probe.channels, probe.side, probe.side), np.float32))
    assert np.isfinite(found).all()


def test_fingerprint_recovers_the_constants_of_a_roofline_machine() -> None:
    gmacs, gbytes, overhead_us, depthwise = 20.0, 10.0, 3.0, 0.25

    def milliseconds(name: str) -> float:
        probe = PROBES[name]
        rate = gmacs * (depthwise if probe.depthwise else 1)
        busy = probe.macs / rate if probe.kernel_size else probe.bytes_moved / gbytes
        return probe.layers * 1e-3 * overhead_us + 1e-6 * busy

    found = Fingerprint(TARGET.name, {name: milliseconds(name) for name in PROBES}).machine()
    assert found.gmacs == pytest.approx(gmacs, rel=0.15)
    assert found.gbytes == pytest.approx(gbytes, rel=0.15)
    assert found.overhead_us == pytest.approx(overhead_us, rel=0.15)
    assert found.depthwise == pytest.approx(depthwise, rel=0.15)


@pytest.mark.slow
def test_fingerprint_of_this_machine_is_plausible() -> None:
    found = fingerprint(TARGET)
    assert found.probes_ms.keys() == PROBES.keys()
    machine = found.machine()
    assert 0.5 < machine.gmacs < 1000
    assert 0.1 < machine.gbytes < 1000
    assert 0.05 < machine.overhead_us < 500
