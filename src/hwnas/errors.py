"""Everything hwnas raises on purpose.

::

    HwnasError
    ├── ConfigError      (ValueError)    a recipe, an option or a name is wrong
    ├── DataError        (ValueError)    images or labels are missing, damaged or of the wrong shape
    │   └── DamagedImage                 one image file cannot be decoded; others may be fine
    ├── ArtifactError    (ValueError)    an ONNX file, a bundle or a checkpoint is damaged
    │   ├── KernelError                  an operator does not take its inputs, or a kernel is wrong
    │   ├── NonFiniteOutput              a network outputs NaN or infinity
    │   └── UnsupportedOperator          a runtime cannot run some part of a network
    ├── InfeasibleError  (ValueError)    no candidate keeps the limits
    ├── DeviceError      (RuntimeError)  a target cannot be used on this machine, or memory ran out
    │   └── EnergyUnavailable            nothing on this machine counts energy
    ├── DivergedError    (RuntimeError)  the training loss is not a number
    ├── RunError         (RuntimeError)  a run folder is damaged, busy or of another recipe
    ├── WorkerError      (RuntimeError)  workers are lost for good, or fail at all they are given
    └── StorageError     (OSError)       a file cannot be written: disk full, no permission

A message says what was given, what was expected and what to do about it, on one line. The command
line prints it and exits with status 2; no user should ever see a traceback for one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ArtifactError",
    "ConfigError",
    "DamagedImage",
    "DataError",
    "DeviceError",
    "DivergedError",
    "EnergyUnavailable",
    "HwnasError",
    "InfeasibleError",
    "KernelError",
    "NonFiniteOutput",
    "RunError",
    "StorageError",
    "UnsupportedOperator",
    "WorkerError",
]


class HwnasError(Exception):
    """Base of every error that hwnas raises on purpose."""


class ConfigError(HwnasError, ValueError):
    """A recipe, an option or a name is wrong."""


class DataError(HwnasError, ValueError):
    """Images or labels are missing, damaged or of the wrong shape."""


class DamagedImage(DataError):
    """One image file cannot be decoded; others may be fine.

    Attributes:
        reason: What is wrong with it, in a few words.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class ArtifactError(HwnasError, ValueError):
    """An ONNX file, a bundle or a checkpoint is damaged."""


class KernelError(ArtifactError):
    """An operator does not take its inputs, or a kernel gives wrong results."""


class NonFiniteOutput(ArtifactError):
    """A network outputs NaN or infinity, so it has no score."""


class UnsupportedOperator(ArtifactError):
    """A runtime cannot run some operators of an ONNX file.

    Attributes:
        operators: Names of such operators, each with the block of the network that it comes from,
            which is empty where the file does not tell.
    """

    def __init__(self, message: str, operators: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.operators = tuple(operators)

    def __reduce__(self) -> tuple[type[UnsupportedOperator], tuple[str, Any]]:
        return UnsupportedOperator, (str(self), self.operators)


class InfeasibleError(HwnasError, ValueError):
    """No candidate keeps the limits of the objectives."""


class DeviceError(HwnasError, RuntimeError):
    """A target cannot be used on this machine, or its memory does not suffice."""


class EnergyUnavailable(DeviceError):
    """Nothing on this machine counts energy, and none is made up."""


class DivergedError(HwnasError, RuntimeError):
    """The training loss is not a number.

    Attributes:
        step: The training step, counted from 0, whose loss was not finite.
        learning_rate: The learning rate of that step.
    """

    def __init__(self, step: int, learning_rate: float) -> None:
        super().__init__(
            f"the training loss is not a number at step {step} "
            f"(learning rate {learning_rate:.3g}); the last good checkpoint is kept. "
            "Lower train.learning_rate and search again in a new run folder"
        )
        self.step = step
        self.learning_rate = learning_rate

    def __reduce__(self) -> tuple[type[DivergedError], tuple[int, float]]:
        return DivergedError, (self.step, self.learning_rate)


class RunError(HwnasError, RuntimeError):
    """A run folder is damaged, in use or of another recipe."""


class WorkerError(HwnasError, RuntimeError):
    """Workers were lost and cannot be replaced, or fail at everything that they are given."""


class StorageError(HwnasError, OSError):
    """A file cannot be written."""
