"""The kernel suite, on correct, wrong and broken backends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hwnas.errors import ConfigError, KernelError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.codegen.chains import CHAINS
from hwnas.kernels.operator import Inputs, Operator
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.suite.backends import BACKENDS, Backend, ReferenceBackend, TritonBackend
from hwnas.kernels.suite.cases import Case
from hwnas.kernels.suite.correctness import CaseResult, compiled_suite, run_suite

CPU = torch.device("cpu")
CASES = Case.all(OPERATORS, ["pointwise"])


class Changed(ReferenceBackend):
    """Reference backend whose results a function changes."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        object.__setattr__(self, "change", change)

    def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
        return lambda: self.change(operator.reference(**inputs))  # type: ignore[attr-defined]


def verdicts(backend: Backend) -> list[CaseResult]:
    return list(run_suite(CASES, backend, CPU))


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend", [TritonBackend(), ReferenceBackend()], ids=lambda each: each.name
)
def test_suite_accepts_correct_backends(backend: Backend) -> None:
    found = verdicts(backend)
    assert all(each.correct for each in found)
    assert all(each.error is not None and each.error < 0.1 for each in found)


@pytest.mark.slow
def test_suite_has_two_or_more_shapes_for_each_dtype() -> None:
    rows = [each.to_json() for each in verdicts(BACKENDS["triton"])]
    for dtype in ("float16", "bfloat16", "float32"):
        shapes = [tuple(row["shape"]) for row in rows if row["dtype"] == dtype]
        assert len(set(shapes)) >= 2
    assert rows[0].keys() >= {"op", "dtype", "shape", "correct", "error", "spills"}


def test_suite_rejects_wrong_results_with_their_error() -> None:
    found = verdicts(Changed(lambda y: y + 1))
    assert not any(each.correct for each in found)
    assert all(each.error == pytest.approx(1, abs=0.1) for each in found)
    assert "times the tolerance of its type" in found[0].reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda y: y[..., :0], "an output has the wrong shape"),
        (lambda y: (y, y), "2 outputs instead of 1"),
        (lambda y: y @ torch.ones(99), "size"),
    ],
)
def test_suite_rejects_broken_outputs_with_a_reason(
    change: Callable[[Any], Any], reason: str
) -> None:
    assert all(
        not v.correct and v.error is None and reason in v.reason for v in verdicts(Changed(change))
    )


def test_suite_gives_unsupported_cases_no_verdict() -> None:
    class Narrow(ReferenceBackend):
        def prepare(self, operator: Operator, inputs: Inputs) -> Callable[[], Any]:
            if inputs["x"].dtype == torch.bfloat16:
                raise KernelError("float only")
            return super().prepare(operator, inputs)

    for each in verdicts(Narrow()):
        taken = each.case.dtype != torch.bfloat16
        assert each.correct is (True if taken else None)
        assert not each.failed
        assert each.reason == ("" if taken else "not supported by reference: float only")


def test_suite_names_the_type_of_an_error_without_message() -> None:
    def fail(y: Any) -> Any:
        raise AssertionError

    assert all(each.failed and "AssertionError" in each.reason for each in verdicts(Changed(fail)))


@pytest.mark.slow
def test_suite_checks_and_compiles_fused_chains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path))
    cases = Case.all({**OPERATORS, **CHAINS}, ["scale_shift+relu+add", "hard_swish+pixel_mean"])
    assert len(cases) == 2 * 3 * 3
    assert all(each.correct for each in run_suite(cases, TritonBackend(), CPU))
    ends = {name.rsplit("+", 1)[1] for name in CHAINS}
    assert {"quantize", "pixel_mean", "add"} <= ends
    [found] = compiled_suite(cases[:1], ACCELERATORS["nvidia-h200"])
    assert not isinstance(found, str)
    assert sum(part.spilled_bytes for part in found) == 0


def test_case_all_refuses_an_unknown_operator_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown operator 'poinwise'; did you mean"):
        Case.all(OPERATORS, ["poinwise"])
