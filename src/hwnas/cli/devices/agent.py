"""Commands for remote devices: the agent on a device, and the host's list of added devices."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hwnas.cli.app import DEVICES, Json, app, out, print_json
from hwnas.cli.devices.measure import devices_app
from hwnas.errors import ConfigError

agent = typer.Typer(help="Measure networks on this machine for other hosts.", no_args_is_help=True)
app.add_typer(agent, name="agent", rich_help_panel=DEVICES)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the device, the hardware part of its targets")
]


@agent.command()
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all addresses")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port")] = 8765,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of the key, models and jobs; $HWNAS_HOME/agent if not given"),
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Replace the token by a new one")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Time limit for each network, in seconds")] = 120.0,
    memory_mb: Annotated[
        int | None,
        typer.Option(help="Memory limit of a job, in MB; half of the memory if not given"),
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Answer on standard input and output, for ssh")
    ] = False,
) -> None:
    """Serve hosts that know the token: time their networks on this machine."""
    from hwnas.deploy.agent.command import run_until_told
    from hwnas.deploy.agent.server.serve import AgentOptions

    run_until_told(AgentOptions(host, port, folder, new_token, seconds, memory_mb), stdio)


@agent.command()
def web(
    host: Annotated[
        str, typer.Option(help="Address to listen on for browsers; 0.0.0.0 for all addresses")
    ] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port of the page; 0 for any free port")] = 8766,
    host_port: Annotated[
        int, typer.Option(help="Port for `hwnas devices add --web`; 0 for any free port")
    ] = 8767,
    http: Annotated[
        bool, typer.Option("--http", help="Serve the page without encryption, on 127.0.0.1 only")
    ] = False,
    open_to_hosts: Annotated[
        bool, typer.Option("--open-to-hosts", help="Let hosts on other machines connect, too")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder of keys, models and jobs; $HWNAS_HOME/web-agent if not given"),
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Replace the token by a new one")
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="Time limit for each step of the page, in seconds")
    ] = 120.0,
    runtime_files: Annotated[
        Path | None,
        typer.Option(help="Unpacked npm package onnxruntime-web; fetched by npm if not given"),
    ] = None,
) -> None:
    """Serve a page that makes the browser which opens it a device: a phone, tablet or laptop."""
    from hwnas.deploy.agent.command import until_told
    from hwnas.deploy.agent.web.serve import WebOptions, serve

    options = WebOptions(
        host, port, host_port, http, open_to_hosts, folder, new_token, seconds, runtime_files
    )
    until_told(lambda tell, stop: serve(options, tell, stop))


@agent.command()
def pack(
    file: Annotated[Path, typer.Option("--out", help="File to write, e.g. agent.pyz")],
) -> None:
    """Write the agent as one file for a machine without hwnas."""
    from hwnas.deploy.agent.pack import write_pack

    write_pack(file)
    out.print(f"{file}: copy it to the device, which needs Python 3.11 or newer, and run there:")
    out.print("  pip install numpy onnx onnxruntime cryptography")
    out.print(f"  python {file.name} serve --host 0.0.0.0", markup=False)


@devices_app.command()
def add(
    name: Name,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the agent: https://host:port, ssh://user@host, or adb://SERIAL",
        ),
    ] = None,
    web: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of `hwnas agent web`, where a browser was paired under this name",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the agent's token; prompted for if not given")
    ] = None,
    command: Annotated[
        str,
        typer.Option(
            help="With ssh: command that starts the agent, e.g. 'python agent.pyz'; with adb: path "
            "of the benchmark program on the device"
        ),
    ] = "hwnas agent",
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for an agent that does not answer")
    ] = 300.0,
    hardware: Annotated[
        str, typer.Option(help="Hardware of the machine: cpu, or cuda for its GPU")
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Add a machine with an agent, or a paired browser, as a device of this host."""
    from hwnas.deploy.agent.client.pairing import add_device
    from hwnas.deploy.agent.client.transport import WITHOUT_TOKEN
    from hwnas.deploy.targets.target import BROWSER

    if (agent is None) == (web is None):
        raise ConfigError("give either --agent, for a machine, or --web, for a browser")
    address = agent or f"{str(web).rstrip('/')}/{name}"
    given = "" if address.startswith(WITHOUT_TOKEN) else _token(token_file)
    place = hardware if web is None else BROWSER
    device = add_device(name, address, given, command, patience, place)
    if as_json:
        print_json({k: v for k, v in asdict(device).items() if k != "key"})
        return
    out.print(f"{name}: {device.processor} at {device.address}", soft_wrap=True, markup=False)
    for kind in device.kinds:
        out.print(f"    {name}-{kind}-b{{B}}-t{{T}}", markup=False)
    out.print(f"next: hwnas measure model.onnx --target {name}-{device.kinds[0]}-b1-t1")


@devices_app.command()
def remove(name: Name) -> None:
    """Remove a machine with an agent; its measurements are kept."""
    from hwnas.deploy.agent.client.added_devices import remove_added

    remove_added(name)
    out.print(f"{name} is removed")


def _token(file: Path | None) -> str:
    """Return the token from a private file, from a prompt, or from a pipe."""
    from hwnas.deploy.agent.private_file import read_private

    if file is not None:
        token = read_private(file).strip()
    elif sys.stdin.isatty():
        token = typer.prompt("token of the agent", hide_input=True).strip()
    else:
        token = sys.stdin.readline().strip()
    if not token:
        raise ConfigError("the token is empty; `hwnas agent serve` prints it when it creates one")
    return str(token)
