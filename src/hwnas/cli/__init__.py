"""The command line: each command reads its arguments, calls one function and prints."""

from hwnas.cli import agent, bench, devices, fronts, networks, runs
from hwnas.cli.app import app, main

__all__ = ["agent", "app", "bench", "devices", "fronts", "main", "networks", "runs"]
