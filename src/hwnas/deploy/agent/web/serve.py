"""Life cycle of a web agent: the page for browsers, and the server for hosts."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import hwnas
from hwnas.deploy.agent.protocol import AgentLimits
from hwnas.deploy.agent.server.certificate import own_certificate
from hwnas.deploy.agent.server.guarded import bound, running
from hwnas.deploy.agent.server.serve import check_ports_and_seconds, folder_of_its_own, own_key
from hwnas.deploy.agent.server.server import AgentServer
from hwnas.deploy.agent.web.browser import Browsers
from hwnas.deploy.agent.web.host_api import HostApi
from hwnas.deploy.agent.web.page_server import PageServer, PairingCode
from hwnas.deploy.runtimes.ort_web_files import runtime_files
from hwnas.errors import ConfigError
from hwnas.home import home

__all__ = ["PAGE_PORT", "WebAgent", "WebOptions", "opened", "serve"]

PAGE_PORT, HOST_PORT = 8766, 8767
_KEY, _CERTIFICATE = "key", "certificate.pem"


@dataclass(frozen=True)
class WebOptions:
    """Options of a web agent.

    Attributes:
        host: Address to listen on for browsers; ``"0.0.0.0"`` stands for all of the machine.
        port: Port of the page; 0 is any free port.
        host_port: Port for hosts, on this machine only unless ``open_to_hosts``; 0 is any free one.
        http: Whether the page is served without encryption, which only this machine may use.
        open_to_hosts: Whether hosts on other machines may connect.
        folder: Folder of keys, models and jobs; ``$HWNAS_HOME/web-agent`` if None.
        new_token: Whether to create a token that replaces the older one.
        seconds: Seconds allowed for each step of the page.
        runtime_files: Folder of ONNX Runtime Web; fetched by npm if None.
    """

    host: str = "0.0.0.0"
    port: int = PAGE_PORT
    host_port: int = HOST_PORT
    http: bool = False
    open_to_hosts: bool = False
    folder: Path | None = None
    new_token: bool = False
    seconds: float = AgentLimits.network_s
    runtime_files: Path | None = None

    def __post_init__(self) -> None:
        ports = {"--port": self.port, "--host-port": self.host_port}
        check_ports_and_seconds(ports, self.seconds)
        if self.http and not _is_loopback(self.host):
            raise ConfigError(
                f"--http with --host {self.host}: without encryption only this machine may open "
                "the page; leave one of them out, or use --host 127.0.0.1"
            )

    @property
    def place(self) -> Path:
        """Folder of the agent."""
        return home() / "web-agent" if self.folder is None else self.folder


@dataclass(frozen=True)
class WebAgent:
    """Running web agent.

    Attributes:
        page: Server of the page.
        hosts: Server for hosts.
    """

    page: PageServer
    hosts: AgentServer

    @property
    def page_urls(self) -> list[str]:
        """Addresses of the page."""
        port, host = self.page.server_address[1], str(self.page.server_address[0])
        names = _addresses() if host == "0.0.0.0" else [host]
        return [f"{self.page.scheme}://{name}:{port}/" for name in names]

    @property
    def host_url(self) -> str:
        """Address for hosts on this machine."""
        return f"https://127.0.0.1:{self.hosts.server_address[1]}"


@contextlib.contextmanager
def opened(options: WebOptions, tell: Callable[[str], None]) -> Iterator[WebAgent]:
    """Yield a web agent that answers browsers and hosts until the context ends.

    Args:
        options: Options of the agent.
        tell: Function called with each line to show to the user who starts the agent.

    Raises:
        ConfigError: A file of the agent can be read by others or is damaged.
        DeviceError: Another agent holds the folder, a port is not available, or ONNX Runtime Web
            cannot be had.
    """
    files = runtime_files(options.runtime_files)
    folder = options.place
    with folder_of_its_own(folder):
        certificate = own_certificate(folder / _CERTIFICATE)
        key = own_key(folder / _KEY, options.new_token, tell, "hwnas devices add NAME --web URL")
        limits = replace(AgentLimits(), network_s=options.seconds)
        hosts = HostApi(Browsers(folder / "browsers"), limits)
        tell(f"web agent of hwnas {hwnas.__version__}, with ONNX Runtime Web {files.version}")
        code = PairingCode(lambda text: tell(f"pairing code for the next browser: {text}"))
        context = None if options.http else certificate.context()
        with contextlib.ExitStack() as stack:
            page = stack.enter_context(
                bound(lambda place: PageServer(place, hosts, files, code, context),
                       options.host, options.port, "--port")
            )  # fmt: skip
            own = options.host if options.open_to_hosts else "127.0.0.1"
            door = stack.enter_context(
                bound(lambda place: AgentServer(place, hosts, key, certificate),
                       own, options.host_port, "--host-port")
            )  # fmt: skip
            stack.enter_context(hosts.working())
            for server in (page, door):
                stack.enter_context(running(server))
            agent = WebAgent(page, door)
            tell(f"open in the browser of the device: {' or '.join(agent.page_urls)}")
            if not options.http:
                tell("the browser warns of the agent's own certificate; accept it for this page")
            tell(f"hosts add a paired browser by: hwnas devices add NAME --web {agent.host_url}")
            yield agent


def serve(options: WebOptions, tell: Callable[[str], None], stop: threading.Event) -> None:
    """Run a web agent until ``stop`` is set."""
    with opened(options, tell):
        stop.wait()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _addresses() -> list[str]:
    """Return the address of this machine in its network, if it is known, and the loopback one."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the system chooses the own address
        found.append(str(probe.getsockname()[0]))
    return list(dict.fromkeys([*found, "127.0.0.1"]))
