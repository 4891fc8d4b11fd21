"""Commands for devices with an agent: add, measure, calibrate, search, and bad input."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hwnas.deploy.measurement.reference_model import write_reference_model

pytest.importorskip("cryptography", reason="cryptography is not installed: pip install .[agent]")

Command = Callable[..., Any]
TARGET = "pi5-onnxruntime-fp32-b1-t1"


@dataclass(frozen=True)
class Agent:
    address: str
    token: str


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Start an agent with the command line; Ctrl-C must end it without output."""
    command = [sys.executable, "-m", "hwnas.cli", "agent", "serve", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--seconds", "10"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HWNAS_HOME": str(tmp_path_factory.mktemp("agent"))},
    )
    assert process.stdout is not None
    said = ""
    while "only this machine" not in said:
        line = process.stdout.readline()
        assert line, process.communicate()
        said += line
    token, address = (re.search(p, said) for p in (r"only once: (\S+)", r"on (https://\S+)"))
    assert token is not None
    assert address is not None
    yield Agent(address[1], token[1])
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def token_file(agent: Agent, tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(agent.token + "\n")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_reference_model(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.slow
def test_devices_add_command_makes_a_device_available_to_measure(
    hwnas: Command, agent: Agent, token_file: Path, model: Path
) -> None:
    given = ("--agent", agent.address, "--token-file", token_file)
    answer = hwnas("devices", "add", "pi5", *given)
    assert answer.status == 0, answer.err
    assert "pi5-onnxruntime-fp32-b{B}-t{T}" in answer.out
    assert f"hwnas measure model.onnx --target {TARGET}" in answer.out
    assert agent.token not in answer.out
    added = json.loads(hwnas("devices", "add", "pi5", *given, "--json").out)
    assert added["address"] == agent.address
    assert "key" not in added
    measured = json.loads(hwnas("measure", model, "--target", TARGET, "--json").out)
    assert measured["target"] == TARGET
    assert measured["hardware"] == added["processor"]
    assert "load_1min" in measured["conditions"]
    assert "load_1min" in hwnas("measure", model, "--target", TARGET).out
    lasting = hwnas("measure", model, "--target", TARGET, "--sustained", 0.005)
    assert "load_1min" in lasting.out
    assert "times as long (measured)" in lasting.out
    cold = json.loads(hwnas("measure", model, "--target", TARGET, "--cold-start", "--json").out)
    assert cold["target"] == TARGET
    assert cold["until_answer_ms"] > cold["later_ms"]
    assert re.search(r"pi5-onnxruntime-fp32-b{B}-t{T} +usable", hwnas("devices").out)
    assert hwnas("devices", "remove", "pi5").status == 0
    hwnas("measure", model, "--target", TARGET).refused(
        "unknown hardware 'pi5'", "known: browser, cpu"
    )


def test_devices_add_command_reads_the_token_from_a_pipe(
    hwnas: Command, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(agent.token + "\n"))
    assert hwnas("devices", "add", "pi5", "--agent", agent.address).status == 0


@pytest.mark.slow
def test_calibrate_and_predict_commands_work_for_an_agent_device(
    hwnas: Command, agent: Agent, token_file: Path, model: Path
) -> None:
    hwnas("devices", "add", "pi5", "--agent", agent.address, "--token-file", token_file)
    tiny = ("--space", "mobilenet", "--image", "8x8x1", "--classes", "10", "--samples", 3)
    answer = hwnas("calibrate", "--target", TARGET, *tiny)
    assert answer.status == 0, answer.err
    assert answer.out.count("  measured ") == 3
    [found] = json.loads(hwnas("predict", model, "--target", TARGET, "--json").out)
    assert (found["samples"], found["target"]) == (3, TARGET)
    assert not [note for note in found["notes"] if "measured on" in note]
    answer = hwnas("calibrate", "--target", TARGET, *tiny, "--metric", "peak_memory_bytes")
    assert answer.status == 0, answer.err
    assert len(re.findall(r"  measured [\d.]+ MB", answer.out)) == 3
    hwnas("calibrate", "--target", TARGET, *tiny, "--metric", "energy_mj").refused("pi5")


@pytest.mark.slow
def test_search_command_measures_on_the_agent_device(
    hwnas: Command, agent: Agent, token_file: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    hwnas("devices", "add", "pi5", "--agent", agent.address, "--token-file", token_file)
    here = "cpu-onnxruntime-fp32-b1-t1"
    tiny_recipe.write_text(tiny_recipe.read_text().replace(here, TARGET))
    answer = hwnas("search", tiny_recipe, "--run", tmp_path / "run", "--json")
    assert answer.status == 0, answer.err
    front = json.loads(answer.out)["front"]
    assert [row["measured_latency_ms"] for row in front if row["bundle"]]
    bundle = next((tmp_path / "run" / "bundles").iterdir())
    [measured] = json.loads((bundle / "bundle.json").read_text())["measurements"]
    assert measured["target"] == TARGET


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["devices", "add", "a-b", "--agent", "https://x:1"], ["'a-b' cannot be the name"]),
        (
            ["devices", "add", "cpu", "--agent", "https://x:1"],
            ["is the name of hardware or of a runtime"],
        ),
        (["devices", "add", "pi5", "--agent", "x:1"], ["the agent's address is 'x:1'"]),
        (["devices", "add", "pi5", "--agent", "https://127.0.0.1:9"], ["no agent answers at"]),
        (["devices", "add", "pi5"], ["give either --agent", "or --web"]),
        (
            ["devices", "add", "pi5", "--agent", "https://x:1", "--web", "https://x:1"],
            ["give either --agent", "or --web"],
        ),
        (["devices", "add", "pi5", "--web", "http://x:1"], ["the agent's address is 'http://x:1"]),
        (["agent", "web", "--http"], ["--http with --host 0.0.0.0"]),
        (["agent", "web", "--port", "-1"], ["--port is -1"]),
        (["agent", "web", "--runtime-files", "."], ["--runtime-files", "npm pack"]),
        (["devices", "remove", "pi5"], ["no device 'pi5' was added", "none"]),
        (["devices", "frget"], ["No such command 'frget'"]),
        (["agent", "serve", "--port", "99999"], ["--port is 99999"]),
        (["agent", "serve", "--seconds", "0"], ["--seconds is 0"]),
        (["agent", "serve", "--memory-mb", "1"], ["--memory-mb is 1"]),
        (["agent", "serve", "--host", "256.1.1.1", "--port", "0"], ["cannot listen on 256.1.1.1"]),
        (["agent", "pack", "--out", "."], ["is a folder"]),
    ],
)
def test_agent_and_device_commands_refuse_bad_input_in_one_line(
    hwnas: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("token\n"))
    hwnas(*options).refused(*parts)


def test_devices_add_command_refuses_readable_or_empty_token_files(
    hwnas: Command, agent: Agent, token_file: Path
) -> None:
    token_file.chmod(0o644)
    given = ("--agent", agent.address, "--token-file", token_file)
    hwnas("devices", "add", "pi5", *given).refused("other users can access it", "chmod 600")
    token_file.chmod(0o600)
    token_file.write_text("")
    hwnas("devices", "add", "pi5", *given).refused("the token is empty")


def test_agent_pack_command_writes_the_agent_and_names_its_packages(
    hwnas: Command, tmp_path: Path
) -> None:
    answer = hwnas("agent", "pack", "--out", tmp_path / "agent.pyz")
    assert answer.status == 0
    assert "pip install numpy onnx onnxruntime cryptography" in answer.out
    assert (tmp_path / "agent.pyz").stat().st_size > 10_000


@pytest.mark.slow
def test_agent_pack_command_leaves_nothing_on_a_full_disk(
    hwnas_on_a_full_disk: Command, tmp_path: Path
) -> None:
    out = tmp_path / "agent.pyz"
    hwnas_on_a_full_disk(2000, "agent", "pack", "--out", out).refused("cannot write", "agent.pyz")
    assert not list(tmp_path.iterdir())
