"""Early stopping of the trainings of single networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import NetworkStep, TrainConfig, TrainingPoint, fit
from hwnas.search.training.averaging import MovingAverage
from hwnas.search.training.early_stopping import EarlyStopping

CONFIG = TrainConfig(epochs=6, patience=2, batch_size=50, workers=0, schedule="constant")
Validate = Callable[[nn.Module], float]


class Killed(Exception):
    """Simulated end of the process."""


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(1, 4))
def test_training_is_over_after_the_patience_and_keeps_the_first_of_the_best(
    scores: list[int], patience: int
) -> None:
    network = nn.Linear(1, 1)
    each: Iterator[int] = iter(scores)
    stopping = EarlyStopping(network, lambda _: float(next(each)), patience)
    looked: list[int] = []
    for epoch, found in enumerate(scores, start=1):
        with torch.no_grad():
            network.weight.fill_(float(epoch))
        stopping.look(epoch, None)
        looked.append(found)
        since = len(looked) - 1 - looked.index(max(looked))
        assert stopping.over(epoch) == (since >= patience)
        if stopping.over(epoch):
            break
    stopping.give()
    assert network.weight.item() == 1 + looked.index(max(looked))


def test_validation_sees_the_moving_average_and_leaves_the_training_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    average = MovingAverage(network, 0.5)
    with torch.no_grad():
        network[0].weight.fill_(7.0)
    average.tensors["0.weight"].fill_(3.0)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    seen: list[float] = []

    def validate(judged: nn.Module) -> float:
        seen.append(judged[0].weight.item())
        judged.eval()
        judged[1].running_mean.fill_(99.0)
        return 1.0

    EarlyStopping(network, validate, 1).look(1.0, average)
    assert seen == [3.0]
    assert network.training
    assert all(torch.equal(before[name], each) for name, each in network.state_dict().items())


class Session:
    """Trainings of one network, whose scores are given by the number of the epoch."""

    def __init__(self, task: Classification, data: ImageData, file: Path) -> None:
        self._task, self._data, self._file = task, data, file

    def train(
        self, config: TrainConfig, scores: list[float], stop: int = -1
    ) -> tuple[list[TrainingPoint], dict[str, Tensor]]:
        """Train to the end, or until a step; return the steps and the weights."""
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
        step = NetworkStep(network, self._task, (1, 8, 8))
        rows: list[TrainingPoint] = []

        def on_row(row: TrainingPoint) -> None:
            if row.step == stop:
                raise Killed
            rows.append(row)

        def validate(_: nn.Module) -> float:
            return scores.pop(0)

        split = self._data.train
        fit(
            *(network, step, split, config, 0),
            checkpoint=self._file,
            run="run",
            validate=validate,
            on_row=on_row,
        )
        return rows, network.state_dict()


@pytest.fixture
def session(digits_task: Classification, few_digits: ImageData, tmp_path: Path) -> Session:
    return Session(digits_task, few_digits, tmp_path / "checkpoint.safetensors")


def test_training_ends_early_with_its_best_weights(session: Session) -> None:
    rows, weights = session.train(CONFIG, [0.5, 0.7, 0.6, 0.7, 0.9, 0.9])
    assert 3.5 < rows[-1].epoch < 4
    assert rows[-1].share < 0.7
    again, finished = session.train(CONFIG, [])
    assert again == []
    assert all(torch.equal(weights[name], each) for name, each in finished.items())


def test_weights_are_those_of_the_best_epoch(session: Session, tmp_path: Path) -> None:
    _, weights = session.train(CONFIG, [0.5, 0.7, 0.6, 0.7])
    (tmp_path / "checkpoint.safetensors").unlink()
    _, second = session.train(replace(CONFIG, epochs=2, patience=None), [])
    assert all(torch.equal(weights[name], each) for name, each in second.items())


def test_scores_that_only_rise_change_nothing(session: Session, tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=2.5, ema=0.5)
    rows, weights = session.train(config, [0.1, 0.2, 0.3])
    (tmp_path / "checkpoint.safetensors").unlink()
    plain, expected = session.train(replace(config, patience=None), [])
    assert [row.loss for row in rows] == [row.loss for row in plain]
    assert all(torch.equal(weights[name], each) for name, each in expected.items())


def test_interrupted_training_remembers_the_best_epoch(session: Session, tmp_path: Path) -> None:
    config = replace(CONFIG, checkpoint_seconds=1e-9)
    scores = [0.5, 0.7, 0.6, 0.7]
    whole, expected = session.train(config, list(scores))
    (tmp_path / "checkpoint.safetensors").unlink()
    middle = next(row.step for row in whole if row.epoch > 2.3)
    with pytest.raises(Killed):
        session.train(config, list(scores), stop=middle)
    rows, weights = session.train(config, scores[2:])
    assert rows[-1].step == whole[-1].step
    assert all(torch.equal(weights[name], each) for name, each in expected.items())


def test_training_without_validation_ends_with_its_budget(
    digits_task: Classification, few_digits: ImageData
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    rows: list[TrainingPoint] = []
    step = NetworkStep(network, digits_task, (1, 8, 8))
    fit(network, step, few_digits.train, CONFIG, 0, on_row=rows.append)
    assert rows[-1].share > 0.9
