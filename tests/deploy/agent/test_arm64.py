"""The packed agent on 64-bit ARM, which QEMU emulates: that it works, not how fast it is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.agent.conftest import QUICK, Outside

from hwnas.deploy import Target, measure
from hwnas.deploy.agent.client.client import ask
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.errors import DeviceError
from hwnas.predictors.devices.calibration import CalibrationOptions, calibrate
from hwnas.predictors.devices.store import DeviceStore
from hwnas.search_spaces import mobilenet

TARGET = "arm-onnxruntime-fp32-b1-t1"


@pytest.fixture(scope="module")
def arm(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    folder = os.environ.get("HWNAS_ARM64")
    if folder is None or shutil.which("qemu-aarch64") is None:
        pytest.skip("set HWNAS_ARM64 to a folder that tests/deploy/agent/arm64_root.sh wrote")
    python = str(Path(folder).absolute() / "python")
    made = Outside(pack, tmp_path_factory.mktemp("arm") / "agent", python, seconds=120)
    yield made
    made.kill()


@pytest.mark.slow
def test_packed_agent_times_networks_on_emulated_arm_and_says_so(
    arm: Outside, model: Path, tmp_path: Path
) -> None:
    device = add_device("arm", arm.address, arm.token, patience_s=60.0)
    assert "aarch64" in ask(device, 60.0).machine["system"]
    assert "onnxruntime-int8" in device.kinds
    for target in (TARGET, "arm-onnxruntime-int8-b2-t1"):
        found = measure({"network": model}, Target.parse(target), QUICK)["network"]
        assert found.latency_ms > 0
        assert found.conditions["emulated_by"].startswith("qemu-")
    space = mobilenet((8, 8, 1), 10, preset="tiny")
    with pytest.raises(DeviceError, match="is emulated by qemu-aarch64"):
        calibrate(
            Target.parse(TARGET),
            space,
            DeviceStore(tmp_path),
            CalibrationOptions(3),
            settings=QUICK,
        )
