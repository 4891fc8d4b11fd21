"""Teachers: distillation from a trained network into supernets and single networks."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.scoring import recalibrate, score
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import (
    Batch,
    NetworkStep,
    StepContext,
    SupernetStep,
    SupernetTraining,
    Teacher,
    TrainConfig,
    fit,
    load_weights,
    teacher_of,
    train_supernet,
)
from hwnas.search.training.features import feature_loss, recorded_features
from hwnas.search_spaces import ElasticSpace, MobileNetSpace, elastic

SHAPE = (1, 8, 8)


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


@pytest.fixture(scope="module")
def trained(digits_task: Classification, few_digits: ImageData) -> nn.Module:
    """Return a plain network that was trained on the digits."""
    torch.manual_seed(0)
    model = nn.Sequential(
        convolution(1, 16), nn.MaxPool2d(2), convolution(16, 32), convolution(32, 32),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    config = TrainConfig(epochs=30, batch_size=30, learning_rate=0.01, workers=0)
    fit(model, NetworkStep(model, digits_task, SHAPE), few_digits.train, config, 0)
    return model.eval()


@pytest.fixture(scope="module")
def space(trained: nn.Module) -> ElasticSpace:
    return elastic(trained, torch.randn(2, *SHAPE), widths=(0.5, 1.0), pretrained=True)


def test_teacher_of_returns_the_original_network_with_fixed_weights(
    space: ElasticSpace, trained: nn.Module
) -> None:
    teacher = teacher_of(space, TrainConfig(epochs=1))
    assert teacher is not None
    assert teacher.input_shape == SHAPE
    assert not teacher.network.training
    assert not any(parameter.requires_grad for parameter in teacher.network.parameters())
    images = torch.randn(4, *SHAPE)
    torch.testing.assert_close(teacher.network(images), trained(images), rtol=1e-4, atol=1e-4)


class Certain(nn.Module):
    """Network that predicts class 3 for every image."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros(len(images), 10).index_fill(1, torch.tensor([3]), 9.0)


def test_supernet_step_distils_the_teacher_into_every_network(
    space: ElasticSpace, digits_task: Classification, few_digits: ImageData
) -> None:
    supernet = space.supernet().eval()
    images, targets = (torch.from_numpy(part) for part in few_digits.train.take(range(30)))
    teacher = Teacher(Certain(), SHAPE)
    step = SupernetStep(supernet, digits_task, "sandwich", 0, 1.0, teacher=teacher)
    first, last = step(Batch(images, targets), StepContext(random.Random(0)))
    taught = Certain()(images)
    with torch.no_grad():
        for loss, network in ((first, space.largest()), (last, space.smallest())):
            supernet.activate(network)
            outputs = supernet(digits_task.preprocessing.at(8, 8)(images))
            expected = float(digits_task.distillation_loss(outputs, taught))
            assert loss == pytest.approx(expected, rel=1e-4)


class Counting(nn.Module):
    """Network whose outputs follow the brightness of an image; it counts the images it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        return images.mean((1, 2, 3))[:, None] * torch.arange(10.0)


def test_prepared_teacher_runs_once_per_image_despite_augmentation(
    digits_task: Classification, few_digits: ImageData
) -> None:
    class Listening(NetworkStep):
        def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
            assert self.teacher is not None
            assert batch.rows is not None
            said = [
                self.teacher.says(digits_task, part, moment) for part in batch.parts(moment.parts)
            ]
            plain, _ = few_digits.train.take(batch.rows.numpy())
            expected = Counting()(digits_task.preprocessing.at(8, 8)(torch.from_numpy(plain)))
            torch.testing.assert_close(torch.cat(said), expected, rtol=1e-3, atol=1e-3)
            return super().__call__(batch, moment)

    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    counting = Counting()
    teacher = Teacher(counting, SHAPE).prepared("plain", digits_task, few_digits.train)
    step = Listening(network, digits_task, SHAPE, teacher)
    config = TrainConfig(
        epochs=3, batch_size=30, accumulate=4, shift_pixels=2, flip=True, cutout=0.3, workers=0
    )
    fit(network, step, few_digits.train, config, 0)
    assert int(counting.asked) == len(few_digits.train)


def test_network_step_weighs_the_losses_of_labels_and_teacher(
    trained: nn.Module, digits_task: Classification, few_digits: ImageData
) -> None:
    images, targets = (torch.from_numpy(part) for part in few_digits.train.take(range(30)))
    losses = [
        NetworkStep(trained, digits_task, SHAPE, Teacher(Certain(), SHAPE), weight)(
            Batch(images, targets), StepContext(random.Random(0))
        )[0]
        for weight in (0.0, 0.25, 1.0)
    ]
    assert (
        losses[0]
        == NetworkStep(trained, digits_task, SHAPE)(
            Batch(images, targets), StepContext(random.Random(0))
        )[0]
    )
    assert losses[1] == pytest.approx(0.75 * losses[0] + 0.25 * losses[2], rel=1e-4)
    assert losses[2] > losses[0]


@pytest.mark.slow
def test_short_distillation_improves_small_networks_and_keeps_large_ones(
    space: ElasticSpace, digits_task: Classification, few_digits: ImageData, tmp_path: Path
) -> None:
    def right(network: nn.Module) -> float:
        recalibrate(network, digits_task, few_digits.train, SHAPE)
        return score(network, digits_task, few_digits.test, SHAPE, "test").values["accuracy"]

    def tuned(teacher: str, sees: str = "augmented") -> tuple[float, float]:
        config = TrainConfig(epochs=3, batch_size=30, workers=0, teacher=teacher, teacher_sees=sees)
        folder = tmp_path / teacher / sees
        run = SupernetTraining(space, digits_task, few_digits, config, 0, "run", folder)
        supernet = space.supernet()
        supernet.shared.load_state_dict(load_weights(train_supernet(run)))
        return right(supernet.extract(space.smallest())), right(supernet.extract(space.largest()))

    before = right(space.build(space.smallest())), right(space.build(space.largest()))
    without = tuned("largest")
    for sees in ("augmented", "plain"):
        small, large = tuned("original", sees)
        assert small > before[0] + 0.1
        assert large >= before[1] - 0.02
        assert small >= without[0] - 0.02
        assert large >= without[1] - 0.02


def test_teacher_of_refuses_a_missing_original_and_unknown_options(
    small_space: MobileNetSpace,
) -> None:
    config = TrainConfig(epochs=1)
    assert teacher_of(small_space, config) is None
    with pytest.raises(ConfigError, match=r"starts with random weights; give space\.weights"):
        teacher_of(small_space, replace(config, teacher="original"))
    with pytest.raises(ConfigError, match=r"unknown train\.teacher 'originl'"):
        TrainConfig(epochs=1, teacher="originl")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="here the teacher is the largest network while it is trained"
    ):
        teacher_of(small_space, replace(config, teacher_sees="plain"))
    with pytest.raises(ConfigError, match=r"unknown train\.teacher_sees 'plan'"):
        TrainConfig(epochs=1, teacher_sees="plan")  # type: ignore[arg-type]


def test_teacher_of_returns_none_for_the_largest_network(space: ElasticSpace) -> None:
    assert teacher_of(space, TrainConfig(epochs=1, teacher="largest")) is None


def test_distillation_of_features_brings_layers_closer_to_the_teacher(
    trained: nn.Module, digits_task: Classification, few_digits: ImageData
) -> None:
    images, _ = few_digits.train.take(range(30))
    inputs = digits_task.preprocessing(images)
    distances = {}
    for features in (0.0, 10.0):
        torch.manual_seed(0)
        student = copy.deepcopy(trained)
        with torch.no_grad():
            for weight in student.parameters():
                weight += 0.3 * weight.std(correction=0) * torch.randn_like(weight)
        config = TrainConfig(epochs=5, batch_size=30, workers=0)
        step = NetworkStep.of(
            student, digits_task, SHAPE, config, Teacher(trained, SHAPE), features
        )
        fit(student, step, few_digits.train, config, 0)
        with torch.no_grad(), recorded_features(student.eval()) as ours:
            student(inputs)
        with torch.no_grad(), recorded_features(trained) as theirs:
            trained(inputs)
        distances[features] = float(feature_loss(ours, theirs))
    assert 0 < distances[10.0] < 0.7 * distances[0.0]
    assert not any(module._forward_hooks for module in trained.modules())


def test_features_of_other_shapes_have_no_loss() -> None:
    """A step at reduced resolution has smaller maps than the teacher, which sees whole images."""
    assert feature_loss({"a": torch.ones(2, 3)}, {"a": torch.ones(2, 4)}) == 0
    assert feature_loss({"a": torch.ones(2, 3)}, {"a": torch.full((2, 3), 2.0)}) == 0.25
