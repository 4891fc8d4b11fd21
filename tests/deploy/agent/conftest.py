"""Agents that listen on this machine, and a host that added one of them."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hwnas.deploy.agent.client.added_devices import AddedDevice
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.pack import write_pack
from hwnas.deploy.agent.server.serve import AgentOptions, opened_door
from hwnas.deploy.agent.server.server import AgentServer
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.reference_model import write_reference_model

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install .[agent]")

QUICK = TimingSettings(warmup=1, rounds=5, round_ms=1.0)
NAME = "pi5"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder of the host; an agent in the same process has another folder."""
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pack(tmp_path_factory.mktemp("pack") / "agent.pyz")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "reference.onnx"
    write_reference_model(path)
    return path


@dataclass
class Running:
    """Agent that runs in this process."""

    server: AgentServer
    token: str
    folder: Path

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("agent") / "agent"
    told: list[str] = []
    with opened_door(AgentOptions(port=0, folder=folder, seconds=5), told.append) as server:
        yield Running(server, token_in(told), folder)


def token_in(lines: list[str]) -> str:
    [line] = [line for line in lines if line.startswith("token, shown only once: ")]
    return line.partition(": ")[2].strip()


@pytest.fixture
def device(agent: Running) -> AddedDevice:
    """Device of the agent in this process."""
    return add_device(NAME, agent.address, agent.token, patience_s=2.0)


class Outside:
    """Agent in another process, which tests kill and start again."""

    def __init__(
        self, pack: Path, folder: Path, python: str = sys.executable, seconds: int = 10
    ) -> None:
        self._pack, self.folder, self._python, self._seconds = pack, folder, python, seconds
        self.token, self.port = "", 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self, *more: str) -> None:
        serve = ["serve", "--port", self.port, "--seconds", self._seconds]
        command = [self._python, self._pack, *serve]
        self.process = subprocess.Popen(
            [*map(str, command), "--folder", str(self.folder), *more],
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = []
        assert self.process.stdout is not None
        while not lines or not lines[-1].startswith("only this machine"):
            lines.append(self.process.stdout.readline())
            assert lines[-1], lines
        [address] = [line for line in lines if line.startswith("agent of hwnas")]
        self.port = int(address.rpartition(":")[2])
        if any(line.startswith("token") for line in lines):
            self.token = token_in(lines)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@pytest.fixture
def outside(pack: Path, tmp_path: Path) -> Iterator[Outside]:
    made = Outside(pack, tmp_path / "outside")
    yield made
    made.kill()


def graph_of(nodes: list[Any], folder: Path, name: str, **tensors: Any) -> Path:
    """Write a model with one image input x and the output y."""
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 2, 2])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*"abcd"])
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, name, [image], [output], weights)
    path = folder / f"{name}.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.fixture(scope="session")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid model that never finishes a run."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Mul", ["state", "state"], ["next"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("state", TensorProto.FLOAT, [*"abcd"]),
        ],
        [value("go_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, [*"abcd"])],
    )
    node = helper.make_node("Loop", ["times", "yes", "x"], ["y"], body=body)
    times, yes = np.array(2**62, np.int64), np.array(True)
    return graph_of([node], tmp_path_factory.mktemp("m"), "looping", times=times, yes=yes)


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid model without a loop that takes minutes for one run."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["one"]),
        helper.make_node("Expand", ["one", "shape"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", f"m{i}"], [f"m{i + 1}"]) for i in range(5000)),
        helper.make_node("ReduceSum", ["m5000"], ["sum"]),
        helper.make_node("Add", ["sum", "x"], ["y"]),
    ]
    shape = np.array([1, 1, 1024, 1024], np.int64)
    return graph_of(nodes, tmp_path_factory.mktemp("m"), "endless", shape=shape)


@pytest.fixture(scope="session")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Valid model that needs more memory than the machine has."""
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["large"]),
        helper.make_node("ReduceSum", ["large"], ["sum"]),
        helper.make_node("Add", ["sum", "x"], ["y"]),
    ]
    shape = np.array([2**20, 2**14, 2, 2], np.int64)
    return graph_of(nodes, tmp_path_factory.mktemp("m"), "huge", shape=shape)
