from __future__ import annotations

import math
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics
from torch.nn import functional

from hwnas.errors import ConfigError, DataError
from hwnas.hashing import content_hash, differing_fields
from hwnas.plugin import build
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.classification import Classification, classification
from hwnas.search.tasks.registry import TASKS
from hwnas.search.tasks.split_metrics import SplitMetrics
from hwnas.search.tasks.task import Task, smoothed

# Each task under test: the data.source and the task.name of a recipe.
TASKS_AND_DATA = [
    ("digits", "classification"),
    ("ink_centre:blots", "ink_centre:task"),
    ("painted:strokes", "segmentation"),
    ("ink_centre:blots", "regression"),
    ("painted:colours", "multilabel"),
    ("painted:colours", "multi-task"),
    ("painted:squares", "detection"),
    ("painted:pictures", "super-resolution"),
    (f"text:{__file__}", "language-model"),
]


@pytest.fixture(autouse=True)
def own_modules_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(params=TASKS_AND_DATA, ids=[name for _, name in TASKS_AND_DATA])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Task, ImageData]:
    source, name = request.param
    data = load_data(DataConfig(source), tmp_path, 0, tmp_path)
    return build("task", TASKS.find(name), {}, data=data), data


class ForEachPixel(torch.nn.Linear):
    """Linear model that is applied to each pixel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def linear_model(task: Task, data: ImageData) -> torch.nn.Module:
    if task.meaning.is_map:
        return ForEachPixel(data.image_shape[2], task.outputs)
    pixels = math.prod(data.image_shape)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(pixels, task.outputs))


def random_outputs(task: Task, n: int) -> torch.Tensor:
    maps = (4, 6) if task.meaning.is_map else ()
    if task.meaning.kind == "next_byte_scores":
        maps = (1, task.preprocessing.width)
    return torch.randn(n, task.outputs, *maps)


def measured(
    task: Task, outputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, tuple[float, float]]:
    """Return value and standard error of each metric, from two batches if there are images."""
    collected = SplitMetrics(task)
    for rows in torch.arange(len(targets)).tensor_split(2):
        collected.add(outputs[rows], targets[rows])
    return {name: (each.value, each.standard_error) for name, each in collected.values().items()}


class TestConformance:
    """Requirements of trainer, evaluator and export, for every task."""

    def test_task_has_a_name_metrics_and_labels(self, case: tuple[Task, ImageData]) -> None:
        task, _ = case
        assert task.name
        assert task.metrics
        assert len({metric.name for metric in task.metrics}) == len(task.metrics)
        for metric in task.metrics:
            assert metric.direction in ("maximize", "minimize")
            assert metric.unit
        assert task.meaning.fits(random_outputs(task, 3).shape)

    def test_preprocessing_normalises_images_at_their_own_size(
        self, case: tuple[Task, ImageData]
    ) -> None:
        task, data = case
        images, _ = data.train.take(range(len(data.train)))
        batch = task.preprocessing(images)
        height, width, channels = data.image_shape
        assert batch.shape == (len(images), channels, height, width)
        if data.kind == "tokens":
            np.testing.assert_allclose(batch.numpy(), images.transpose(0, 3, 1, 2), atol=1e-4)
            return
        assert batch.mean().item() == pytest.approx(0, abs=0.05)
        assert batch.std().item() == pytest.approx(1, abs=0.05)

    def test_linear_model_learns_the_task(self, case: tuple[Task, ImageData]) -> None:
        task, data = case
        images, targets = data.train.take(range(min(len(data.train), 200)))
        inputs, wanted = task.preprocessing(images), torch.from_numpy(targets)
        torch.manual_seed(0)
        model = linear_model(task, data)
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
        return measured(task, outputs, targets)[task.metrics[0].name][0]

    def test_statistics_are_computed_per_image(self, case: tuple[Task, ImageData]) -> None:
        task, data = case
        targets = torch.from_numpy(data.validation.targets)
        outputs = random_outputs(task, len(targets))
        together = task.statistics(outputs, targets)
        alone = [task.statistics(outputs[i : i + 1], targets[i : i + 1]) for i in range(3)]
        for name, entries in together.items():
            assert len(entries) == len(targets)
            assert entries.is_floating_point()
            assert torch.allclose(entries[:3], torch.cat([one[name] for one in alone]))

    def test_metrics_are_numbers_with_standard_errors(self, case: tuple[Task, ImageData]) -> None:
        task, data = case
        targets = torch.from_numpy(data.validation.targets)
        found = measured(task, random_outputs(task, len(targets)), targets)
        assert set(found) == {metric.name for metric in task.metrics}
        for value, error in found.values():
            assert math.isfinite(value)
            assert 0 <= error < max(1, abs(value))

    def test_distillation_loss_moves_only_the_student(self, case: tuple[Task, ImageData]) -> None:
        task, _ = case
        teacher = random_outputs(task, 8).requires_grad_()
        student = random_outputs(task, 8).requires_grad_()
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

    def test_task_survives_pickling(self, case: tuple[Task, ImageData]) -> None:
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


def test_accuracy_counts_correct_predictions(digits: ImageData) -> None:
    outputs = torch.eye(10)[[3, 1, 4, 1]]
    task = classification(digits)
    hits = task.statistics(outputs, torch.tensor([3, 1, 4, 5]))
    assert hits["accuracy"].tolist() == [1, 1, 1, 0]
    assert measured(task, outputs, torch.tensor([3, 1, 4, 5]))["accuracy"] == (0.75, 0.25)


ALL_METRICS = (
    "accuracy",
    "top5_accuracy",
    "balanced_accuracy",
    "macro_f1",
    "auroc",
    "average_precision",
)


@given(
    labels=st.lists(st.integers(0, 8), min_size=2, max_size=40),
    classes=st.integers(6, 9),
    seed=st.integers(0, 99),
)
def test_classification_metrics_equal_those_of_scikit_learn(
    labels: list[int], classes: int, seed: int
) -> None:
    names = tuple("abcdefghi"[:classes])
    task = Classification(names, None, metric_names=ALL_METRICS)  # type: ignore[arg-type]
    targets = torch.tensor(labels) % classes
    outputs = torch.randn(len(labels), classes, generator=torch.Generator().manual_seed(seed))
    found = measured(task, outputs, targets)
    true, predicted = targets.numpy(), outputs.argmax(dim=1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that are predicted only
        expected = {
            "accuracy": metrics.accuracy_score(true, predicted),
            "top5_accuracy": metrics.top_k_accuracy_score(
                true, outputs.numpy(), k=5, labels=range(classes)
            ),
            "balanced_accuracy": metrics.balanced_accuracy_score(true, predicted),
            "macro_f1": metrics.f1_score(true, predicted, average="macro"),
        }
    one_hot, scores = np.eye(classes)[true], outputs.softmax(dim=1).double().numpy()
    able = [k for k in range(classes) if 0 < one_hot[:, k].sum() < len(true)]
    for name, curve in (
        ("auroc", metrics.roc_auc_score),
        ("average_precision", metrics.average_precision_score),
    ):
        if able:
            expected[name] = curve(one_hot[:, able], scores[:, able], average="macro")
        else:
            assert math.isnan(found.pop(name)[0]), "one class only"
    assert {name: value for name, (value, _) in found.items()} == pytest.approx(expected)


def test_standard_errors_of_classification_metrics_are_those_of_new_samples() -> None:
    task = Classification(tuple("abcdef"), None, metric_names=ALL_METRICS)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    values: dict[str, list[float]] = {name: [] for name in ALL_METRICS}
    errors: dict[str, list[float]] = {name: [] for name in ALL_METRICS}
    for _ in range(200):
        targets = torch.randint(0, 36, (400,), generator=generator).float().sqrt().long()
        outputs = torch.randn(400, 6, generator=generator)
        outputs[torch.arange(400), targets] += 1.5
        found = measured(task, outputs, targets)
        for name, (value, error) in found.items():
            values[name].append(value)
            errors[name].append(error)
    for name in ALL_METRICS:
        assert fmean(errors[name]) == pytest.approx(stdev(values[name]), rel=0.2), name


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["acuracy"], "unknown task.metrics 'acuracy'; did you mean 'accuracy'"),
        ([], "expected one or more names, none twice"),
        (["accuracy", "accuracy"], "expected one or more names, none twice"),
    ],
)
def test_classification_refuses_metrics_that_it_does_not_have(
    digits: ImageData, names: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        classification(digits, metrics=names)


def test_classification_refuses_top5_for_five_classes() -> None:
    with pytest.raises(ConfigError, match="always 1 for 5 classes"):
        Classification(tuple("abcde"), None, metric_names=("top5_accuracy",))  # type: ignore[arg-type]


def test_classification_hash_does_not_depend_on_usual_metrics(digits: ImageData) -> None:
    """Results of runs that were made before there was a choice stay valid."""
    usual, other = classification(digits), classification(digits, metrics=["macro_f1"])
    assert "metric_names" not in differing_fields(usual)
    assert content_hash(usual) != content_hash(other)


def test_balanced_class_weights_count_every_class_alike(digits: ImageData) -> None:
    few = replace(digits, train=digits.train.first(40))
    counts = np.bincount(few.train.targets, minlength=10)
    assert len(set(counts)) > 1
    task = classification(few, label_smoothing=0.0, class_weights="balanced")
    outputs, targets = torch.randn(40, 10), torch.from_numpy(few.train.targets)
    each = functional.cross_entropy(outputs, targets, reduction="none")
    of_classes = [each[targets == name].mean().item() for name in range(10)]
    assert task.loss(outputs, targets).item() == pytest.approx(fmean(of_classes), rel=1e-5)
    same = classification(digits, label_smoothing=0.0, class_weights=[2.0] * 10)
    assert same.loss(outputs, targets).item() == pytest.approx(each.mean().item(), rel=1e-5)


@pytest.mark.parametrize("weights", [[1.0] * 9, [1.0] * 9 + [0.0], [1.0] * 9 + [-1.0]])
def test_classification_refuses_wrong_class_weights(
    digits: ImageData, weights: list[float]
) -> None:
    with pytest.raises(ConfigError, match="expected 'balanced', or a number above 0 for each of"):
        classification(digits, class_weights=weights)


def test_smoothed_loss_of_uniform_outputs_is_log_of_the_classes(digits: ImageData) -> None:
    loss = classification(digits, label_smoothing=0.3).loss(torch.zeros(4, 10), torch.arange(4))
    assert loss.item() == pytest.approx(math.log(10))


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6))
def test_distillation_loss_equals_the_kl_divergence_by_definition(values: list[float]) -> None:
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


def test_build_passes_options_to_a_task(digits: ImageData, tmp_path: Path) -> None:
    factory = TASKS.find("classification")
    assert build("task", factory, {"label_smoothing": 0.2}, data=digits).label_smoothing == 0.2
    own = load_data(DataConfig("ink_centre:blots"), tmp_path, 0, tmp_path)
    factory = TASKS.find("ink_centre:task")
    assert build("task", factory, {"radius": 0.5}, data=own).radius == 0.5


def test_smoothed_replaces_the_label_smoothing_of_a_task(digits: ImageData) -> None:
    task = classification(digits, label_smoothing=0.1)
    assert smoothed(task, None) is task
    sharp = smoothed(task, 0.0)
    outputs, targets = 9 * torch.eye(10), torch.arange(10)
    assert sharp.loss(outputs, targets) < task.loss(outputs, targets)
    assert sharp.statistics(outputs, targets)["accuracy"].all()


def test_smoothed_refuses_a_task_without_labels(tmp_path: Path) -> None:
    data = load_data(DataConfig("ink_centre:blots"), tmp_path, 0, tmp_path)
    task = build("task", TASKS.find("ink_centre:task"), {}, data=data)
    with pytest.raises(ConfigError, match=r"task ink-centre has no labels to smooth; leave it out"):
        smoothed(task, 0.1)


def test_classification_refuses_label_smoothing_out_of_range(digits: ImageData) -> None:
    with pytest.raises(ConfigError, match=r"label_smoothing is 1.0; expected at least 0 and below"):
        classification(digits, label_smoothing=1.0)


def test_build_names_an_unknown_option(digits: ImageData) -> None:
    with pytest.raises(ConfigError, match="did you mean 'label_smoothing'"):
        build("task", classification, {"label_smooting": 0.1}, data=digits)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("ink_centre:blots", "targets are values, not classes"),
        ("painted:strokes", "targets are masks, .* task.name = 'segmentation'"),
    ],
)
def test_classification_refuses_other_targets(source: str, message: str, tmp_path: Path) -> None:
    data = load_data(DataConfig(source), tmp_path, 0, tmp_path)
    with pytest.raises(DataError, match=message):
        classification(data)
