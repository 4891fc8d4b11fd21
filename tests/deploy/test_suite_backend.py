"""ONNX Runtime in the suite of operators."""

import pytest
import torch

from hwnas.deploy.suite_backend import OnnxRuntimeBackend
from hwnas.errors import ArtifactError
from hwnas.kernels.backends import Backend
from hwnas.kernels.cases import Case
from hwnas.kernels.catalogue import OPERATORS
from hwnas.kernels.suite import run_suite

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["pointwise", "depthwise", "norm_linear", "attention"])
def test_operators_compute_the_same_there(name: str) -> None:
    backend: Backend = OnnxRuntimeBackend()
    assert backend.unavailable(CPU) is None
    cases = [case for case in Case.all(OPERATORS, [name]) if case.dtype == torch.float32][:2]
    found = list(run_suite(cases, backend, CPU))
    assert [verdict.reason for verdict in found] == [""] * len(cases)


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [
        ("pointwise", torch.bfloat16, "has no bfloat16"),
        ("block_sparse", torch.float32, "cannot compute block_sparse in torch.float32: aten_"),
    ],
)
def test_what_it_does_not_take_is_not_wrong_and_says_why(
    name: str, dtype: torch.dtype, reason: str
) -> None:
    cases = [case for case in Case.all(OPERATORS, [name]) if case.dtype == dtype][:1]
    [verdict] = run_suite(cases, OnnxRuntimeBackend(), CPU)
    assert verdict.correct is None
    assert not verdict.failed
    assert "not supported by onnxruntime: ONNX Runtime" in verdict.reason
    assert reason in verdict.reason


def test_an_operator_that_cannot_be_exported_is_refused() -> None:
    operator = OPERATORS["pointwise"]
    inputs = operator.example(operator.checked[0], torch.float32, torch.Generator(), CPU)
    with pytest.raises(ArtifactError, match="ONNX Runtime cannot compute pointwise"):
        OnnxRuntimeBackend().prepare(operator, inputs | {"weight": torch.ones(3, 3)})
