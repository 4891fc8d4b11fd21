from __future__ import annotations

import math
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.errors import NonFiniteOutput
from hwnas.search import Objective, SearchOptions, run_search
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.engine.executor import InProcess
from hwnas.search.engine.failure import Failure
from hwnas.search.evaluation.converted import Executed, converted_file
from hwnas.search.evaluation.evaluate import (
    SupernetEvaluator,
    TrainEvaluator,
    train_network,
    weights_hash,
)
from hwnas.search.evaluation.lineage import GrowEvaluator
from hwnas.search.evaluation.scoring import Evaluation, Fidelity, recalibrate, score
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import TrainConfig
from hwnas.search.training.checkpoint import read_position
from hwnas.search_spaces import Candidate, MobileNetSpace, TrainingSpace, batch_norms
from hwnas.search_spaces.space.precision import PrecisionSpace

SHAPE = (1, 8, 8)


class Always(nn.Module):
    """Network that predicts the same class for every image."""

    def __init__(self, said: int) -> None:
        super().__init__()
        self.said = said

    def forward(self, images: Tensor) -> Tensor:
        return torch.eye(10)[self.said].repeat(len(images), 1)


def trained_a_little(space: MobileNetSpace) -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    supernet = space.supernet()
    return {name: tensor.numpy().copy() for name, tensor in supernet.shared.state_dict().items()}


@pytest.fixture(scope="module")
def evaluator(
    small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
) -> SupernetEvaluator:
    weights = trained_a_little(small_space)
    return SupernetEvaluator(small_space, digits_task, few_digits, weights, 100)


def candidate(space: MobileNetSpace, seed: int = 0) -> Candidate:
    return Candidate.of(space.sample(random.Random(seed)))


class TestScore:
    def test_gives_the_accuracy_and_its_standard_error(
        self, digits_task: Classification, few_digits: ImageData
    ) -> None:
        right = few_digits.validation.targets == 3
        found = score(Always(3), digits_task, few_digits.validation, SHAPE, "validation")
        assert found.values == {"accuracy": pytest.approx(right.mean())}
        expected = np.sqrt(right.mean() * (1 - right.mean()) / (len(right) - 1))
        assert found.standard_errors == {"accuracy": pytest.approx(expected)}
        assert (found.n, found.split) == (len(right), "validation")
        assert found.wall_s > 0

    @pytest.mark.parametrize("batch_size", [7, 49, 1000])
    def test_does_not_depend_on_the_batch_size(
        self,
        small_space: MobileNetSpace,
        digits_task: Classification,
        few_digits: ImageData,
        batch_size: int,
    ) -> None:
        torch.manual_seed(1)
        network = small_space.build(small_space.smallest())
        whole = score(network, digits_task, few_digits.test, SHAPE, "test")
        parts = score(network, digits_task, few_digits.test, SHAPE, "test", batch_size)
        assert parts.values == pytest.approx(dict(whole.values))
        assert not network.training

    def test_evaluation_json_round_trip(self) -> None:
        made = Evaluation({"accuracy": 0.5}, {"accuracy": 0.1}, 25, "validation", 1.5, 1.0)
        assert Evaluation.from_json(made.to_json()) == made


class TestRecalibration:
    @pytest.mark.slow
    @settings(max_examples=20)
    @given(seed=st.integers(0, 100), batch_size=st.integers(20, 200))
    def test_averages_the_statistics_of_the_batches(
        self,
        small_space: MobileNetSpace,
        digits_task: Classification,
        few_digits: ImageData,
        seed: int,
        batch_size: int,
    ) -> None:
        """Compare with the definition: the mean and variance of each batch, averaged."""
        torch.manual_seed(seed)
        network = small_space.build(small_space.sample(random.Random(seed)))
        seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

        def watch(norm: nn.Module, inputs: tuple[Tensor]) -> None:
            x = inputs[0].transpose(0, 1).flatten(1)
            seen.setdefault(norm, []).append((x.mean(1), x.var(1)))

        handles = [norm.register_forward_pre_hook(watch) for norm in batch_norms(network)]
        recalibrate(network, digits_task, few_digits.train, SHAPE, batch_size)
        for handle in handles:
            handle.remove()
        batches = -(-len(few_digits.train) // batch_size)
        for norm in batch_norms(network):
            assert len(seen[norm]) == batches
            for kept, values in (
                (norm.running_mean, [mean for mean, _ in seen[norm]]),
                (norm.running_var, [variance for _, variance in seen[norm]]),
            ):
                expected = torch.stack(values).mean(0)
                torch.testing.assert_close(kept, expected, rtol=1e-4, atol=1e-5)

    def test_changes_only_the_statistics(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        network = small_space.build(small_space.largest())
        batch_norms(network)[1].momentum = 0.03
        momenta = [norm.momentum for norm in batch_norms(network)]
        before = {n: p.clone() for n, p in network.named_parameters()}
        random_state = torch.random.get_rng_state()
        recalibrate(network, digits_task, few_digits.train, SHAPE)
        assert all(torch.equal(p, before[n]) for n, p in network.named_parameters())
        assert [norm.momentum for norm in batch_norms(network)] == momenta
        assert not any(module.training for module in network.modules())
        assert torch.equal(torch.random.get_rng_state(), random_state)
        assert not any(p.grad is not None for p in network.parameters())

    def test_does_not_depend_on_earlier_statistics(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        network = small_space.build(small_space.smallest())
        states = []
        for start in (0.0, 100.0):
            for norm in batch_norms(network):
                nn.init.constant_(norm.running_mean, start)
            recalibrate(network, digits_task, few_digits.train, SHAPE)
            states.append([norm.running_mean.clone() for norm in batch_norms(network)])
        for one, other in zip(*states, strict=True):
            torch.testing.assert_close(one, other)

    def test_makes_no_batch_of_a_single_image(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(1), nn.Flatten())
        recalibrate(network, digits_task, few_digits.train.first(65), SHAPE, batch_size=64)
        assert network[1].running_mean.isfinite().all()

    def test_accepts_a_network_without_normalisation(
        self, digits_task: Classification, few_digits: ImageData
    ) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        recalibrate(network, digits_task, few_digits.train, SHAPE)
        assert not network.training


SPAWNED = """
import pickle, sys
from pathlib import Path
evaluator, candidates, fidelity = pickle.loads(Path(sys.argv[1]).read_bytes())
found = [evaluator.evaluate(c, fidelity).values["accuracy"] for c in candidates]
print(evaluator.key, found)
"""


class TestSupernetEvaluator:
    @pytest.mark.slow
    def test_gives_the_same_scores_in_another_process(
        self, evaluator: SupernetEvaluator, small_space: MobileNetSpace, tmp_path: Path
    ) -> None:
        candidates = [candidate(small_space, seed) for seed in range(3)]
        here = [evaluator.evaluate(c, Fidelity()).values["accuracy"] for c in candidates]
        (tmp_path / "work").write_bytes(pickle.dumps((evaluator, candidates, Fidelity())))
        done = subprocess.run(
            [sys.executable, "-c", SPAWNED, str(tmp_path / "work")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == f"{evaluator.key} {here}"

    def test_score_does_not_depend_on_earlier_evaluations(
        self, evaluator: SupernetEvaluator, small_space: MobileNetSpace
    ) -> None:
        first = evaluator.evaluate(candidate(small_space), Fidelity()).values
        evaluator.evaluate(candidate(small_space, 5), Fidelity())
        assert evaluator.evaluate(candidate(small_space), Fidelity()).values == first

    def test_scores_validation_images_only(
        self, evaluator: SupernetEvaluator, small_space: MobileNetSpace, few_digits: ImageData
    ) -> None:
        found = evaluator.evaluate(candidate(small_space), Fidelity())
        assert (found.split, found.n) == ("validation", len(few_digits.validation))
        network = small_space.supernet()
        network.shared.load_state_dict(
            {name: torch.from_numpy(array) for name, array in evaluator.weights.items()}
        )
        alone = network.extract(candidate(small_space).network)
        recalibrate(alone, evaluator.task, few_digits.train.first(100), SHAPE)
        expected = score(alone, evaluator.task, few_digits.validation, SHAPE, "validation")
        assert found.values == expected.values

    def test_evaluates_as_many_images_as_the_fidelity_says(
        self, evaluator: SupernetEvaluator, small_space: MobileNetSpace
    ) -> None:
        assert evaluator.evaluate(candidate(small_space), Fidelity(images=20)).n == 20
        assert Fidelity(images=20).key != Fidelity(images=30).key != Fidelity().key

    def test_key_changes_with_weights_and_recalibration_images(
        self, evaluator: SupernetEvaluator
    ) -> None:
        space, task, data = evaluator.space, evaluator.task, evaluator.data
        name = next(iter(evaluator.weights))
        other = {**evaluator.weights, name: evaluator.weights[name] + 1}
        keys = {
            evaluator.key,
            SupernetEvaluator(space, task, data, other, 100).key,
            SupernetEvaluator(space, task, data, evaluator.weights, 99).key,
        }
        assert len(keys) == 3
        assert SupernetEvaluator(space, task, data, evaluator.weights, 100).key in keys


def test_weights_hash_depends_on_names_shapes_types_and_values() -> None:
    one = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "c": torch.ones(1)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(1)},
        {"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.int32)},
    ]
    assert len({weights_hash(weights) for weights in [one, *others]}) == 5
    assert weights_hash(dict(reversed(one.items()))) == weights_hash(one)


@pytest.mark.slow
def test_train_evaluator_scores_a_trained_candidate_reproducibly(
    small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
) -> None:
    config = TrainConfig(epochs=12, batch_size=32, learning_rate=0.01, workers=0)
    alone = TrainEvaluator(small_space, digits_task, few_digits, config)
    found = alone.evaluate(candidate(small_space), Fidelity())
    assert found.values["accuracy"] > 0.5
    assert found.split == "validation"
    assert alone.evaluate(candidate(small_space), Fidelity()).values == found.values
    other = TrainEvaluator(small_space, digits_task, few_digits, config, seed=1)
    assert other.key != alone.key


@pytest.mark.slow
def test_train_evaluator_continues_a_candidate_as_if_uninterrupted(
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    tmp_path: Path,
) -> None:
    config = TrainConfig(epochs=6, batch_size=32, learning_rate=0.01, ema=0.9, workers=0)
    alone = TrainEvaluator(small_space, digits_task, few_digits, config)
    keeping, one = replace(alone, folder=tmp_path / "kept"), candidate(small_space)
    first = keeping.evaluate(one, Fidelity(share=0.25))
    assert first.n == len(few_digits.validation)
    assert keeping.kept_weights(one) is None
    again = keeping.evaluate(one, Fidelity(share=0.25))
    assert again.values == first.values
    whole = keeping.evaluate(one, Fidelity())
    assert whole.values == alone.evaluate(one, Fidelity()).values
    assert whole.values != first.values
    kept = keeping.kept_weights(one)
    assert kept is not None
    assert weights_hash(kept) == weights_hash(alone.trained(one).state_dict())


@pytest.mark.slow
def test_supernet_evaluator_scores_the_quantised_file_that_would_ship(
    evaluator: SupernetEvaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.search.evaluation.converted._CALIBRATION_IMAGES", 64)
    one, task, data = Candidate.of(evaluator.space.largest()), evaluator.task, evaluator.data
    rounded = replace(evaluator, recalibration_images=100, number_format="int8")
    assert rounded.key != replace(evaluator, recalibration_images=100).key
    network = rounded._supernet.extract(one.network)
    recalibrate(network, task, data.train.first(100), SHAPE)
    export_onnx(network, SHAPE, tmp_path / "plain.onnx")
    preprocessing = task.preprocessing.at(*SHAPE[1:])
    file = converted_file(tmp_path / "plain.onnx", "int8", data.train, preprocessing)
    inputs = preprocessing(torch.from_numpy(data.validation.take(np.arange(20))[0]))
    outputs: list[Tensor] = []

    def watched(module: nn.Module, *_: object) -> Evaluation:
        outputs.append(module(inputs))
        return Evaluation({}, {}, 20, "validation")

    monkeypatch.setattr("hwnas.search.evaluation.evaluate.score", watched)
    rounded.evaluate(one, Fidelity())
    expected = Executed(file)(inputs)
    # Sums differ in their last bits, and rarely that is another step of eight bits.
    differences = (outputs[0] - expected).abs() / expected.abs().max()
    assert differences.median() < 1e-4, differences.median()


def test_train_evaluator_ends_a_training_that_gets_no_better(
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    tmp_path: Path,
) -> None:
    config = TrainConfig(epochs=30, patience=1, batch_size=75, learning_rate=1e-9, workers=0)
    alone = TrainEvaluator(small_space, digits_task, few_digits, config, folder=tmp_path)
    alone.evaluate(candidate(small_space), Fidelity())
    (checkpoint,) = tmp_path.glob("*.checkpoint.safetensors")
    ended = read_position(checkpoint)
    assert ended is not None
    assert ended.step == 2 * len(few_digits.train) // 75
    assert alone.key != replace(alone, train=replace(config, patience=2)).key


@pytest.mark.parametrize("number_format", ["int8", "bf16"])
def test_train_evaluator_keeps_plain_weights_in_every_number_format(
    number_format: str,
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    tmp_path: Path,
) -> None:
    config = TrainConfig(epochs=1, batch_size=32, workers=0)
    plain = TrainEvaluator(small_space, digits_task, few_digits, config, folder=tmp_path / "plain")
    rounded = replace(plain, folder=tmp_path / "rounded", number_format=number_format)
    assert rounded.key != plain.key
    one = candidate(small_space)
    found = [each.evaluate(one, Fidelity()).values for each in (plain, rounded)]
    kept = [each.kept_weights(one) for each in (plain, rounded)]
    assert weights_hash(kept[0]) == weights_hash(kept[1])
    assert replace(plain, number_format=number_format).kept_weights(one) is not None
    if number_format == "bf16":
        assert found[0] == found[1]


def test_train_evaluator_trains_a_network_once_for_all_its_formats(
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = TrainConfig(epochs=1, batch_size=32, workers=0)
    evaluator = TrainEvaluator(
        small_space, digits_task, few_digits, config, folder=tmp_path, number_format=None
    )
    formats = PrecisionSpace(("bf16", "fp32"))
    both = [
        Candidate.of(small_space.smallest(), precision=each)
        for each in (formats.smallest(), formats.largest())
    ]
    assert both[0].id != both[1].id
    trainings = []

    def counted(*given: Any, **further: Any) -> None:
        trainings.append(given)
        train_network(*given, **further)

    monkeypatch.setattr("hwnas.search.evaluation.evaluate.train_network", counted)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda each: evaluator.evaluate(each, Fidelity()).values, both))
    assert found[0] == found[1]
    assert len(trainings) == 1
    kept = [evaluator.kept_weights(each) for each in both]
    assert weights_hash(kept[0]) == weights_hash(kept[1])
    replace(evaluator, seed=1).evaluate(both[1], Fidelity())
    assert len(trainings) == 2, "weights of another seed are not reused"


def test_train_evaluator_ignores_weights_of_another_seed(
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    tmp_path: Path,
) -> None:
    config = TrainConfig(epochs=1, batch_size=32, workers=0)
    keeping = TrainEvaluator(small_space, digits_task, few_digits, config, folder=tmp_path)
    one = candidate(small_space)
    keeping.evaluate(one, Fidelity())
    other = replace(keeping, seed=1)
    assert other.kept_weights(one) is None
    found = other.evaluate(one, Fidelity())
    assert found.values == replace(other, folder=None).evaluate(one, Fidelity()).values
    assert keeping.kept_weights(one) is None


def test_train_evaluator_scores_each_image_once_in_a_cross_validation(
    small_space: MobileNetSpace, digits_task: Classification, tmp_path: Path
) -> None:
    data = load_data(DataConfig("digits", train_limit=120, folds=3), tmp_path, 0, tmp_path)
    config = TrainConfig(epochs=2, batch_size=16, learning_rate=0.01, workers=0)
    evaluator = TrainEvaluator(small_space, digits_task, data, config, folder=tmp_path / "kept")
    one = candidate(small_space)
    found = evaluator.evaluate(one, Fidelity())
    assert found.n == 120
    parts = [
        TrainEvaluator(small_space, digits_task, each, config).evaluate(one, Fidelity())
        for each in (replace(data, folds=()), *data.rounds[1:])
    ]
    right = [part.n * part.values["accuracy"] for part in parts]
    assert found.values["accuracy"] == pytest.approx(sum(right) / 120)
    share = found.values["accuracy"]
    expected = math.sqrt(share * (1 - share) / 120)
    assert found.standard_errors["accuracy"] == pytest.approx(expected, rel=0.2)
    assert evaluator.evaluate(one, Fidelity()).values == found.values, "checkpoints give the same"
    kept = evaluator.kept_weights(one)
    assert kept is not None
    alone = TrainEvaluator(small_space, digits_task, replace(data, folds=()), config)
    assert weights_hash(kept) == weights_hash(alone.trained(one).state_dict())


@pytest.mark.slow
def test_train_evaluator_uses_the_recipe_of_the_candidate(
    small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
) -> None:
    recipes = TrainingSpace({"learning_rate": (1e-6, 0.01), "label_smoothing": (0.2,)})
    config = TrainConfig(epochs=12, batch_size=32, learning_rate=0.01, workers=0)
    alone = TrainEvaluator(small_space, digits_task, few_digits, config)
    own = replace(alone, recipe=recipes)
    network = candidate(small_space).network

    def accuracy(rate: float) -> float:
        recipe = recipes.architecture({"learning_rate": rate})
        found = own.evaluate(Candidate.of(network, recipe=recipe), Fidelity())
        return found.values["accuracy"]

    assert accuracy(1e-6) < 0.4 < accuracy(0.01)
    as_fixed = replace(alone, train=replace(config, label_smoothing=0.2))
    fixed = as_fixed.evaluate(Candidate.of(network), Fidelity())
    assert accuracy(0.01) == fixed.values["accuracy"]
    assert pickle.loads(pickle.dumps(own)).key == own.key


class Overflowing(nn.Module):
    """Network that outputs a given value, such as NaN, for the first images of a batch."""

    def __init__(self, said: float, images: int = 1) -> None:
        super().__init__()
        self.said, self.images = said, images

    def forward(self, images: Tensor) -> Tensor:
        outputs = torch.eye(10)[0].repeat(len(images), 1)
        outputs[: self.images, 3] = self.said
        return outputs


class TestNonFiniteOutputs:
    @pytest.mark.parametrize(
        ("said", "told"), [(math.nan, "NaN"), (math.inf, "infinity"), (-math.inf, "infinity")]
    )
    def test_are_refused_by_score_with_their_number(
        self, digits_task: Classification, few_digits: ImageData, said: float, told: str
    ) -> None:
        with pytest.raises(NonFiniteOutput, match=f"outputs {told} for 2 of 50 validation images"):
            score(Overflowing(said, 2), digits_task, few_digits.validation, SHAPE, "validation")

    @pytest.mark.parametrize("evaluates", ["supernet", "train", "grow"])
    def test_give_a_failure_with_the_reason(
        self,
        evaluates: str,
        evaluator: SupernetEvaluator,
        small_space: MobileNetSpace,
        digits_task: Classification,
        few_digits: ImageData,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        config = TrainConfig(epochs=0.1, batch_size=50, workers=0)
        shared = small_space, digits_task, few_digits
        made = {
            "supernet": replace(
                evaluator, weights={k: v * np.nan for k, v in evaluator.weights.items()}
            ),
            "train": TrainEvaluator(*shared, config),
            "grow": GrowEvaluator(*shared, config, tmp_path),
        }[evaluates]
        if evaluates != "supernet":

            def broken(network: nn.Module, *given: object, **named: object) -> None:
                for parameter in network.parameters():
                    parameter.data.fill_(math.nan)

            monkeypatch.setattr("hwnas.search.evaluation.evaluate.fit", broken)
        [(_, outcome)] = InProcess(made).map([candidate(small_space)], Fidelity())
        assert isinstance(outcome, Failure)
        assert outcome.kind == "bad result"
        assert "the network outputs NaN for 50 of 50 validation images" in outcome.reason
        assert not list(tmp_path.iterdir()), "nothing grows from it"

    def test_do_not_end_a_search(
        self, evaluator: SupernetEvaluator, small_space: MobileNetSpace
    ) -> None:
        deep = {k: v * (np.nan if "stages.1.1" in k else 1) for k, v in evaluator.weights.items()}
        assert any(np.isnan(v).any() for v in deep.values() if v.dtype.kind == "f")
        result = run_search(
            small_space,
            [Objective("accuracy", "maximize"), Objective("params", "minimize")],
            replace(evaluator, weights=deep),
            SearchOptions(8, "random"),
        )
        assert len(result.trials) == 8
        assert all(t.candidate.network.as_dict()["stage1.depth"] == 1 for t in result.trials)
        assert result.failed
        for failed in result.failed:
            assert failed.candidate.network.as_dict()["stage1.depth"] == 2
            assert failed.failure.kind == "bad result"
            assert "outputs NaN" in failed.failure.reason


class TestThreadCount:
    @pytest.mark.parametrize("fails", [False, True])
    def test_is_restored_after_an_evaluation(
        self, fails: bool, evaluator: SupernetEvaluator, small_space: MobileNetSpace
    ) -> None:
        if fails:
            evaluator = replace(evaluator, weights={})
        torch.set_num_threads(3)
        [(_, outcome)] = InProcess(evaluator).map([candidate(small_space)], Fidelity())
        assert isinstance(outcome, Failure) == fails
        assert torch.get_num_threads() == 3

    def test_is_restored_after_training_a_candidate(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        config = TrainConfig(epochs=0.1, batch_size=50, workers=0)
        alone = TrainEvaluator(small_space, digits_task, few_digits, config)
        torch.set_num_threads(3)
        alone.evaluate(candidate(small_space), Fidelity(10))
        assert torch.get_num_threads() == 3

    def test_is_restored_after_a_users_evaluator_changes_it(self) -> None:
        class Greedy:
            key = "greedy"

            def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
                torch.set_num_threads(2)
                raise ValueError("no")

        torch.set_num_threads(3)
        [(_, outcome)] = InProcess(Greedy()).map([None], Fidelity())  # type: ignore[list-item]
        assert isinstance(outcome, Failure)
        assert torch.get_num_threads() == 3


def test_train_evaluator_key_changes_with_what_decides_the_score(
    small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
) -> None:
    config = TrainConfig(epochs=1, batch_size=50)
    alone = TrainEvaluator(small_space, digits_task, few_digits, config)
    for other in ({"workers": 0}, {"checkpoint_seconds": 5.0}, {"ranking_check": 8}):
        assert replace(alone, train=replace(config, **other)).key == alone.key
    assert replace(alone, train=replace(config, epochs=2)).key != alone.key
    narrower = MobileNetSpace(replace(small_space.config, feature_channels=16))
    assert replace(alone, space=narrower).key != alone.key
