from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from torch import nn

from hwnas.recipe import read_recipe
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import NetworkStep
from hwnas.stages import RunInputs
from hwnas.stages.finalists import variant_tuning


@dataclass
class Nothing:
    """Conversion that leaves the network unchanged."""

    def begin(self, network: nn.Module) -> None: ...

    def end(self, network: nn.Module) -> None: ...


@pytest.mark.parametrize("smoothing", [0.0, 0.4, None])
def test_retraining_uses_the_label_smoothing_of_the_recipe(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoothing: float | None
) -> None:
    learned: list[float] = []

    def watched(step: NetworkStep, *given: object, **named: object) -> None:
        assert isinstance(step.task, Classification)
        learned.append(step.task.label_smoothing)

    monkeypatch.setattr(variant_tuning, "train_network", watched)
    run_inputs = RunInputs.prepare(read_recipe(tiny_recipe)[0], tmp_path)
    space = run_inputs.space
    config = replace(run_inputs.recipe.train, label_smoothing=smoothing)
    weights = space.build(space.smallest()).state_dict()
    retrain = variant_tuning.retraining(run_inputs, space.smallest(), weights, config)
    retrain(Nothing(), tmp_path / "model.onnx")  # type: ignore[arg-type]
    assert learned == [0.1 if smoothing is None else smoothing]
