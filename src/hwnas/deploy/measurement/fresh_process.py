"""Measurements in a process of their own, which ends with one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hwnas.errors import ArtifactError, DeviceError, HwnasError

__all__ = ["answer_of_process", "print_answer"]

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


def print_answer(measure: Callable[[], Mapping[str, Any]]) -> None:
    """Print what a function measures as JSON; print an error and exit if the input is wrong."""
    try:
        print(json.dumps(dict(measure())))
    except HwnasError as error:
        print(error, file=sys.stderr)
        sys.exit(_BAD_INPUT)
