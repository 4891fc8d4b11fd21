"""The command line: each command reads its arguments, calls one function and prints."""

from hwnas.cli import (
    agent,
    bench,
    cascades,
    check,
    devices,
    fronts,
    networks,
    runs,
    serving,
    sweep,
)
from hwnas.cli.app import app, main

__all__ = [
    "agent",
    "app",
    "bench",
    "cascades",
    "check",
    "devices",
    "fronts",
    "main",
    "networks",
    "runs",
    "serving",
    "sweep",
]
