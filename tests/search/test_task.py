from __future__ import annotations

import math
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError, DataError
from hwnas.plugin import build, resolve
from hwnas.search.data import DataConfig, ImageData, load_data
from hwnas.search.task import TASKS, Classification, Task, classification, smoothed

# Each task that must conform: what a recipe would name as data.source and as task.name.
TASKS_AND_DATA = [("digits", "classification"), ("ink_centre:blots", "ink_centre:task")]


@pytest.fixture(autouse=True)
def own_modules_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(params=TASKS_AND_DATA, ids=[name for _, name in TASKS_AND_DATA])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Task, ImageData]:
    source, name = request.param
    data = load_data(DataConfig(source), tmp_path, 0, tmp_path)
    return build("task", resolve("task", name, TASKS), {}, data=data), data


class TestConformance:
    """What trainer, evaluator and export rely on, for every task."""

    def test_describes_itself(self, case: tuple[Task, ImageData]) -> None:
        task, _ = case
        assert task.name
        assert task.metrics
        assert len({metric.name for metric in task.metrics}) == len(task.metrics)
        for metric in task.metrics:
            assert metric.direction in ("maximize", "minimize")
            assert metric.unit
        assert len(task.meaning.labels) in (0, task.outputs)

    def test_prepares_images_at_their_own_size(self, case: tuple[Task, ImageData]) -> None:
        task, data = case
        images, _ = data.train.take(range(len(data.train)))
        batch = task.preprocessing(images)
        height, width, channels = data.image_shape
        assert batch.shape == (len(images), channels, height, width)
        assert batch.mean().item() == pytest.approx(0, abs=0.05)
        assert batch.std().item() == pytest.approx(1, abs=0.05)

    def test_a_linear_model_learns_it(self, case: tuple[Task, ImageData]) -> None:
        task, data = case
        images, targets = data.train.take(range(min(len(data.train), 200)))
        inputs, wanted = task.preprocessing(images).flatten(1), torch.from_numpy(targets)
        torch.manual_seed(0)
        model = torch.nn.Linear(inputs.shape[1], task.outputs)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        before = self._primary(task, model(inputs), wanted)
        for _ in range(60):
            loss = task.loss(model(inputs), wanted)
            assert loss.shape == ()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after = self._primary(task, model(inputs), wanted)
        assert after > before if task.metrics[0].direction == "maximize" else after < before

    def _primary(self, task: Task, outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return task.scores(outputs, targets)[task.metrics[0].name].mean().item()

    def test_scores_are_one_number_an_image(self, case: tuple[Task, ImageData]) -> None:
        task, data = case
        targets = torch.from_numpy(data.validation.targets)
        outputs = torch.randn(len(targets), task.outputs)
        scores = task.scores(outputs, targets)
        assert set(scores) == {metric.name for metric in task.metrics}
        parts = task.scores(outputs[:1], targets[:1])
        for name, values in scores.items():
            assert values.shape == (len(targets),)
            assert values.is_floating_point()
            assert values[0] == pytest.approx(parts[name][0])

    def test_distillation_pulls_towards_the_teacher_only(
        self, case: tuple[Task, ImageData]
    ) -> None:
        task, _ = case
        teacher = torch.randn(8, task.outputs, requires_grad=True)
        student = torch.randn(8, task.outputs, requires_grad=True)
        loss = task.distillation_loss(student, teacher)
        loss.backward()
        assert loss.shape == ()
        assert loss > 0
        assert teacher.grad is None
        assert student.grad is not None
        nearer = student.detach() - 0.1 * student.grad
        assert task.distillation_loss(nearer, teacher) < loss
        assert task.distillation_loss(teacher.detach(), teacher).item() == pytest.approx(
            0, abs=1e-6
        )

    def test_survives_pickling(self, case: tuple[Task, ImageData]) -> None:
        task, _ = case
        assert pickle.loads(pickle.dumps(task)) == task


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    folder = tmp_path_factory.mktemp("cache")
    return load_data(DataConfig("digits"), folder, 0, folder)


def test_classification_takes_classes_and_statistics_from_the_data(digits: ImageData) -> None:
    task = classification(digits)
    assert task.outputs == 10
    assert task.meaning.labels == tuple("0123456789")
    assert task.preprocessing.mean == digits.channel_mean
    assert [metric.name for metric in task.metrics] == ["accuracy"]


def test_accuracy_counts_the_right_ones(digits: ImageData) -> None:
    outputs = torch.eye(10)[[3, 1, 4, 1]]
    scores = classification(digits).scores(outputs, torch.tensor([3, 1, 4, 5]))
    assert scores["accuracy"].tolist() == [1, 1, 1, 0]


def test_smoothed_loss_of_uniform_outputs_is_log_of_the_classes(digits: ImageData) -> None:
    loss = classification(digits, label_smoothing=0.3).loss(torch.zeros(4, 10), torch.arange(4))
    assert loss.item() == pytest.approx(math.log(10))


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6))
def test_distillation_loss_is_the_divergence_by_its_definition(values: list[float]) -> None:
    logits = torch.tensor(values).view(2, 1, 3)
    teacher, student = logits[0].softmax(1), logits[1].softmax(1)
    expected = (teacher * (teacher / student).log()).sum().item()
    task = Classification(("a", "b", "c"), preprocessing=None)  # type: ignore[arg-type]
    loss = task.distillation_loss(logits[1], logits[0]).item()
    assert loss == pytest.approx(expected, abs=1e-5)
    assert loss >= -1e-6


def test_losses_are_float32_for_half_precision_outputs(digits: ImageData) -> None:
    task, outputs = classification(digits), torch.randn(4, 10).half()
    assert task.loss(outputs, torch.arange(4)).dtype == torch.float32
    assert task.distillation_loss(outputs, outputs).dtype == torch.float32


def test_options_of_a_recipe_reach_a_task(digits: ImageData, tmp_path: Path) -> None:
    factory = resolve("task", "classification", TASKS)
    assert build("task", factory, {"label_smoothing": 0.2}, data=digits).label_smoothing == 0.2
    own = load_data(DataConfig("ink_centre:blots"), tmp_path, 0, tmp_path)
    factory = resolve("task", "ink_centre:task", TASKS)
    assert build("task", factory, {"radius": 0.5}, data=own).radius == 0.5


def test_training_may_smooth_labels_in_another_way(digits: ImageData) -> None:
    task = classification(digits, label_smoothing=0.1)
    assert smoothed(task, None) is task
    sharp = smoothed(task, 0.0)
    outputs, targets = 9 * torch.eye(10), torch.arange(10)
    assert sharp.loss(outputs, targets) < task.loss(outputs, targets)
    assert sharp.scores(outputs, targets)["accuracy"].all()


def test_a_task_without_labels_has_none_to_smooth(tmp_path: Path) -> None:
    data = load_data(DataConfig("ink_centre:blots"), tmp_path, 0, tmp_path)
    task = build("task", resolve("task", "ink_centre:task", TASKS), {}, data=data)
    with pytest.raises(ConfigError, match=r"task ink-centre has no labels to smooth; leave it out"):
        smoothed(task, 0.1)


def test_refuses_smoothing_out_of_range(digits: ImageData) -> None:
    with pytest.raises(ConfigError, match=r"label_smoothing is 1.0; expected at least 0 and below"):
        classification(digits, label_smoothing=1.0)


def test_an_unknown_option_is_named(digits: ImageData) -> None:
    with pytest.raises(ConfigError, match="did you mean 'label_smoothing'"):
        build("task", classification, {"label_smooting": 0.1}, data=digits)


def test_classification_refuses_values(tmp_path: Path) -> None:
    data = load_data(DataConfig("ink_centre:blots"), tmp_path, 0, tmp_path)
    with pytest.raises(DataError, match="targets are values, not classes"):
        classification(data)
