"""Command line interface: each command reads its arguments, calls one function and prints."""

from hwnas.cli import (
    bench,
    compress,
    devices,
    export,
    fronts,
    init,
    kernels,
    networks,
    plugins,
    search,
    version,
)
from hwnas.cli.app import app, main

__all__ = [
    "app",
    "bench",
    "compress",
    "devices",
    "export",
    "fronts",
    "init",
    "kernels",
    "main",
    "networks",
    "plugins",
    "search",
    "version",
]
