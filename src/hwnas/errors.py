"""Exceptions that hwnas raises on purpose.

::

    HwnasError
    ├── ConfigError      (ValueError)    a recipe, an option or a name is wrong
    ├── DataError        (ValueError)    images or labels are missing, damaged or of the wrong shape
    │   └── DamagedImage                 one image file cannot be decoded; others may be fine
    ├── ArtifactError    (ValueError)    an ONNX file, a bundle or a checkpoint is damaged
    │   ├── KernelError                  an operator refuses its inputs, or a kernel is wrong
    │   ├── NonFiniteOutput              a network outputs NaN or infinity
    │   └── UnsupportedOperator          a runtime does not support some operator of a network
    ├── InfeasibleError  (ValueError)    no candidate meets the limits
    ├── DeviceError      (RuntimeError)  a target cannot be used on this machine, or memory ran out
    │   └── EnergyUnavailable            this machine has no energy counter
    ├── DivergedError    (RuntimeError)  the training loss is not a number
    ├── RunError         (RuntimeError)  a run folder is damaged, in use or of another recipe
    ├── WorkerError      (RuntimeError)  workers cannot be replaced, or fail on every task
    └── StorageError     (OSError)       a file cannot be written: disk full, no permission

A message says in one line what was given, what was expected and what to do about it. The command
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
    """Error of a recipe, an option or a name."""


class DataError(HwnasError, ValueError):
    """Error of images or labels that are missing, damaged or of the wrong shape."""


class DamagedImage(DataError):
    """Error of one image file that cannot be decoded; others may be fine.

    Attributes:
        reason: Short reason why the file cannot be decoded.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class ArtifactError(HwnasError, ValueError):
    """Error of a damaged ONNX file, bundle or checkpoint."""


class KernelError(ArtifactError):
    """Error of an operator that refuses its inputs, or of a kernel with wrong results."""


class NonFiniteOutput(ArtifactError):
    """Error of a network that outputs NaN or infinity, so that it has no score."""


class UnsupportedOperator(ArtifactError):
    """Error of an ONNX file with operators that a runtime does not support.

    Attributes:
        operators: Names of the unsupported operators, each with the block of the network that it
            comes from; the block is empty where the file does not name it.
    """

    def __init__(self, message: str, operators: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.operators = tuple(operators)

    def __reduce__(self) -> tuple[type[UnsupportedOperator], tuple[str, Any]]:
        return UnsupportedOperator, (str(self), self.operators)


class InfeasibleError(HwnasError, ValueError):
    """Error of a search or choice in which no candidate meets the limits of the objectives."""


class DeviceError(HwnasError, RuntimeError):
    """Error of a target that cannot be used on this machine, or whose memory does not suffice."""


class EnergyUnavailable(DeviceError):
    """Error of a machine without an energy counter; no energy is invented."""


class DivergedError(HwnasError, RuntimeError):
    """Error of a training whose loss is not a number.

    Attributes:
        step: Training step, counted from 0, whose loss was not finite.
        learning_rate: Learning rate of that step.
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
    """Error of a run folder that is damaged, in use or of another recipe."""


class WorkerError(HwnasError, RuntimeError):
    """Error of workers that were lost and cannot be replaced, or that fail on every task."""


class StorageError(HwnasError, OSError):
    """Error of a file that cannot be written."""
