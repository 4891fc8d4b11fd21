"""Kernel plan: written, read, and compared with the present GPU, versions and operators."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.deploy import Target
from hwnas.deploy.matching import chosen_calls, matched
from hwnas.deploy.matching.kernel_plan import KernelPlan, plan_file, revision
from hwnas.errors import ArtifactError
from hwnas.kernels.operators.registry import OPERATORS

from .graphs import conv, module, node, normal

TARGET = Target.parse("cuda-triton-fp16-b2-t1")
SOURCE = module(
    [conv("x w", "a"), node("Relu", "a", "b"), node("Tanh", "b", "y")], {"w": normal(7, 4, 1, 1)}
)
SIZES = {"images": 2, "pixels": 30, "inputs": 4, "outputs": 7, "gate": 0, "residual": 0}


@pytest.fixture
def plan() -> KernelPlan:
    graph = matched(SOURCE, 2, torch.float16)
    return KernelPlan.of(graph, chosen_calls(graph, torch.float16), torch.float16, TARGET)


def test_kernel_plan_lists_calls_and_the_operators_left_to_pytorch(
    plan: KernelPlan, tmp_path: Path
) -> None:
    path = plan_file(tmp_path / "model.onnx", TARGET)
    plan.write(path)
    assert path.name == "model.cuda-triton-fp16-b2-t1.json"
    told = json.loads(path.read_text())
    [call] = told["calls"]
    assert (call["operator"], call["dtype"], call["sizes"]) == ("pointwise", "float16", SIZES)
    assert call["nodes"] == ["Conv", "Relu"]
    assert call["config"] == OPERATORS["pointwise"].default_config(SIZES, torch.float16)
    [left] = told["in_torch"]
    assert left == {"kind": "Tanh", "reason": "there is no operator for it", "count": 1}
    assert KernelPlan.read(path) == plan
    assert plan.misfit(TARGET) == ""
    path.write_text(path.read_text().replace('"gpu": ', '"card": '))  # as early versions wrote it
    assert KernelPlan.read(path) == plan


def test_kernel_plan_repeats_its_choices_for_the_same_sizes(plan: KernelPlan) -> None:
    call = replace(plan.calls[0], config={"BLOCK_M": 32}, note="measured")
    decide = replace(plan, calls=(call,)).decide
    decision = decide(OPERATORS["pointwise"], SIZES, torch.float16)
    assert (decision.config, decision.kernel, decision.note) == ({"BLOCK_M": 32}, True, "measured")
    for other in (SIZES | {"pixels": 31}, SIZES | {"gate": 1}):
        assert not decide(OPERATORS["pointwise"], other, torch.float16).kernel
    assert not decide(OPERATORS["pointwise"], SIZES, torch.float32).kernel


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "NVIDIA Z900"}, "GPU NVIDIA Z900 instead of "),
        ({"target": "cuda-triton-fp32-b2-t1"}, "target cuda-triton-fp32-b2-t1 instead of "),
        ({"versions": {"triton": "1.0"}}, "triton 1.0 instead of .*, torch None instead of "),
    ],
)
def test_kernel_plan_reports_another_gpu_target_or_version(
    plan: KernelPlan, change: dict[str, object], reason: str
) -> None:
    assert re.search(f"was made for {reason}", replace(plan, **change).misfit(TARGET))


def test_revision_has_twelve_digits_that_operators_do_not_share() -> None:
    found = [revision(OPERATORS[name]) for name in ("pointwise", "depthwise")]
    assert all(re.fullmatch(r"[0-9a-f]{12}", each) for each in found)
    assert len(set(found)) == 2


def test_kernel_plan_reports_changed_and_removed_operators(plan: KernelPlan) -> None:
    [call] = plan.calls
    old = replace(plan, calls=(replace(call, revision="0"), replace(call, operator="gone")))
    assert old.misfit(TARGET) == "changed since the kernel plan was made: gone, pointwise"


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 9}', '{"schema": 1, "calls": [{}]}'])
def test_kernel_plan_refuses_a_damaged_file_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"plan\.json") as raised:
        KernelPlan.read(path)
    assert len(str(raised.value).splitlines()) == 1
