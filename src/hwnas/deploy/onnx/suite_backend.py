"""ONNX Runtime as a backend of the operator suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.deploy.error_line import first_line
from hwnas.deploy.export.exporters import quiet
from hwnas.deploy.runtimes.checks import missing_package
from hwnas.errors import ArtifactError, ConfigError
from hwnas.kernels.operator import Inputs, Operator
from hwnas.kernels.suite.backends import BACKENDS, Backend
from hwnas.plugin import resolve

__all__ = ["OnnxRuntimeBackend", "backend_named"]


@dataclass(frozen=True)
class OnnxRuntimeBackend:
    """Backend that runs the formulas on the processor, exported to ONNX.

    All inputs but the first are constants of the file, as the weights of a network are.
    """

    name: str = "onnxruntime"

    def unavailable(self, device: torch.device) -> str | None:
        """Return why the backend cannot compute on a device, or None if it can."""
        missing = missing_package("onnxruntime", "onnxruntime")
        if missing is not None or device.type == "cpu":
            return missing
        return f"its inputs and outputs would be copied between {device.type!r} and the processor"

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        """Return a function that computes the operator in a session on an exported file.

        The file holds all inputs but the first.

        Raises:
            ArtifactError: The formula cannot be exported, or cannot run in these types.
        """
        x: Tensor = next(iter(inputs.values()))
        if x.dtype == torch.bfloat16:
            raise ArtifactError("ONNX Runtime takes inputs from NumPy, which has no bfloat16")
        try:
            session = _session(_Formula(operator, inputs), x)
        except Exception as error:  # errors of exporter and runtime share no other base
            raise ArtifactError(
                f"ONNX Runtime cannot compute {operator.name} in {x.dtype}: "
                f"{first_line(_origin(error))}"
            ) from error
        return lambda: _run(session, x)


def backend_named(name: str) -> Backend:
    """Return a backend of hwnas, or the object ``"package.module:object"``.

    Raises:
        ConfigError: There is no backend of this name, or the object is not a backend.
    """
    found = resolve("backend", name, {**BACKENDS, "onnxruntime": OnnxRuntimeBackend()})
    if not isinstance(found, Backend):
        raise ConfigError(
            f"backend {name!r} is {found!r}, which lacks name, unavailable or prepare; see "
            "hwnas.kernels.suite.backends.Backend"
        )
    return found


class _Formula(nn.Module):
    """Reference of an operator as a function of its first input."""

    def __init__(self, operator: Operator, inputs: Inputs) -> None:
        super().__init__()
        self._operator, self._first = operator, next(iter(inputs))
        self._options = {k: v for k, v in inputs.items() if not isinstance(v, Tensor)}
        self._held = [k for k, v in inputs.items() if isinstance(v, Tensor) and k != self._first]
        for name in self._held:
            self.register_buffer(f"held_{name}", inputs[name])

    def forward(self, x: Tensor) -> Any:
        """Return the result of the reference for x."""
        held = {name: getattr(self, f"held_{name}") for name in self._held}
        return self._operator.reference(**{self._first: x}, **held, **self._options)


def _session(formula: nn.Module, x: Tensor) -> Any:
    import onnxruntime

    with quiet():
        program = torch.onnx.export(formula.eval(), (x,), dynamo=True, verbose=False)
        assert program is not None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised as well
        options.intra_op_num_threads = torch.get_num_threads()  # as many as other backends use
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        model = program.model_proto.SerializeToString()
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _run(session: Any, x: Tensor) -> Any:
    [name] = [each.name for each in session.get_inputs()]
    outputs = tuple(map(torch.from_numpy, session.run(None, {name: x.numpy()})))
    return outputs if len(outputs) > 1 else outputs[0]


def _origin(error: BaseException) -> BaseException:
    """Return the original error, which the exporter wraps in advice to developers of exporters."""
    return error if error.__cause__ is None else _origin(error.__cause__)
