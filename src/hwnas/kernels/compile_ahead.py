"""Ahead-of-time compilation of many kernels in a child process.

The child process does not interpret kernels, even if this process does. If the compiler itself
crashes or hangs, only one answer is lost, not all of them. As
``python -m hwnas.kernels.compile_ahead``, this module reads one request a line and writes one
answer a line, both in JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import IO, Any

import torch

from hwnas.errors import DeviceError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.operator import Config, Inputs, Operator, Sizes, dtype_name
from hwnas.kernels.resources import Resources, compile_ahead
from hwnas.plugin import resolve

__all__ = ["CompileRequest", "Compiled", "compile_in_child"]

Compiled = tuple[Resources, ...] | str  # for each kernel, or the reason of a failure


@dataclass(frozen=True)
class CompileRequest:
    """Request to compile an operator with a configuration.

    Attributes:
        operator: Name among operators and chains, or ``"package.module:object"``.
        sizes: Sizes of the inputs.
        dtype: Type of the first input.
        config: Configuration of the operator.
        gpu: GPU to compile for.
    """

    operator: str
    sizes: Sizes
    dtype: torch.dtype
    config: Config
    gpu: Accelerator

    def to_json(self) -> dict[str, Any]:
        """Return the request as a JSON object."""
        return asdict(self) | {"dtype": dtype_name(self.dtype)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompileRequest:
        """Restore the request from an object of `to_json`."""
        dtype, gpu = getattr(torch, data["dtype"]), Accelerator(**data["gpu"])
        return cls(**{**data, "dtype": dtype, "gpu": gpu})


def compile_in_child(requests: Sequence[CompileRequest], seconds: float = 60.0) -> list[Compiled]:
    """Compile operators in a child process, one after the other.

    Args:
        requests: Requests. Those that differ in the configuration only are best placed side by
            side, since they share their inputs.
        seconds: Time limit of one request, without the start of the process.

    Returns:
        For each request the resource usage of its kernels, or a text that says why they cannot be
        compiled.

    Raises:
        DeviceError: The process cannot be started.
    """
    answers: list[Compiled] = []
    while len(answers) < len(requests):
        with tempfile.TemporaryFile("w+") as stderr:
            child = _started(requests[len(answers) :], stderr)
            answers += _answers(child, seconds)
            if len(answers) < len(requests):
                answers.append(_end(child, stderr, seconds))
    return answers


def _started(requests: Sequence[CompileRequest], stderr: IO[str]) -> subprocess.Popen[str]:
    """Start the child process, which reads all requests from a file."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryFile("w+") as lines:
        lines.writelines(json.dumps(request.to_json()) + "\n" for request in requests)
        lines.seek(0)
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=lines,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
        )


def _answers(child: subprocess.Popen[str], seconds: float) -> Iterator[Compiled]:
    """Yield answers until the process ends; kill it when an answer takes too long."""
    assert child.stdout
    starting = 60.0
    with child, child.stdout:
        while True:
            watch = threading.Timer(starting + seconds, child.kill)
            watch.start()
            line = child.stdout.readline()
            watch.cancel()
            if not line.endswith("\n"):
                return
            starting = 0.0
            answer = json.loads(line)
            yield answer if isinstance(answer, str) else tuple(Resources(**row) for row in answer)


def _end(child: subprocess.Popen[str], stderr: IO[str], seconds: float) -> str:
    """Return why a process ended before it had answered all requests."""
    if child.returncode >= 0:  # errors are answers, so it did not reach its requests
        stderr.seek(0)
        last = stderr.read().strip().splitlines()[-1:]
        raise DeviceError(f"the process that compiles kernels failed: {''.join(last)}")
    return f"the compiler took more than {seconds:g} s or crashed (signal {-child.returncode})"


def _answer(request: CompileRequest) -> Compiled:
    try:
        operator, inputs = _example(request.operator, tuple(request.sizes.items()), request.dtype)
        launches = operator.launches(inputs, operator.outputs(inputs), request.config)
        return tuple(compile_ahead(launch, request.gpu) for launch in launches)
    except Exception as error:  # operators and configurations may be the user's own
        name = "" if isinstance(error, DeviceError) else f"{type(error).__name__}: "
        return " ".join(f"{name}{error}".split())


@lru_cache(maxsize=1)
def _example(
    name: str, sizes: tuple[tuple[str, int], ...], dtype: torch.dtype
) -> tuple[Operator, Inputs]:
    from hwnas.kernels.codegen.chains import CHAINS
    from hwnas.kernels.operators.registry import OPERATORS

    operator = resolve("operator", name, {**OPERATORS, **CHAINS})
    generator = torch.Generator().manual_seed(0)
    return operator, operator.example(dict(sizes), dtype, generator, torch.device("cpu"))


def _main() -> None:
    """Answer all requests; what libraries print in the meantime goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answer = _answer(CompileRequest.from_json(json.loads(line)))
        rows = answer if isinstance(answer, str) else [asdict(part) for part in answer]
        print(json.dumps(rows), file=answers, flush=True)


if __name__ == "__main__":
    _main()
