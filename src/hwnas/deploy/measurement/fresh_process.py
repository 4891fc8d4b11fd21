"""Measurements in a process of their own, which ends with one line of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hwnas.atomic import storage_errors
from hwnas.deploy.measurement.reference_model import write_reference_model
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.runtimes.registry import prepared
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError, DeviceError, HwnasError

__all__ = ["answer_of_process", "prepared_arguments", "print_answer", "reference_target"]

_BAD_INPUT = 2  # exit status of a process that has printed an error


def answer_of_process(
    module: str, arguments: Sequence[str], what: str, timeout_s: float
) -> dict[str, Any]:
    """Start a module as a program, and return the object that its `print_answer` printed.

    Args:
        module: Name of the module.
        arguments: Arguments of the program.
        what: What the program runs, for messages, such as ``"net.onnx on TARGET"``.
        timeout_s: Time limit in seconds.

    Raises:
        ArtifactError: The program has refused its input.
        DeviceError: The program was killed, or took too long.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"the process that ran {what} did not end within {timeout_s:g} s; increase timeout_s"
        ) from error
    lines = done.stderr.strip().splitlines() or [""]
    if done.returncode == _BAD_INPUT:
        raise ArtifactError(lines[-1])
    if done.returncode:
        raise DeviceError(
            f"the process that ran {what} ended with status {done.returncode}, perhaps for lack of "
            f"memory: {lines[-1]}"
        )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def prepared_arguments(model: Path, target: Target, folder: Path) -> list[str]:
    """Prepare a file and the reference model, so that no process that measures converts them.

    Args:
        model: ONNX file.
        target: Target on which it runs.
        folder: Folder for what is made.

    Returns:
        The prepared file, the prepared reference model and the name of the target.

    Raises:
        ArtifactError: The file is missing, damaged or cannot run on the target.
    """
    if not model.is_file():
        raise ArtifactError(f"there is no ONNX file {model}; give the path of an existing one")
    reference = folder / "reference.onnx"
    with storage_errors(reference):
        write_reference_model(reference)
    runtime = RUNTIMES[target.device.runtime]
    executable = prepared(model, target, folder)
    tiny = runtime.prepare(reference, reference_target(target), folder)
    return [os.fspath(executable), os.fspath(tiny), target.name]


def reference_target(target: Target) -> Target:
    """Return the target of the reference model, one image in single precision."""
    return Target(replace(target.device, batch=1))


def print_answer(measure: Callable[[], Mapping[str, Any]]) -> None:
    """Print what a function measures as JSON; print an error and exit if the input is wrong."""
    try:
        print(json.dumps(dict(measure())))
    except HwnasError as error:
        print(error, file=sys.stderr)
        sys.exit(_BAD_INPUT)
