from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.errors import ArtifactError
from hwnas.search.evaluation.converted import Executed
from hwnas.search.evaluation.evaluate import TrainEvaluator
from hwnas.search.evaluation.scoring import Evaluation, score
from hwnas.search.training import TrainConfig
from hwnas.search_spaces import Candidate
from hwnas.stages import Job
from hwnas.stages.finalists.chance import refuse_chance
from hwnas.stages.finalists.exporting import export_network


def exported(job: Job, epochs: float, to: Path) -> tuple[Path, tuple[int, int, int], Evaluation]:
    """Train the largest network, and return its file, input shape and validation scores."""
    i, network = job.run_inputs, job.run_inputs.space.largest()
    config = TrainConfig(epochs=epochs, batch_size=32, learning_rate=0.01, workers=0)
    trained = TrainEvaluator(i.space, i.task, i.data, config).trained(Candidate.of(network))
    file, shape = export_network(i, network, trained, to).path, i.space.input_shape(network)
    return file, shape, score(Executed(file), i.task, i.data.validation, shape, "validation")


@pytest.mark.slow
def test_network_that_a_conversion_leaves_at_chance_is_refused_with_a_layer(
    job: Job, tmp_path: Path
) -> None:
    file, shape, found = exported(job, 20, tmp_path / "trained.onnx")
    assert found.values["accuracy"] > 0.3
    refuse_chance(job.run_inputs, file, "int8", shape, found)
    broken = replace(found, values={**found.values, "accuracy": 0.1})
    with pytest.raises(ArtifactError, match=r"in int8 the network has accuracy 0\.1 .* alone"):
        refuse_chance(job.run_inputs, file, "int8", shape, broken)
    with pytest.raises(ArtifactError, match=r"constant outputs \(0\.\d+\)$"):
        refuse_chance(job.run_inputs, file, "fp16", shape, broken)


def test_network_that_was_at_chance_before_is_not_refused(job: Job, tmp_path: Path) -> None:
    file, shape, found = exported(job, 0.01, tmp_path / "untrained.onnx")
    broken = replace(found, values={**found.values, "accuracy": 0.05})
    refuse_chance(job.run_inputs, file, "int8", shape, broken)
