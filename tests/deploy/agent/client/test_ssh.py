"""Agent that is reached through pipes, and through a real ssh server if one is installed."""

import getpass
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.agent.conftest import NAME, QUICK

from hwnas.deploy import Target, measure
from hwnas.deploy.agent.client.added_devices import AddedDevice, write_added
from hwnas.deploy.agent.client.client import AgentClient
from hwnas.deploy.agent.client.pairing import add_device
from hwnas.deploy.agent.client.ssh import StdioTransport, ssh_arguments
from hwnas.deploy.measurement.measurement import TimedNetwork
from hwnas.errors import ConfigError, DeviceError


@pytest.fixture
def piped(pack: Path, tmp_path: Path) -> Iterator[StdioTransport]:
    """Transport to an agent behind a program that prints a line first, as login shells do."""
    command = f"echo welcome; exec {sys.executable} {pack} serve --stdio --folder {tmp_path / 'a'}"
    transport = StdioTransport(["sh", "-c", command])
    yield transport
    transport.close()


@pytest.mark.slow
def test_client_measures_through_pipes_and_again_after_they_broke(
    piped: StdioTransport, model: Path
) -> None:
    device = AddedDevice(NAME, "ssh://somebody@somewhere", command="hwnas agent", patience_s=60)
    write_added(device)
    client = AgentClient(device, piped)
    target = Target.parse(f"{NAME}-onnxruntime-fp32-b1-t1")
    subjects = {"network": TimedNetwork(model, target)}
    assert client.about().jobs == 0
    assert client.measured(subjects, QUICK)["network"].target == target.name
    assert piped._process is not None
    piped._process.kill()
    assert client.measured(subjects, QUICK)["network"].n == 5


def test_transport_answers_the_next_request_after_a_refused_body(piped: StdioTransport) -> None:
    assert piped.request("PUT", "/v1/nothing", b"x" * 100_000, 60)[0] == 404
    assert piped.request("GET", "/v1/about", b"", 60)[0] == 200


@pytest.mark.slow
def test_client_reports_a_program_that_is_not_an_agent() -> None:
    device = AddedDevice(NAME, "ssh://somebody@somewhere", command="hwnas agent", patience_s=0)
    for command, told in (
        (["sh", "-c", "echo no such host >&2; exit 255"], "no such host"),
        (["yes"], "the answer is not that of an agent"),
        (["sleep", "60"], "no answer in time"),
    ):
        transport = StdioTransport(command)
        with pytest.raises(DeviceError, match=rf"{NAME} at ssh://.* does not answer \({told}"):
            AgentClient(device, transport).about(timeout_s=2)
    with pytest.raises(DeviceError, match="the program no-such-ssh was not found"):
        AgentClient(device, StdioTransport(["no-such-ssh"])).about()


def test_ssh_arguments_contain_address_port_and_command() -> None:
    found = ssh_arguments("ssh://pi@device.local:2222", "python3 'my agent.pyz'")
    assert found[0] == "ssh"
    assert found[-2:] == ["pi@device.local", "python3 'my agent.pyz' serve --stdio"]
    assert found[found.index("-p") + 1] == "2222"
    for address in ("ssh://-oProxyCommand=x", "ssh://a b", "ssh://", "ssh://x:y", "ssh://x;y"):
        with pytest.raises(ConfigError, match="the agent's address is"):
            ssh_arguments(address, "hwnas agent")
    for command in ("", "'"):
        with pytest.raises(ConfigError, match="command"):
            ssh_arguments("ssh://x", command)


@pytest.fixture
def ssh_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of an ssh server of this user, with a client that knows its keys."""
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    if not Path(sshd).exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("there is no sshd: apt-get install openssh-server")
    if getpass.getuser() == "root":
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(make, check=True)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = int(held.getsockname()[1])
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    settings = [
        f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {tmp_path / 'host'}",
        f"AuthorizedKeysFile {tmp_path / 'authorized'}", "StrictModes no", "UsePAM no",
        "PermitRootLogin yes", f"PidFile {tmp_path / 'pid'}",
    ]  # fmt: skip
    (tmp_path / "sshd_config").write_text("\n".join(settings) + "\n")
    server = subprocess.Popen([sshd, "-D", "-e", "-f", str(tmp_path / "sshd_config")])
    wrapper = tmp_path / "bin" / "ssh"  # the real ssh, with the paths of the keys
    wrapper.parent.mkdir()
    wrapper.write_text(
        f"#!/bin/sh\nexec {shutil.which('ssh')} -F none -i {tmp_path / 'user'} "
        '-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"\n'
    )
    wrapper.chmod(0o700)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:/usr/bin:/bin")
    wait_for(port)
    yield port
    server.kill()
    server.wait()


def wait_for(port: int) -> None:
    until = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.mark.slow
def test_add_device_and_measure_work_through_ssh(
    ssh_server: int, pack: Path, model: Path, tmp_path: Path
) -> None:
    address = f"ssh://{getpass.getuser()}@127.0.0.1:{ssh_server}"
    path = ":".join(sys.path)
    command = f"env PYTHONPATH={path} HWNAS_HOME={tmp_path / 'there'} {sys.executable} {pack}"
    device = add_device(NAME, address, "", command)
    assert device.kinds
    assert not device.key
    target = Target.parse(f"{NAME}-onnxruntime-fp32-b1-t1")
    assert measure({"network": model}, target, QUICK)["network"].target == target.name
    with pytest.raises(DeviceError, match="does not answer"):
        add_device("other", "ssh://127.0.0.1:9", "", command)
