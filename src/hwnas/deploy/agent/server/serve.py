"""Life cycle of an agent: its folder, token and HTTPS server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import hwnas
from hwnas.deploy.agent.pack import packed_code
from hwnas.deploy.agent.private_file import private_folder, read_private, write_private
from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.deploy.agent.server.api import Api
from hwnas.deploy.agent.server.certificate import own_certificate
from hwnas.deploy.agent.server.guarded import bound, running
from hwnas.deploy.agent.server.server import AgentServer
from hwnas.deploy.agent.signing import is_digest, key_of, new_secret
from hwnas.errors import ConfigError, DeviceError
from hwnas.home import home

__all__ = [
    "HOST",
    "PORT",
    "AgentOptions",
    "check_ports_and_seconds",
    "folder_of_its_own",
    "opened_door",
    "own_key",
    "serve",
]

HOST, PORT = "127.0.0.1", 8765
_LOCK, _KEY, _CERTIFICATE = "lock", "key", "certificate.pem"
_MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class AgentOptions:
    """Options of an agent.

    Attributes:
        host: Address to listen on; ``"0.0.0.0"`` stands for all addresses of the machine.
        port: Port to listen on; 0 is any free port.
        folder: Folder of the agent's key, models and jobs; ``$HWNAS_HOME/agent`` if None.
        new_token: Whether to create a token that replaces the older one.
        seconds: Seconds allowed for each network of a job.
        memory_mb: Memory in MB of the process that measures; half of the machine's if None.
    """

    host: str = HOST
    port: int = PORT
    folder: Path | None = None
    new_token: bool = False
    seconds: float = AgentLimits.network_s
    memory_mb: int | None = None

    def __post_init__(self) -> None:
        check_ports_and_seconds({"--port": self.port}, self.seconds)
        if self.memory_mb is not None and self.memory_mb < 200:
            raise ConfigError(f"--memory-mb is {self.memory_mb}; expected at least 200")

    @property
    def limits(self) -> AgentLimits:
        """Limits on what the agent accepts."""
        if self.memory_mb is not None:
            memory_bytes = self.memory_mb * 2**20
        else:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            memory_bytes = int(_MEMORY_SHARE * total)
        return replace(AgentLimits(), network_s=self.seconds, memory_bytes=memory_bytes)

    @property
    def place(self) -> Path:
        """Folder of the agent."""
        return home() / "agent" if self.folder is None else self.folder


def check_ports_and_seconds(ports: Mapping[str, int], seconds: float) -> None:
    """Check ports, given by the name of their option, and a time limit.

    Raises:
        ConfigError: One of them is out of range.
    """
    for name, port in ports.items():
        if not 0 <= port < 2**16:
            raise ConfigError(f"{name} is {port}; expected 0 to 65535")
    if not 1 <= seconds <= 86_400:
        raise ConfigError(f"--seconds is {seconds:g}; expected 1 to 86400")


@contextlib.contextmanager
def folder_of_its_own(folder: Path, wait_s: float = 0.0) -> Iterator[None]:
    """Lock an agent's folder, so that no two agents measure on one machine at a time.

    Raises:
        DeviceError: Another agent holds the lock for longer than ``wait_s`` seconds.
    """
    private_folder(folder)
    until = time.monotonic() + wait_s
    with (folder / _LOCK).open("wb") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise DeviceError(
                        f"another agent uses {folder}; stop it, or give another --folder"
                    ) from error
                time.sleep(0.1)
        yield


@contextlib.contextmanager
def opened_door(options: AgentOptions, tell: Callable[[str], None]) -> Iterator[AgentServer]:
    """Yield the server of an agent that answers and does its jobs until the context ends.

    Args:
        options: Options of the agent.
        tell: Function called with each line to show to the user who starts the agent.

    Raises:
        ConfigError: A file of the agent can be read by others or is damaged.
        DeviceError: Another agent holds the folder, or the port is not available.
    """
    folder = options.place
    with folder_of_its_own(folder):
        certificate = own_certificate(folder / _CERTIFICATE)
        key = own_key(
            folder / _KEY,
            options.new_token,
            tell,
            "hwnas devices add NAME --agent https://HOST:PORT",
        )
        api = Api.of(folder, packed_code(folder), options.limits)
        server = bound(
            lambda place: AgentServer(place, api, key, certificate),
            options.host,
            options.port,
            "--port or --host",
        )
        port = server.server_address[1]
        tell(f"agent of hwnas {hwnas.__version__} on https://{options.host}:{port}")
        tell(f"certificate SHA-256 {server.fingerprint}")
        with server, api.working(), running(server):
            yield server


def own_key(path: Path, renew: bool, tell: Callable[[str], None], command: str) -> str:
    """Return the key that requests are signed with.

    If there is none, or it is renewed, derive it from a new token, which is shown once and not
    stored.

    Args:
        path: File of the key.
        renew: Whether to replace the key.
        tell: Function that shows a line to the user.
        command: Command to which the user gives the token.

    Raises:
        ConfigError: The file can be read by others, or is damaged.
        StorageError: The file cannot be written.
    """
    if path.exists() and not renew:
        key = read_private(path).strip()
        if not is_digest(key):
            raise ConfigError(f"{path} is damaged; start the agent with --new-token")
        return key
    token = new_secret()
    write_private(path, key_of(token) + "\n")
    tell(f"token, shown only once: {token}")
    tell(f"on the host, run: {command}")
    return key_of(token)


def serve(options: AgentOptions, tell: Callable[[str], None], stop: threading.Event) -> None:
    """Run an agent until ``stop`` is set."""
    with opened_door(options, tell):
        if options.host == HOST:
            tell("only this machine can reach the agent; --host 0.0.0.0 allows others")
        stop.wait()
