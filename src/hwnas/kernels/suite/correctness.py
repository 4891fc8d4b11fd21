"""Suite that checks every operator on every backend, and reports the resource usage on a GPU.

Categories and backends follow MultiKernelBench (Wen et al., 2025): operators are the same for all
backends, each backend computes them in its own way, and all are compared with the reference in
float64.
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
from hwnas.kernels.compile_ahead import Compiled, CompileRequest, compile_in_child
from hwnas.kernels.operator import Inputs
from hwnas.kernels.suite.backends import Backend
from hwnas.kernels.suite.cases import Case
from hwnas.kernels.suite.tolerance import as_tuple, exact_outputs, worst_error
from hwnas.kernels.tuning.race import fair, why

__all__ = ["CaseResult", "compared", "compiled_suite", "run_suite"]

_PROCESSES = 2  # that compile kernels


@dataclass(frozen=True)
class CaseResult:
    """Result of one case on one backend.

    Attributes:
        case: Operator, type and sizes.
        share: Worst error of all outputs, as a multiple of the tolerance of its type; None if no
            output could be compared.
        error: Largest absolute difference from the reference in float64; None as for ``share``.
        reason: Description of what went wrong, or why the backend does not take the case.
        taken: Whether the backend takes the case; if not it is neither right nor wrong.
        spills: Bytes of spilled registers per thread; None if not known.
    """

    case: Case
    share: float | None = None
    error: float | None = None
    reason: str = ""
    taken: bool = True
    spills: int | None = None

    @property
    def correct(self) -> bool | None:
        """True if all outputs are within their type's tolerance; None if the case is not taken."""
        return (self.share is not None and self.share <= 1) if self.taken else None

    @property
    def failed(self) -> bool:
        """True if something went wrong."""
        return self.taken and bool(self.reason)

    def with_resources(self, compiled: Compiled) -> CaseResult:
        """Return the verdict with the resource usage of the case's kernels."""
        if isinstance(compiled, str):
            return replace(self, reason=self.reason or compiled)
        return replace(self, spills=sum(part.spilled_bytes for part in compiled))

    def to_json(self) -> dict[str, Any]:
        """Return one result row."""
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
) -> Iterator[CaseResult]:
    """Yield the verdicts on all cases, one by one.

    Args:
        cases: Cases to check.
        backend: Backend to check.
        device: Device of the inputs.
        seed: Seed of the inputs.
    """
    for case in cases:
        inputs = case.example(device, seed)
        with fair():
            verdict = _judged(case, backend, inputs)
        yield verdict


def compiled_suite(cases: Sequence[Case], gpu: Accelerator) -> list[Compiled]:
    """Return for each case the resource usage of its kernels, or why they cannot be compiled.

    The GPU need not be in this machine. Kernels are compiled with their default configurations in
    two child processes, half of the cases in each.
    """
    requests = [
        CompileRequest(case.name, case.sizes, case.dtype, case.config, gpu) for case in cases
    ]
    answers: list[Compiled] = [""] * len(cases)
    with ThreadPoolExecutor(_PROCESSES) as pool:
        parts = [requests[i::_PROCESSES] for i in range(_PROCESSES)]
        for i, found in enumerate(pool.map(compile_in_child, parts)):
            answers[i::_PROCESSES] = found
    return answers


def compared(case: Case, compute: Callable[[], Any], truth: tuple[Tensor, ...]) -> CaseResult:
    """Return the verdict on what is computed, compared with the exact outputs."""
    try:
        outputs = as_tuple(compute())
    except Exception as error:  # a backend may be the user's own
        return CaseResult(case, reason=why(error))
    if len(outputs) != len(truth):
        return CaseResult(case, reason=f"{len(outputs)} outputs instead of {len(truth)}")
    if any(a.shape != b.shape for a, b in zip(outputs, truth, strict=True)):
        return CaseResult(case, reason="an output has the wrong shape")
    pairs = list(zip(outputs, truth, strict=True))
    share = max(worst_error(output, expected) for output, expected in pairs)
    furthest = max(_largest((a.double() - b.double()).abs()) for a, b in pairs)
    reason = "" if share <= 1 else f"{share:.1f} times the tolerance of its type"
    return CaseResult(case, share, furthest, reason)


def _judged(case: Case, backend: Backend, inputs: Inputs) -> CaseResult:
    try:
        run = backend.prepare(case.operator, inputs)
    except HwnasError as error:
        return CaseResult(case, reason=f"not supported by {backend.name}: {error}", taken=False)
    except Exception as error:  # a backend may be the user's own
        return CaseResult(case, reason=why(error))
    return compared(case, run, exact_outputs(case.operator.reference, inputs))


def _largest(values: Tensor) -> float:
    return values.max().item() if values.numel() else 0.0
