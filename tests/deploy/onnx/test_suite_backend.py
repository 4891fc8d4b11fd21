"""ONNX Runtime as a backend of the kernel suite."""

import pytest
import torch

from hwnas.deploy.onnx.suite_backend import OnnxRuntimeBackend
from hwnas.errors import ArtifactError
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.suite.backends import Backend
from hwnas.kernels.suite.cases import Case
from hwnas.kernels.suite.correctness import run_suite

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pointwise", "depthwise", "norm_linear", "attention"])
def test_onnx_runtime_backend_passes_the_suite(name: str) -> None:
    backend: Backend = OnnxRuntimeBackend()
    assert backend.unavailable(CPU) is None
    cases = [case for case in Case.all(OPERATORS, [name]) if case.dtype == torch.float32][:2]
    found = list(run_suite(cases, backend, CPU))
    assert [verdict.reason for verdict in found] == [""] * len(cases)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("pointwise", torch.bfloat16, "has no bfloat16"),
        ("block_sparse", torch.float32, "cannot compute block_sparse in torch.float32: aten_"),
    ],
)
def test_onnx_runtime_backend_reports_unsupported_cases_with_a_reason(
    name: str, dtype: torch.dtype, reason: str
) -> None:
    cases = [case for case in Case.all(OPERATORS, [name]) if case.dtype == dtype][:1]
    [verdict] = run_suite(cases, OnnxRuntimeBackend(), CPU)
    assert verdict.correct is None
    assert not verdict.failed
    assert "not supported by onnxruntime: ONNX Runtime" in verdict.reason
    assert reason in verdict.reason


@pytest.mark.slow
def test_onnx_runtime_backend_refuses_inputs_that_cannot_be_exported() -> None:
    operator = OPERATORS["pointwise"]
    inputs = operator.example(operator.checked[0], torch.float32, torch.Generator(), CPU)
    with pytest.raises(ArtifactError, match="ONNX Runtime cannot compute pointwise"):
        OnnxRuntimeBackend().prepare(operator, inputs | {"weight": torch.ones(3, 3)})
