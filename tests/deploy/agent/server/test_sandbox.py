"""Sandboxed process of the agent, with harmful and invalid models."""

import hashlib
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import onnx
import psutil
import pytest
from onnx import helper
from tests.deploy.agent.conftest import QUICK, graph_of

from hwnas.deploy.agent.measuring_job import JobState, MeasuringJob, MeasuringRequest
from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.deploy.agent.server.sandbox import Sandbox
from hwnas.errors import DeviceError

TARGET = "cpu-onnxruntime-fp32-b1-t1"


class Place:
    """Folder of models with a sandbox that runs them."""

    def __init__(self, folder: Path, pack: Path, limits: AgentLimits) -> None:
        self.models = folder / "models"
        self.models.mkdir()
        self.sandbox = Sandbox(folder / "work", pack, limits, self._copy)
        self.stop = threading.Event()
        self.shares: list[float] = []

    def _file(self, model: str) -> Path:
        return self.models / f"{model}.onnx"

    def _copy(self, model: str, to: Path) -> None:
        shutil.copy(self._file(model), to)

    def do(self, path: Path, target: str = TARGET) -> JobState | None:
        model = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, self._file(model))
        job = MeasuringJob({"it": MeasuringRequest(model, target)}, QUICK)
        return self.sandbox(job, self.shares.append, self.stop)

    def refused(self, path: Path, target: str = TARGET) -> str:
        state = self.do(path, target)
        assert state is not None
        assert state.state == "failed", state
        return f"{state.failure['error']}: {state.failure['message']}"


@pytest.fixture
def place(pack: Path, tmp_path: Path) -> Place:
    return Place(tmp_path, pack, replace(AgentLimits(), network_s=20.0, memory_bytes=2**30))


@pytest.mark.slow
def test_sandbox_times_a_network_and_leaves_no_files(place: Place, model: Path) -> None:
    state = place.do(model)
    assert state is not None
    assert state.state == "done", state
    measured = state.measurements["it"]
    assert (measured.target, measured.n) == (TARGET, 5)
    assert measured.latency_ms > 0
    assert place.shares[-1] == 1.0
    assert not list(place.sandbox.folder.iterdir())


@pytest.mark.slow
def test_sandbox_refuses_a_model_with_a_loop(place: Place, looping: Path) -> None:
    onnx.checker.check_model(onnx.load(looping))
    assert "'Loop', which may never end" in place.refused(looping)


@pytest.mark.slow
def test_sandbox_ends_a_model_that_takes_too_long(
    pack: Path, tmp_path: Path, endless: Path
) -> None:
    place = Place(tmp_path, pack, replace(AgentLimits(), network_s=2.0))
    onnx.checker.check_model(onnx.load(endless))
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"not measured within 4 s .* --seconds"):
        place.do(endless)
    assert time.monotonic() - began < 10
    assert not list(place.sandbox.folder.iterdir())


@pytest.mark.slow
def test_sandbox_refuses_a_huge_allocation(place: Place, huge: Path) -> None:
    onnx.checker.check_model(onnx.load(huge))
    assert "not enough memory" in place.refused(huge)


def test_sandbox_stops_a_job(place: Place, endless: Path) -> None:
    threading.Timer(1.0, place.stop.set).start()
    began = time.monotonic()
    assert place.do(endless) is None
    assert time.monotonic() - began < 10


@pytest.mark.slow
def test_sandbox_refuses_damaged_and_invalid_models(
    place: Place, model: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(model.read_bytes()[:5000])
    assert "ArtifactError" in place.refused(cut)
    unknown = graph_of([helper.make_node("NoSuchOperator", ["x"], ["y"])], tmp_path, "unknown")
    assert "not a valid ONNX model" in place.refused(unknown)


def test_sandbox_refuses_a_target_with_too_many_threads(place: Place, model: Path) -> None:
    told = place.refused(model, "cpu-onnxruntime-fp32-b1-t999999")
    assert told.startswith("DeviceError")
    assert "999999 threads" in told


def test_sandbox_reports_a_killed_process(place: Place, endless: Path) -> None:
    others = set(psutil.Process().children())  # such as those of Ray, if another test started it

    def kill() -> None:
        for child in set(psutil.Process().children()) - others:
            child.kill()

    threading.Timer(1.0, kill).start()
    with pytest.raises(DeviceError, match=r"was killed by signal 9, perhaps for lack of memory"):
        place.do(endless)


def test_sandbox_reports_a_memory_limit_that_is_too_small(
    pack: Path, tmp_path: Path, model: Path
) -> None:
    place = Place(tmp_path, pack, replace(AgentLimits(), memory_bytes=2**20))
    try:
        told = place.refused(model)
    except DeviceError as error:
        told = f"DeviceError: {error}"
    assert told.startswith("DeviceError")


def test_sandbox_hides_the_environment_from_its_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HWNAS_TOKEN", "secret")
    environment = place.sandbox._environment(Path("work"))
    assert "secret" not in environment.values()
    assert environment["HOME"] == environment["HWNAS_HOME"] == "work"
