"""Every operator on every backend: are its values right, and what does it take of a card.

After the categories and backends of MultiKernelBench (Wen et al., 2025): operators are the same for
all, each backend computes them in its own way, and all are judged by the reference in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import HwnasError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.ahead import Compiled, Request, compile_in_child
from hwnas.kernels.backends import Backend
from hwnas.kernels.cases import Case
from hwnas.kernels.operator import Inputs
from hwnas.kernels.race import fair, why
from hwnas.kernels.tolerance import as_tuple, exact_outputs, worst_error

__all__ = ["Verdict", "compared", "compiled_suite", "run_suite"]

_PROCESSES = 2  # that compile


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Attributes:
        case: What was computed.
        share: The worst error of all outputs, as a multiple of what its type allows; None where
            nothing came out that could be compared.
        error: The largest difference from the truth, likewise.
        reason: What went wrong, or why the backend does not take the case.
        taken: Whether the backend takes the case; if not it is neither right nor wrong.
        spills: Bytes of registers that did not fit, per thread; None where that is not known.
    """

    case: Case
    share: float | None = None
    error: float | None = None
    reason: str = ""
    taken: bool = True
    spills: int | None = None

    @property
    def correct(self) -> bool | None:
        """Whether all outputs are within the tolerance of their type; None if it is not taken."""
        return (self.share is not None and self.share <= 1) if self.taken else None

    @property
    def failed(self) -> bool:
        """Whether something went wrong."""
        return self.taken and bool(self.reason)

    def with_resources(self, compiled: Compiled) -> Verdict:
        """The same, with what the case's kernels take of a card."""
        if isinstance(compiled, str):
            return replace(self, reason=self.reason or compiled)
        return replace(self, spills=sum(part.spilled_bytes for part in compiled))

    def to_json(self) -> dict[str, Any]:
        """One row."""
        return self.case.to_json() | {
            "correct": self.correct,
            "error": self.error,
            "reason": self.reason,
            "spills": self.spills,
        }


def run_suite(
    cases: Sequence[Case],
    backend: Backend,
    device: torch.device,
    seed: int = 0,
) -> Iterator[Verdict]:
    """Verdicts on all cases, one by one.

    Args:
        cases: What to compute.
        backend: Who computes.
        device: Where the inputs lie.
        seed: Of the inputs.
    """
    for case in cases:
        inputs = case.example(device, seed)
        with fair():
            verdict = _judged(case, backend, inputs)
        yield verdict


def compiled_suite(cases: Sequence[Case], card: Accelerator) -> list[Compiled]:
    """What the kernels of all cases take of a card that need not be here, or why they cannot be.

    They are compiled with their default configurations, in processes of their own, half in each.
    """
    requests = [Request(case.name, case.sizes, case.dtype, case.config, card) for case in cases]
    answers: list[Compiled] = [""] * len(cases)
    with ThreadPoolExecutor(_PROCESSES) as pool:
        parts = [requests[i::_PROCESSES] for i in range(_PROCESSES)]
        for i, found in enumerate(pool.map(compile_in_child, parts)):
            answers[i::_PROCESSES] = found
    return answers


def compared(case: Case, compute: Callable[[], Any], truth: tuple[Tensor, ...]) -> Verdict:
    """What is computed, next to the truth."""
    try:
        outputs = as_tuple(compute())
    except Exception as error:  # a backend may be anybody's
        return Verdict(case, reason=why(error))
    if len(outputs) != len(truth):
        return Verdict(case, reason=f"{len(outputs)} outputs instead of {len(truth)}")
    if any(a.shape != b.shape for a, b in zip(outputs, truth, strict=True)):
        return Verdict(case, reason="an output has the wrong shape")
    pairs = list(zip(outputs, truth, strict=True))
    share = max(worst_error(output, expected) for output, expected in pairs)
    furthest = max(_largest((a.double() - b.double()).abs()) for a, b in pairs)
    reason = "" if share <= 1 else f"{share:.1f} times what its type allows"
    return Verdict(case, share, furthest, reason)


def _judged(case: Case, backend: Backend, inputs: Inputs) -> Verdict:
    try:
        run = backend.prepare(case.operator, inputs)
    except HwnasError as error:
        return Verdict(case, reason=f"not taken by {backend.name}: {error}", taken=False)
    except Exception as error:  # a backend may be anybody's
        return Verdict(case, reason=why(error))
    return compared(case, run, exact_outputs(case.operator.reference, inputs))


def _largest(values: Tensor) -> float:
    return values.max().item() if values.numel() else 0.0
