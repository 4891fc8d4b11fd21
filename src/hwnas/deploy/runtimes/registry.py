"""Registry of runtimes, and opening of a session in one of them.

To add a runtime, write a module here that implements `Runtime` and has a tuple ``PLUGINS``, as in
`openvino`; no list names it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hwnas.deploy.onnx.early_exit import unconditional
from hwnas.deploy.runtimes.checks import check_usable
from hwnas.deploy.runtimes.runtime import Runtime, Session
from hwnas.deploy.targets.target import Target
from hwnas.errors import UnsupportedOperator
from hwnas.registry import Registry

__all__ = ["RUNTIMES", "SKIPPING", "open_session", "prepared", "unavailable", "unsupported"]

RUNTIMES: Registry[Runtime] = Registry("runtime", __package__)
"""Runtimes by their names in targets."""

SKIPPING = "onnxruntime", "fp32"
"""Runtime and number format that skip the part of a network after an early exit."""


def unavailable(target: Target) -> str | None:
    """Return why the runtime of a target of this machine cannot be used; None if it can."""
    return RUNTIMES[target.device.runtime].unavailable(target.device.hardware)


def open_session(model: Path, target: Target) -> Session:
    """Return a session that runs an ONNX file on a target of this machine.

    Args:
        model: ONNX file.
        target: Target to run it on.

    Raises:
        ArtifactError: The file is damaged, or the target cannot run it.
        DeviceError: The target cannot be used.
    """
    runtime = RUNTIMES[target.device.runtime]
    check_usable(runtime, target)  # first, because preparing a file can take minutes
    with tempfile.TemporaryDirectory() as folder:
        return runtime.load(prepared(model, target, Path(folder)), target)


def prepared(model: Path, target: Target, folder: Path) -> Path:
    """Return the file that a target's runtime loads, made from an ONNX file if need be.

    Only ONNX Runtime in single precision skips the part of a network after an early exit. Elsewhere
    the whole network is computed.

    Args:
        model: ONNX file.
        target: Target on which the file will run.
        folder: Folder for intermediate files.

    Raises:
        ArtifactError: The file is damaged, or cannot be converted for the target.
    """
    runtime = RUNTIMES[target.device.runtime]
    if (runtime.name, target.format) != SKIPPING:
        model = unconditional(model, folder)
    return runtime.prepare(model, target, folder)


def unsupported(model: Path, target: Target) -> list[tuple[str, str]]:
    """Return the operators of an ONNX file that a target's runtime cannot run.

    A runtime that stops at the first unknown operator names only that one.

    Args:
        model: ONNX file.
        target: Target on which to run it.

    Returns:
        Operators with the blocks that they come from, each pair once; empty if the target accepts
        the file.

    Raises:
        ArtifactError: The file cannot be loaded for another reason.
        DeviceError: The target cannot be used on this machine.
    """
    try:
        open_session(model, target)
    except UnsupportedOperator as error:
        return list(error.operators)
    return []
