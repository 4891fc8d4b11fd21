"""Plans of fine-tunings as files, and the parts of their memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.deploy.finetuning.networks import graph_of, made

from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.plan import FineTuningPlan, training_memory
from hwnas.deploy.finetuning.scheme import LayerUpdate, UpdateScheme
from hwnas.errors import ArtifactError

SCHEME = UpdateScheme({"two": LayerUpdate(0.5), "four": LayerUpdate(1.0)})


@pytest.fixture
def plan() -> FineTuningPlan:
    program = compile_scheme(graph_of("plain"), SCHEME)
    return FineTuningPlan.of("a" * 64, program, SCHEME, "sgd", 32, 10**6, {"loss": 1.0})


def test_plan_is_the_same_after_writing_and_reading(plan: FineTuningPlan, tmp_path: Path) -> None:
    plan.write(tmp_path / "plan.json")
    assert FineTuningPlan.read(tmp_path / "plan.json") == plan


def test_plan_lists_backward_operators_in_the_order_of_the_program(
    plan: FineTuningPlan,
) -> None:
    program = plan.compiled(made("plain"), (3, 8, 8))
    assert plan.backward == tuple(step.name for step in program.backward_steps)
    assert plan.saved == program.saved
    assert sum("convolution_backward" in name for name in plan.backward) == 1


def test_memory_of_a_training_adds_up_weights_state_and_peak() -> None:
    plain = made("plain")
    program = compile_scheme(graph_of("plain"), SCHEME)
    trained = 4 * (8 * 4 * 9 + 8 + 16 * 4 + 4)
    for optimizer, states in (("sgd", 1), ("adam", 2)):
        memory = training_memory(program, optimizer)
        assert memory.weights_bytes == 4 * sum(p.numel() for p in plain.parameters())
        assert memory.gradients_bytes == trained
        assert memory.optimizer_bytes == states * trained
        assert memory.peak_bytes >= memory.saved_bytes
        assert memory.total_bytes == (
            memory.weights_bytes + memory.optimizer_bytes + memory.peak_bytes
        )


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"optimizer": "other"},
        {"scheme": {"two": {"weight": 0.3, "bias": True}}},
        {"memory": {}},
        {"saved": [1]},
    ],
)
def test_reading_refuses_a_damaged_plan(
    plan: FineTuningPlan, change: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan.to_json(), **change}))
    with pytest.raises(ArtifactError, match="is not a plan of a fine-tuning") as why:
        FineTuningPlan.read(path)
    assert "\n" not in str(why.value)


def test_reading_refuses_what_is_no_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[1]")
    with pytest.raises(ArtifactError, match="hwnas finetune-plan"):
        FineTuningPlan.read(tmp_path / "plan.json")
    with pytest.raises(ArtifactError, match="cannot be read"):
        FineTuningPlan.read(tmp_path / "none.json")
