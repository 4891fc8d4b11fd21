"""Command line of the agent where hwnas is not installed: ``python agent.pyz``."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hwnas.deploy.agent.server.serve import HOST, PORT, AgentOptions, serve
from hwnas.deploy.agent.stdio import serve_stdio
from hwnas.errors import HwnasError

__all__ = ["main", "run_until_told", "until_told"]


def run_until_told(options: AgentOptions, stdio: bool) -> None:
    """Run an agent until the process receives Ctrl-C or SIGTERM.

    Args:
        options: Options of the agent.
        stdio: Whether to answer one host on standard input and output instead of listening on a
            port; the agent then ends when the host disconnects.
    """
    if stdio:
        serve_stdio(options)
        return
    until_told(lambda tell, stop: serve(options, tell, stop))


def until_told(work: Callable[[Callable[[str], None], threading.Event], None]) -> None:
    """Do some work until the process receives Ctrl-C or SIGTERM.

    Args:
        work: Function of a function that shows a line, and of an event that ends the work.
    """
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    work(lambda line: print(line, flush=True), stop)


def main() -> None:
    """Run the command line; print each `HwnasError` as one line and exit with status 2."""
    parser = argparse.ArgumentParser(
        "agent.pyz", description="Measures networks on this machine for other hosts."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("serve", help="answer hosts that know the token")
    command.add_argument(
        "--host", default=HOST, help="address to listen on; 0.0.0.0 for all addresses"
    )
    command.add_argument("--port", type=int, default=PORT, help="port to listen on")
    command.add_argument("--folder", type=Path, help="folder of the key, models and jobs")
    command.add_argument("--new-token", action="store_true", help="replace the token by a new one")
    command.add_argument(
        "--seconds",
        type=float,
        default=AgentOptions.seconds,
        help="time limit for each network, in seconds",
    )
    command.add_argument("--memory-mb", type=int, help="memory limit of a job, in MB")
    command.add_argument(
        "--stdio", action="store_true", help="answer on standard input and output, for ssh"
    )
    options = vars(parser.parse_args())
    stdio = options.pop("stdio")
    try:
        run_until_told(AgentOptions(**options), stdio)
    except HwnasError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
