"""Verdict on a kernel, and the checks that make it up."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["KernelCheck", "KernelVerdict"]

_VERSION = 1


@dataclass(frozen=True)
class KernelCheck:
    """Result of one check of a kernel.

    Attributes:
        name: Name of the check.
        status: Outcome of the check.
        detail: Observations, with their place and inputs; or why the check does not apply.
        error: Worst error as a multiple of the tolerance; None if nothing is compared.
    """

    name: str
    status: Literal["passed", "failed", "not applicable"]
    detail: str
    error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the check as plain values; an infinite error is a text, as JSON has none."""
        infinite = self.error is not None and not math.isfinite(self.error)
        return asdict(self) | ({"error": "inf"} if infinite else {})


@dataclass(frozen=True)
class KernelVerdict:
    """Results of all checks of a kernel.

    Attributes:
        kernel: File or operator that was verified.
        device: Device on which the kernel ran.
        interpreted: Whether Triton's interpreter ran the kernel.
        seed: Seed of all random inputs; the same seed gives the same inputs again.
        checks: Results of the checks, in order.
    """

    kernel: str
    device: str
    interpreted: bool
    seed: int
    checks: tuple[KernelCheck, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.status == "failed")

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        checks = [check.to_json() for check in self.checks]
        return {"version": _VERSION, **asdict(self), "ok": self.ok, "checks": checks}
