"""The command line: each command reads its arguments, calls one function and prints."""

from hwnas.cli import bench, devices, fronts, networks, runs, serving
from hwnas.cli.app import app, main

__all__ = ["app", "bench", "devices", "fronts", "main", "networks", "runs", "serving"]
