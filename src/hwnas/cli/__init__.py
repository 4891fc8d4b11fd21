"""The command line: each command reads its arguments, calls one function and prints."""

from hwnas.cli import bench, cascades, devices, fronts, networks, runs
from hwnas.cli.app import app, main

__all__ = ["app", "bench", "cascades", "devices", "fronts", "main", "networks", "runs"]
