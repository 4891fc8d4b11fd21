"""What a kernel was found to be."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Check", "Verdict"]

_VERSION = 1


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: Of it.
        status: How it went.
        detail: What was seen, where, and of which inputs; or why it does not apply.
        error: The worst, as a multiple of what is allowed; None where nothing is compared.
    """

    name: str
    status: Literal["passed", "failed", "not applicable"]
    detail: str
    error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain values; an infinite error is a text, since JSON has none."""
        infinite = self.error is not None and not math.isfinite(self.error)
        return asdict(self) | ({"error": "inf"} if infinite else {})


@dataclass(frozen=True)
class Verdict:
    """All checks of a kernel.

    Attributes:
        kernel: A file or an operator.
        device: Where it ran.
        interpreted: Whether Triton's interpreter ran it.
        seed: From which all random inputs come; the same gives the same again.
        checks: In their order.
    """

    kernel: str
    device: str
    interpreted: bool
    seed: int
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of checks that failed."""
        return tuple(check.name for check in self.checks if check.status == "failed")

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        checks = [check.to_json() for check in self.checks]
        return {"version": _VERSION, **asdict(self), "ok": self.ok, "checks": checks}
