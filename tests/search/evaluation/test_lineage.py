from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.errors import ArtifactError, ConfigError
from hwnas.search import (
    Classification,
    Fidelity,
    GrowEvaluator,
    ImageData,
    Objective,
    SearchOptions,
    StudyStorage,
    TrainConfig,
    run_search,
)
from hwnas.search.evaluation.scoring import score
from hwnas.search.training import NetworkStep, load_weights, save_weights
from hwnas.search_spaces import Architecture, Candidate, MobileNetSpace, simplenet, union
from hwnas.search_spaces.growth import NetworkGrowth

CONFIG = TrainConfig(epochs=10, batch_size=32, learning_rate=0.01, workers=0)


@pytest.fixture
def growing(
    small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData, tmp_path: Path
) -> GrowEvaluator:
    return GrowEvaluator(small_space, digits_task, few_digits, CONFIG, tmp_path / "kept")


def evaluated(growing: GrowEvaluator, architecture: Architecture) -> float:
    return growing.evaluate(Candidate.of(architecture), Fidelity()).values["accuracy"]


def children(space: MobileNetSpace, parent: Architecture) -> list[Architecture]:
    return list(NetworkGrowth(space).moves(parent).values())


@pytest.mark.slow
def test_grow_evaluator_starts_a_child_with_the_accuracy_of_its_parent(
    growing: GrowEvaluator,
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
) -> None:
    parent = small_space.smallest()
    accuracy = evaluated(growing, parent)
    assert accuracy > 0.25, "it has learnt: a guess is right once in ten"
    for child in children(small_space, parent):
        network, config = growing.start(child)
        shape = small_space.input_shape(child)
        found = score(network, digits_task, few_digits.validation, shape, "validation")
        assert found.values["accuracy"] == accuracy
        assert (config.epochs, config.learning_rate) == (2.5, 0.002)


@pytest.mark.slow
def test_grow_evaluator_improves_over_three_generations(
    growing: GrowEvaluator, small_space: MobileNetSpace
) -> None:
    network = small_space.smallest()
    before = evaluated(growing, network)
    for _ in range(3):
        network = children(small_space, network)[0]
        after = evaluated(growing, network)
    assert after > before


def test_grow_evaluator_starts_from_the_best_of_the_nearest_ancestors(
    growing: GrowEvaluator, small_space: MobileNetSpace
) -> None:
    smallest = small_space.smallest()
    steps = growing.growth.moves(smallest)
    first, second = steps["stage0.block0.kernel_size"], steps["stage1.block0.expand_ratio"]
    both = {**first.as_dict(), "stage1.block0.expand_ratio": 3}
    grandchild = small_space.architecture(both)
    assert growing.ancestor(grandchild) is None
    for architecture, value in ((smallest, 0.9), (first, 0.3), (second, 0.5)):
        weights = small_space.build(architecture).state_dict()
        growing.lineage.keep(architecture, weights, value)
    assert growing.ancestor(grandchild) == second
    assert growing.ancestor(first) == smallest
    assert growing.ancestor(smallest) is None
    assert growing.ancestor(small_space.largest()) == second, "the width grows, too"


@pytest.mark.slow
def test_grow_evaluator_ignores_ancestors_trained_on_other_labels(
    growing: GrowEvaluator, small_space: MobileNetSpace, few_digits: ImageData
) -> None:
    parent = small_space.smallest()
    child = children(small_space, parent)[0]
    evaluated(growing, parent)
    splits = {
        name: replace(split, image_targets=(split.image_targets + 1) % 10)
        for name in ("train", "validation", "test")
        if (split := getattr(few_digits, name))
    }
    other = replace(growing, data=replace(few_digits, **splits))
    assert growing.ancestor(child) == parent
    assert other.ancestor(child) is None
    assert other.lineage.weights(parent) is None
    evaluated(other, parent)
    assert other.ancestor(child) == parent
    assert growing.ancestor(child) is None, "it was replaced"


def test_lineage_adopts_networks_without_an_identity(
    growing: GrowEvaluator, small_space: MobileNetSpace
) -> None:
    parent = small_space.smallest()
    evaluated(growing, parent)
    [about] = growing.folder.glob("*.json")
    kept = json.loads(about.read_text())
    del kept["identity"]
    about.write_text(json.dumps(kept))
    weights = about.with_suffix(".safetensors")
    save_weights(weights, load_weights(weights))
    child = children(small_space, parent)[0]
    assert growing.ancestor(child) is None
    growing.lineage.adopt()
    assert growing.ancestor(child) == parent
    assert growing.lineage.weights(parent) is not None


@pytest.mark.slow
def test_grow_evaluator_continues_equally_after_pickling(
    growing: GrowEvaluator, small_space: MobileNetSpace
) -> None:
    parent = small_space.smallest()
    evaluated(growing, parent)
    child = children(small_space, parent)[0]
    other = pickle.loads(pickle.dumps(growing))
    assert other.key == growing.key
    assert evaluated(other, child) == evaluated(growing, child)
    kept, again = other.lineage.weights(child), growing.lineage.weights(child)
    assert kept is not None
    assert again is not None
    assert all(torch.equal(kept[name], again[name]) for name in kept)


@pytest.mark.slow
def test_growth_search_resumed_equals_an_uninterrupted_one(
    growing: GrowEvaluator, small_space: MobileNetSpace, tmp_path: Path
) -> None:
    objectives = [Objective("accuracy", "maximize"), Objective("params", "minimize")]

    def searched(name: str, *stops: int) -> list[dict[str, float]]:
        for trials in stops:
            shorter = replace(CONFIG, epochs=2)
            evaluator = replace(growing, train=shorter, folder=tmp_path / name)
            study = tmp_path / f"{name}.db"
            result = run_search(
                small_space,
                objectives,
                evaluator,
                SearchOptions(trials, "growth"),
                storage=StudyStorage(study),
            )
        return [dict(trial.values) for trial in result.trials]

    assert searched("in two sessions", 6, 10) == searched("at once", 10)


def test_grow_evaluator_refuses_spaces_that_cannot_grow(
    digits_task: Classification, few_digits: ImageData, tmp_path: Path
) -> None:
    members = [
        {"name": "simplenet", "preset": "tiny"},
        {"name": "simplenet", "preset": "tiny", "label": "other"},
    ]
    for space, reason in (
        (union((8, 8, 1), 10, members=members), "cannot grow, since they share no weights"),
        (simplenet((32, 32, 1), 10, "simplenet-310k"), "none of 4 networks .* can grow"),
    ):
        with pytest.raises(ConfigError, match=reason):
            GrowEvaluator(space, digits_task, few_digits, CONFIG, tmp_path)


def test_lineage_names_a_damaged_file(growing: GrowEvaluator, small_space: MobileNetSpace) -> None:
    growing.folder.mkdir()
    (growing.folder / "abc.json").write_text('{"value": 1}')
    with pytest.raises(ArtifactError, match=r"abc\.json is damaged .*; remove it"):
        growing.ancestor(small_space.largest())


@pytest.mark.parametrize("smoothing", [0.0, 0.4, None])
def test_grow_evaluator_uses_the_label_smoothing_of_the_recipe(
    growing: GrowEvaluator,
    small_space: MobileNetSpace,
    monkeypatch: pytest.MonkeyPatch,
    smoothing: float | None,
) -> None:
    learned: list[float] = []

    def watched(network: object, step: NetworkStep, *given: object, **named: object) -> None:
        assert isinstance(step.task, Classification)
        learned.append(step.task.label_smoothing)

    monkeypatch.setattr("hwnas.search.evaluation.evaluate.fit", watched)
    config = replace(CONFIG, label_smoothing=smoothing)
    smallest = Candidate.of(small_space.smallest())
    replace(growing, train=config).evaluate(smallest, Fidelity())
    assert learned == [0.1 if smoothing is None else smoothing]
