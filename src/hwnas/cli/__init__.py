"""The command line: each command reads its arguments, calls one function and prints."""

from hwnas.cli import (
    agent,
    bench,
    calibrate,
    cascades,
    check,
    devices,
    fronts,
    init,
    kernels,
    kernels_bench,
    kernels_suite,
    kernels_tune,
    networks,
    predict,
    runs,
    serving,
    sweep,
)
from hwnas.cli.app import app, main

__all__ = [
    "agent",
    "app",
    "bench",
    "calibrate",
    "cascades",
    "check",
    "devices",
    "fronts",
    "init",
    "kernels",
    "kernels_bench",
    "kernels_suite",
    "kernels_tune",
    "main",
    "networks",
    "predict",
    "runs",
    "serving",
    "sweep",
]
