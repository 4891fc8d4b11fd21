from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch

from hwnas.errors import ConfigError, DivergedError, RunError, StorageError
from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.scoring import recalibrate, score
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import (
    Batch,
    StepContext,
    SupernetStep,
    SupernetTraining,
    TrainConfig,
    TrainingPoint,
    load_weights,
    read_rows,
    supernet,
    train_supernet,
)
from hwnas.search_spaces import MobileNetSpace

CONFIG = TrainConfig(epochs=2, batch_size=30, learning_rate=0.01, sampling="sandwich", workers=0)


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent)


@pytest.fixture
def training(
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    tmp_path: Path,
) -> SupernetTraining:
    return SupernetTraining(
        small_space, digits_task, few_digits, CONFIG, 0, "run", tmp_path / "supernet"
    )


def changed(training: SupernetTraining, **config: object) -> SupernetTraining:
    return dataclasses.replace(training, config=dataclasses.replace(CONFIG, **config))


def same(one: Path, other: Path, tolerance: float = 0.0) -> bool:
    a, b = load_weights(one), load_weights(other)
    return a.keys() == b.keys() and all(
        torch.allclose(a[n], b[n], rtol=tolerance, atol=tolerance) for n in a
    )


@pytest.mark.slow
def test_train_supernet_learns_the_digits(training: SupernetTraining) -> None:
    rows: list[TrainingPoint] = []
    weights = train_supernet(changed(training, epochs=25, learning_rate=0.02), rows.append)
    supernet = training.space.supernet()
    supernet.shared.load_state_dict(load_weights(weights))
    assert rows[-1].loss < rows[0].loss
    for architecture in (training.space.largest(), training.space.smallest()):
        network = supernet.extract(architecture)
        recalibrate(network, training.task, training.data.train, (1, 8, 8))
        found = score(network, training.task, training.data.test, (1, 8, 8), "test")
        assert found.values["accuracy"] > 0.6
    kept = {file.name for file in training.folder.iterdir()}
    assert kept == {"weights.safetensors", "checkpoint.safetensors", "training.jsonl"}


@pytest.mark.slow
def test_train_supernet_weights_depend_on_the_seed(
    training: SupernetTraining, tmp_path: Path
) -> None:
    made = [
        train_supernet(dataclasses.replace(training, seed=seed, folder=tmp_path / name))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert same(made[0], made[1])
    assert not same(made[0], made[2])


@pytest.mark.slow
def test_train_supernet_keeps_rows_after_a_truncated_line(training: SupernetTraining) -> None:
    training.folder.mkdir(parents=True, exist_ok=True)
    (training.folder / "training.jsonl").write_text('{"step": 0, "ep')
    rows: list[TrainingPoint] = []
    train_supernet(training, rows.append)
    assert read_rows(training.folder) == rows


def test_train_supernet_leaves_a_finished_training_unchanged(training: SupernetTraining) -> None:
    weights = train_supernet(training)
    rows = read_rows(training.folder)
    before = weights.read_bytes()
    assert train_supernet(training, lambda row: pytest.fail("a step was made")) == weights
    assert weights.read_bytes() == before
    assert read_rows(training.folder) == rows


def test_train_supernet_refuses_the_checkpoint_of_another_run(training: SupernetTraining) -> None:
    train_supernet(training)
    with pytest.raises(RunError, match="is the checkpoint of another training"):
        train_supernet(dataclasses.replace(training, run="other"))


def test_train_supernet_uses_a_users_sampling_rule(
    training: SupernetTraining, tmp_path: Path
) -> None:
    own = train_supernet(changed(training, sampling="own_parts:two_extremes"))
    other = dataclasses.replace(changed(training, random_subnets=0), folder=tmp_path / "other")
    assert same(own, train_supernet(other))  # a sandwich with nothing in between


def test_train_supernet_names_an_unknown_users_sampling_rule(training: SupernetTraining) -> None:
    with pytest.raises(ConfigError, match=r"train\.sampling 'own_parts:nothing'.* no 'nothing'"):
        train_supernet(changed(training, sampling="own_parts:nothing"))


def test_train_supernet_stops_if_the_loss_is_not_a_number(training: SupernetTraining) -> None:
    with pytest.raises(DivergedError, match="the training loss is not a number at step"):
        train_supernet(changed(training, learning_rate=1e30, warmup=0.0))
    assert not (training.folder / "weights.safetensors").exists()


def test_train_supernet_saves_the_moving_average_of_the_weights(training: SupernetTraining) -> None:
    averaged = load_weights(train_supernet(changed(training, ema=0.9)))
    state = load_weights(training.folder / "checkpoint.safetensors")
    name = "stem.conv.weight" if "stem.conv.weight" in averaged else next(iter(averaged))
    assert torch.equal(averaged[name], state[f"average.shared.{name}"])
    assert not torch.equal(averaged[name], state[f"network.shared.{name}"])
    again = load_weights(train_supernet(changed(training, ema=0.9)))  # there is nothing to do
    assert all(torch.equal(averaged[name], again[name]) for name in averaged)


def test_training_curve_notes_a_memory_error(
    training: SupernetTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hungry(SupernetStep):
        def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
            if moment.step == 3 and moment.parts == 1:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return super().__call__(batch, moment)

    monkeypatch.setattr(supernet, "SupernetStep", Hungry)
    told: list[TrainingPoint] = []
    train_supernet(training, told.append)
    notes = [row.note for row in read_rows(training.folder) if row.note]
    assert notes == [row.note for row in told if row.note]
    assert len(notes) == 1
    assert "out of memory at step 3 with 30 images at a time; from here on 15" in notes[0]


def test_train_supernet_names_a_folder_that_cannot_be_written(training: SupernetTraining) -> None:
    training.folder.parent.joinpath("file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*supernet"):
        train_supernet(
            dataclasses.replace(training, folder=training.folder.parent / "file" / "supernet")
        )


class TestTrainingCurve:
    def test_ends_with_the_last_step_of_a_short_training(self, training: SupernetTraining) -> None:
        train_supernet(training)
        steps = len(training.data.train) // training.config.batch_size
        assert training.config.epochs is not None
        assert read_rows(training.folder)[-1].step == training.config.epochs * steps - 1

    def line(self, step: int, loss: float = 1.0) -> str:
        return (
            f'{{"step": {step}, "epoch": 0.0, "seconds": {step}.0, "loss": {loss}, '
            f'"loss_smallest": 0.0, "learning_rate": 0.1, "share": 0.5}}\n'
        )

    def test_contains_repeated_steps_once(self, tmp_path: Path) -> None:
        lines = [self.line(0), self.line(5), self.line(9), self.line(4, 2.0), self.line(8)]
        (tmp_path / "training.jsonl").write_text("".join(lines))
        rows = read_rows(tmp_path)
        assert [row.step for row in rows] == [0, 4, 8]
        assert rows[1].loss == 2.0

    def test_leaves_out_a_truncated_line(self, tmp_path: Path) -> None:
        (tmp_path / "training.jsonl").write_text(self.line(0) + self.line(5)[:40])
        assert [row.step for row in read_rows(tmp_path)] == [0]

    def test_is_empty_before_the_training(self, tmp_path: Path) -> None:
        assert read_rows(tmp_path) == []


@pytest.mark.ray
@pytest.mark.slow
class TestTrainingOnRay:
    @pytest.mark.parametrize(
        ("workers", "sampling"),
        [
            (2, "sandwich"),
            pytest.param(1, "sandwich", marks=pytest.mark.exhaustive),
            pytest.param(2, "uniform", marks=pytest.mark.exhaustive),
        ],
    )
    def test_workers_train_the_same_weights_as_one_process(
        self,
        ray_session: None,
        training: SupernetTraining,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        workers: int,
        sampling: str,
    ) -> None:
        """Without normalisation and augmentation, halves have the mean gradient of the whole."""
        from own_parts import Layers

        space = Layers()
        drawn = [space.sample(random.Random(f"0-{i}")).as_dict()["depth"] for i in range(10)]
        assert len(set(drawn)) == 3  # blocks are skipped in some steps and not in others
        monkeypatch.chdir(tmp_path)  # not where the workers run
        training = dataclasses.replace(
            changed(training, workers=workers, shift_pixels=0, sampling=sampling),
            space=space,
            folder=Path("there"),
        )
        rows: list[TrainingPoint] = []
        weights = train_supernet(training, rows.append)
        assert read_rows(training.folder)
        assert all(row in read_rows(training.folder) for row in rows)
        alone = dataclasses.replace(training.config, workers=0)
        here = train_supernet(dataclasses.replace(training, config=alone, folder=tmp_path / "here"))
        assert same(weights, here, 1e-4)

    @pytest.mark.exhaustive
    def test_workers_choose_the_same_attentive_networks(
        self, ray_session: None, training: SupernetTraining
    ) -> None:
        """By its own losses, each worker would choose other networks and wait for ever."""
        config = {"sampling": "attentive-worst", "random_subnets": 2, "accumulate": 2}
        weights = load_weights(train_supernet(changed(training, workers=2, epochs=3, **config)))
        assert all(tensor.isfinite().all() for tensor in weights.values())

    def test_workers_stop_together_if_one_diverges(
        self, ray_session: None, training: SupernetTraining
    ) -> None:
        with pytest.raises(DivergedError, match="not a number at step") as caught:
            train_supernet(changed(training, workers=2, learning_rate=1e30, warmup=0.0))
        assert type(caught.value) is DivergedError
        assert caught.value.learning_rate == pytest.approx(1e30, rel=0.2)
