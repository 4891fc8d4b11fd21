"""Remote devices, as users see them: targets on another machine, used like local targets."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.deploy.agent.conftest import NAME, QUICK, Outside, Running

from hwnas.deploy import Target, devices, measure, measure_together
from hwnas.deploy.agent.client.added_devices import (
    AddedDevice,
    added_names,
    is_added,
    read_added,
    write_added,
)
from hwnas.deploy.agent.client.client import ask, connected
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.measuring_job import JobState, MeasuringJob, MeasuringRequest
from hwnas.deploy.agent.server.api import Api
from hwnas.deploy.agent.server.job_queue import JobQueue
from hwnas.deploy.agent.server.sandbox import Sandbox
from hwnas.deploy.agent.server.serve import AgentOptions, opened_door
from hwnas.deploy.agent.signing import digest_of
from hwnas.deploy.measurement.cold_start import cold_start
from hwnas.deploy.measurement.energy import EnergyReading, RaplCounter, measured_energy
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import TimedNetwork
from hwnas.deploy.measurement.memory import peak_memory
from hwnas.deploy.measurement.profiling import profile_kernels
from hwnas.deploy.targets.gpu import gpu_name
from hwnas.deploy.targets.machine import machine
from hwnas.errors import ArtifactError, ConfigError, DeviceError, EnergyUnavailable, StorageError

HERE, THERE = "cpu-onnxruntime-fp32-b1-t1", f"{NAME}-onnxruntime-fp32-b1-t1"


@pytest.mark.slow
def test_measure_times_a_network_on_a_remote_device(device: AddedDevice, model: Path) -> None:
    shares: list[float] = []
    found = measure({"network": model}, Target.parse(THERE), QUICK, shares.append)["network"]
    assert (found.target, found.n, found.clock) == (THERE, 5, "cpu")
    assert found.hardware == device.processor == machine()["processor"]
    assert found.versions["onnxruntime"]
    assert found.latency_ms > 0
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


@pytest.mark.slow
def test_measure_together_mixes_local_and_remote_targets(device: AddedDevice, model: Path) -> None:
    names = [THERE, HERE, f"{NAME}-onnxruntime-int8-b2-t1"]
    subjects = {name: TimedNetwork(model, Target.parse(name)) for name in names}
    shares: list[float] = []
    found = measure_together(subjects, QUICK, shares.append)
    assert [found[name].target for name in found] == names
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_agent_keeps_no_jobs_or_work_files(
    agent: Running, device: AddedDevice, model: Path
) -> None:
    measure({"network": model}, Target.parse(THERE), QUICK)
    assert ask(device).jobs == 0
    assert not list((agent.folder / "jobs").iterdir())
    assert not list((agent.folder / "work").iterdir())


@pytest.mark.slow
def test_client_sends_a_model_again_that_was_damaged_on_the_agent(
    agent: Running, device: AddedDevice, model: Path
) -> None:
    """Regression test: a truncated file made every later job with this model fail."""
    measure({"network": model}, Target.parse(THERE), QUICK)
    [stored] = (agent.folder / "models").glob(f"{digest_of(model.read_bytes())}.onnx")
    stored.write_bytes(stored.read_bytes()[:-100])
    assert measure({"network": model}, Target.parse(THERE), QUICK)["network"].latency_ms > 0
    assert stored.read_bytes() == model.read_bytes()


def test_client_sends_a_model_again_that_is_damaged_while_its_job_waits(
    agent: Running, device: AddedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = agent.server.api.models
    copy, damaged = store.copy, []

    def copy_of_a_damaged_file(name: str, to: Path) -> None:
        if not damaged:
            damaged.append(name)
            store.path(name).write_bytes(b"")
        copy(name, to)

    sandbox = replace(agent.server.api.sandbox, copy=copy_of_a_damaged_file)
    monkeypatch.setattr(JobQueue, "_attempt", attempts_by(sandbox))
    assert measure({"network": model}, Target.parse(THERE), QUICK)["network"].latency_ms > 0
    assert damaged


def attempts_by(sandbox: Sandbox) -> Any:
    return lambda queue, entry, job, run, progress: sandbox(job, progress, entry.stop)


def test_client_sends_external_weights_with_the_model(
    device: AddedDevice, model: Path, tmp_path: Path
) -> None:
    split = tmp_path / "split.onnx"
    onnx.save(
        onnx.load(model), split, save_as_external_data=True, location="weights", size_threshold=0
    )
    assert (tmp_path / "weights").stat().st_size > 0
    assert measure({"split": split}, Target.parse(THERE), QUICK)["split"].latency_ms > 0


@pytest.mark.slow
def test_remote_errors_contain_the_local_names_of_files_and_targets(
    device: AddedDevice, model: Path, tmp_path: Path, huge: Path
) -> None:
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(model.read_bytes()[:5000])
    target = Target.parse(THERE)
    with pytest.raises(ArtifactError, match=r"cut\.onnx is not an ONNX file"):
        measure({"cut": cut}, target, QUICK)
    with pytest.raises(ArtifactError, match=r"there is no ONNX file .*none\.onnx"):
        measure({"none": tmp_path / "none.onnx"}, target, QUICK)
    with pytest.raises(ArtifactError, match=rf"^{NAME}: {tmp_path}/two\.onnx has the inputs"):
        measure({"two": two_inputs(tmp_path)}, target, QUICK)
    with pytest.raises(DeviceError, match=rf"^{NAME}: .*{NAME}-onnxruntime-fp32-b1-t9999 has"):
        measure({"network": model}, Target.parse(f"{NAME}-onnxruntime-fp32-b1-t9999"), QUICK)
    with pytest.raises(DeviceError, match=rf"^{NAME}: there is not enough memory"):
        measure({"huge": huge}, target, QUICK)
    assert measure({"network": model}, target, QUICK)["network"].latency_ms > 0, "it stays up"


def two_inputs(folder: Path) -> Path:
    from onnx import TensorProto, helper

    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1]) for n in "ab"]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    node = helper.make_node("Add", ["a", "b"], ["y"])
    made = helper.make_model(
        helper.make_graph([node], "two", inputs, [output]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = folder / "two.onnx"
    onnx.save(made, path)
    return path


@pytest.mark.slow
def test_peak_memory_and_cold_start_are_measured_on_the_device(
    device: AddedDevice, model: Path
) -> None:
    there, here = Target.parse(THERE), Target.parse(HERE)
    found, known = peak_memory(model, there, 2), peak_memory(model, here, 2)
    assert (found.target, found.processes) == (THERE, 2)
    assert found.peak_bytes == pytest.approx(known.peak_bytes, rel=0.25)
    assert found.versions["onnxruntime"]
    start = cold_start(model, there, 2)
    assert (start.target, len(start.starts)) == (THERE, 2)
    assert start.median.until_answer_ms > start.median.later_ms


def test_energy_needs_a_counter_on_the_device(device: AddedDevice, model: Path) -> None:
    if RaplCounter.find():
        pytest.skip("there is one")
    with pytest.raises(EnergyUnavailable, match=f"^{NAME}: energy cannot be measured here"):
        measured_energy(model, Target.parse(THERE))


def test_energy_that_the_device_measures_arrives(
    device: AddedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = EnergyReading(2.5, 5.0, 800, 2.0, "INA3221 VDD_IN", {"onnxruntime": "1.20"})

    def attempt(queue: JobQueue, entry: Any, job: MeasuringJob, *others: Any) -> JobState:
        assert job.quantity == "energy"
        return JobState("done", readings={name: told.to_json() for name in job.subjects})

    monkeypatch.setattr(JobQueue, "_attempt", attempt)
    assert measured_energy(model, Target.parse(THERE)) == told


def test_device_that_measures_latency_only_refuses_the_rest(
    agent: Running, device: AddedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As agents of earlier versions and browsers do."""
    monkeypatch.setattr(Api, "quantities", ("latency",))
    target = Target.parse(THERE)
    with pytest.raises(DeviceError, match="pi5 measures latency, not peak_memory; start the agent"):
        peak_memory(model, target)
    with pytest.raises(EnergyUnavailable, match="not energy"):
        measured_energy(model, target)
    job = MeasuringJob(
        {"one": MeasuringRequest("0f" * 32, HERE)}, TimingSettings(), "cold_start"
    ).to_json()
    with connected(device) as client, pytest.raises(ConfigError, match="not cold_start"):
        client._expect(200, "PUT", f"jobs/{'0f' * 16}", json.dumps(job).encode())


def test_kernels_are_not_profiled_on_the_device(device: AddedDevice, model: Path) -> None:
    with pytest.raises(DeviceError, match="is not this machine"):
        profile_kernels(model, Target.parse(THERE))


def test_add_device_refuses_missing_or_unknown_hardware(agent: Running) -> None:
    if gpu_name():
        pytest.skip("there is one")
    with pytest.raises(DeviceError, match="has no runtime for cuda: this onnxruntime has no"):
        add_device("jetson", agent.address, agent.token, hardware="cuda")
    with pytest.raises(ConfigError, match=r"unknown hardware 'tpu'; .*known: browser, cpu, cuda"):
        add_device("jetson", agent.address, agent.token, hardware="tpu")
    assert not is_added("jetson")


def test_target_accepts_the_names_of_added_devices(device: AddedDevice) -> None:
    assert Target.parse(THERE).name == THERE
    known = rf"known: browser, cpu, cuda, {NAME}; the closest target is '{NAME}-"
    with pytest.raises(ConfigError, match=known):
        Target.parse("pi4-onnxruntime-fp32-b1-t1")


def test_devices_report_whether_an_agent_answers(device: AddedDevice) -> None:
    found = {each.target: each for each in devices()}
    assert found[f"{NAME}-onnxruntime-fp32-b{{B}}-t{{T}}"].usable
    assert "load_1min" in found[f"{NAME}-onnxruntime-fp32-b{{B}}-t{{T}}"].details
    write_added(replace(device, address="https://127.0.0.1:9"))
    gone = {each.target: each for each in devices()}[f"{NAME}-onnxruntime-fp32-b{{B}}-t{{T}}"]
    assert not gone.usable
    assert "does not answer" in gone.reason


def test_devices_name_a_damaged_device_beside_the_others(device: AddedDevice, home: Path) -> None:
    path = home / "agents" / "broken.json"
    path.touch(mode=0o600)
    path.write_text("{}")
    found = {each.target: each for each in devices()}
    assert not found["broken"].usable
    assert "broken.json is damaged" in found["broken"].reason
    assert found[f"{NAME}-onnxruntime-fp32-b{{B}}-t{{T}}"].usable


# Adding


def test_added_device_file_is_readable_only_by_its_owner(device: AddedDevice, home: Path) -> None:
    assert added_names() == [NAME]
    assert read_added(NAME) == device
    path = home / "agents" / f"{NAME}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=rf"other users can access it .*chmod 600 {path}"):
        read_added(NAME)


def test_read_added_names_a_damaged_file(device: AddedDevice, home: Path) -> None:
    path = home / "agents" / f"{NAME}.json"
    whole = json.loads(path.read_text())
    for damaged in (
        "",
        "[]",
        json.dumps({**whole, "schema": 2}),
        json.dumps({**whole, "key": "x"}),
    ):
        path.write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
        with pytest.raises(ArtifactError, match=rf"{NAME}\.json is damaged"):
            read_added(NAME)


def test_add_device_refuses_wrong_tokens_names_and_addresses(agent: Running) -> None:
    with pytest.raises(DeviceError, match=r"refuses the token .*--new-token"):
        add_device(NAME, agent.address, "wrong")
    assert added_names() == []
    for name in ("", "a-b", "../x", "cpu", "onnxruntime", "x" * 41):
        with pytest.raises(ConfigError, match="name"):
            add_device(name, agent.address, agent.token)
    for address in ("http://x:1", "https://x", "x", "https://a@b:1", "https://x:1/y", "ssh://-x"):
        with pytest.raises(ConfigError, match="the agent's address is"):
            add_device(NAME, address, agent.token, "hwnas agent")


def test_add_device_refuses_a_name_of_another_machine(agent: Running, device: AddedDevice) -> None:
    assert add_device(NAME, agent.address, agent.token).certificate == device.certificate
    with pytest.raises(ConfigError, match=rf"hwnas devices remove {NAME}"):
        add_device(NAME, "https://127.0.0.1:9", agent.token)


def test_add_device_reports_that_no_agent_answers(unused_address: str) -> None:
    with pytest.raises(DeviceError, match=f"no agent answers at {unused_address}"):
        add_device(NAME, unused_address, "token")


@pytest.fixture
def unused_address() -> Iterator[str]:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"https://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.slow
def test_client_refuses_a_changed_certificate_until_it_is_added_again(
    agent: Running, device: AddedDevice, model: Path
) -> None:
    write_added(replace(device, certificate="0f" * 32))
    with pytest.raises(
        DeviceError, match=rf"changed: .*devices add {NAME} --agent {agent.address}"
    ):
        measure({"network": model}, Target.parse(THERE), QUICK)
    add_device(NAME, agent.address, agent.token)
    assert measure({"network": model}, Target.parse(THERE), QUICK)["network"].latency_ms > 0


def test_client_refuses_a_man_in_the_middle_without_the_token(
    agent: Running, tmp_path: Path
) -> None:
    """The man in the middle has its own certificate, so the request's signature does not match."""
    options = AgentOptions(port=0, folder=tmp_path / "other")
    with opened_door(options, lambda line: None) as other:
        other.key = agent.server.key
        other.fingerprint = agent.server.fingerprint  # as the real agent checks and signs
        with pytest.raises(DeviceError, match="refuses the token"):
            add_device(NAME, f"https://127.0.0.1:{other.server_port}", agent.token)


def test_client_refuses_an_agent_that_does_not_prove_the_token(
    agent: Running, device: AddedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.deploy.agent.server import server

    monkeypatch.setattr(server, "reply_signature", lambda *_: "0f" * 32)
    with pytest.raises(DeviceError, match="does not prove that it knows the token"):
        ask(device)


@pytest.mark.slow
def test_client_refuses_another_machine_at_the_same_address(
    device: AddedDevice, model: Path
) -> None:
    write_added(replace(device, processor="a Raspberry Pi"))
    with pytest.raises(
        DeviceError, match=rf"had the processor 'a Raspberry Pi' when .* now has .* remove {NAME}"
    ):
        measure({"network": model}, Target.parse(THERE), QUICK)


# The agent's own files


@pytest.mark.slow
def test_agent_refuses_files_that_other_users_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    told: list[str] = []
    with opened_door(AgentOptions(port=0, folder=folder), told.append):
        pass
    assert sum(line.startswith("token") for line in told) == 1
    for name in ("key", "certificate.pem"):
        (folder / name).chmod(0o644)
        with (
            pytest.raises(ConfigError, match=rf"chmod 600 {folder / name}"),
            opened_door(AgentOptions(port=0, folder=folder), told.append),
        ):
            pass
        (folder / name).chmod(0o600)
    with opened_door(AgentOptions(port=0, folder=folder), told.append):
        pass
    assert sum(line.startswith("token") for line in told) == 1, "shown once"
    (folder / "key").write_text("half")
    with (
        pytest.raises(ConfigError, match=r"key is damaged; .* --new-token"),
        opened_door(AgentOptions(port=0, folder=folder), told.append),
    ):
        pass
    with opened_door(AgentOptions(port=0, folder=folder, new_token=True), told.append):
        pass
    assert sum(line.startswith("token") for line in told) == 2


def test_agent_refuses_a_folder_or_port_that_is_in_use(agent: Running, tmp_path: Path) -> None:
    with (
        pytest.raises(DeviceError, match="another agent uses"),
        opened_door(AgentOptions(port=0, folder=agent.folder), lambda line: None),
    ):
        pass
    port = agent.server.server_port
    with (
        pytest.raises(DeviceError, match=f"cannot listen on 127.0.0.1 port {port}"),
        opened_door(AgentOptions(port=port, folder=tmp_path / "a"), lambda line: None),
    ):
        pass


def test_client_reports_a_full_disk_of_the_agent(
    agent: Running, device: AddedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.deploy.agent.server import job_queue

    def full(path: Path, value: Any) -> None:
        raise StorageError(f"cannot write {path}: No space left on device. Free some space")

    monkeypatch.setattr(job_queue, "write_json", full)
    with pytest.raises(StorageError, match=rf"^{NAME}: .*No space left on device"):
        measure({"network": model}, Target.parse(THERE), QUICK)
    monkeypatch.undo()


# Interruptions


def test_client_reports_a_device_that_no_longer_answers(device: AddedDevice, model: Path) -> None:
    write_added(replace(device, address="https://127.0.0.1:9", patience_s=0.5))
    with pytest.raises(DeviceError, match=rf"{NAME} at .* does not answer for 0\.5 s"):
        measure({"network": model}, Target.parse(THERE), QUICK)


@pytest.mark.slow
def test_agent_continues_its_jobs_after_it_was_killed(outside: Outside, model: Path) -> None:
    add_device(NAME, outside.address, outside.token, patience_s=60.0)
    found: list[Any] = []

    def work() -> None:
        names = [f"{NAME}-onnxruntime-fp32-b{batch}-t1" for batch in (1, 2, 3, 4)]
        subjects = {name: TimedNetwork(model, Target.parse(name)) for name in names}
        found.append(measure_together(subjects, replace(QUICK, rounds=100, round_ms=3.0)))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(2):
        wait_for_a_job(outside.folder / "work")
        outside.kill()
        outside.start()
    thread.join(60)
    assert [measured.n for measured in found[0].values()] == [100] * 4
    assert not list((outside.folder / "jobs").iterdir())


def wait_for_a_job(work: Path) -> None:
    until = time.monotonic() + 30
    while not list(work.glob("*/job.json")):
        assert time.monotonic() < until
        time.sleep(0.02)
    time.sleep(0.3)


@pytest.mark.slow
def test_client_sends_a_job_again_that_the_agent_lost(
    agent: Running, device: AddedDevice, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, forgotten = agent.server.api.queue, []
    state_of = type(queue).state

    def forget_once(self: Any, id_: str, wait_s: float = 0.0) -> JobState | None:
        if wait_s and not forgotten:
            forgotten.append(id_)
            self.drop(id_)
        return state_of(self, id_, wait_s)

    monkeypatch.setattr(type(queue), "state", forget_once)
    assert measure({"network": model}, Target.parse(THERE), QUICK)["network"].n == 5
    assert forgotten
