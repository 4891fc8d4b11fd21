from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hwnas.errors import ArtifactError, ConfigError, DeviceError, DivergedError, RunError
from hwnas.search.data.image_data import ImageData, Split
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import (
    Batch,
    NetworkStep,
    StepContext,
    SupernetStep,
    TrainConfig,
    TrainingPoint,
    fit,
)
from hwnas.search.training.checkpoint import load_weights
from hwnas.search.training.optimizers import check_layer_rates, make_optimizer
from hwnas.search.training.schedule import Schedule
from hwnas.search_spaces import MobileNetSpace, Supernet, recipe_space

SHAPE = (1, 8, 8)
CONFIG = TrainConfig(epochs=2, batch_size=25, workers=0, checkpoint_seconds=1e-9, flip=True)


class Killed(Exception):
    """Simulated end of the process."""


def killed_at(step: int) -> Callable[[TrainingPoint], None]:
    def on_row(row: TrainingPoint) -> None:
        if row.step == step:
            raise Killed

    return on_row


class Recorded:
    """Step that only records its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
        self.batches.append([hash(image.numpy().tobytes()) for image in batch.images])
        return 0.0, 0.0


class TestExactResume:
    def network(
        self, space: MobileNetSpace, task: Classification, config: TrainConfig = CONFIG
    ) -> tuple[nn.Module, NetworkStep]:
        torch.manual_seed(0)
        network = space.build(space.largest())
        return network, NetworkStep(network, task, SHAPE)

    def supernet(
        self, space: MobileNetSpace, task: Classification, config: TrainConfig = CONFIG
    ) -> tuple[nn.Module, SupernetStep]:
        torch.manual_seed(0)
        supernet = space.supernet()
        step = SupernetStep(
            supernet, task, config.sampling, distillation_loss=config.distillation_loss
        )
        return supernet, step

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            ("network", {}),
            ("network", {"ema": 0.9, "accumulate": 3, "precision": "bf16"}),
            ("supernet", {}),
            ("supernet", {"ema": 0.9, "accumulate": 2, "sampling": "fair"}),
            ("supernet", {"sampling": "progressive", "distillation_loss": "alpha"}),
            ("supernet", {"accumulate": 2, "sampling": "attentive-worst"}),
        ],
    )
    def test_equals_an_uninterrupted_training(
        self,
        kind: str,
        settings: dict[str, Any],
        dropout_space: MobileNetSpace,
        digits_task: Classification,
        few_digits: ImageData,
        tmp_path: Path,
    ) -> None:
        config = replace(CONFIG, **settings)
        made = partial(getattr(self, kind), config=config)
        files = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
        rows: list[TrainingPoint] = []
        network, step = made(dropout_space, digits_task)
        end = fit(
            network, step, few_digits.train, config, 0, checkpoint=files[0], on_row=rows.append
        )
        assert end.step == len(rows) == 12
        for last in (3, 8):
            other, step = made(dropout_space, digits_task)
            with pytest.raises(Killed):
                fit(
                    other,
                    step,
                    few_digits.train,
                    config,
                    0,
                    checkpoint=files[1],
                    on_row=killed_at(last),
                )
        again: list[TrainingPoint] = []
        other, step = made(dropout_space, digits_task)
        fit(other, step, few_digits.train, config, 0, checkpoint=files[1], on_row=again.append)
        assert [row.step for row in again] == [8, 9, 10, 11]
        assert [row.loss for row in again] == [row.loss for row in rows[8:]]
        whole, parts = (load_weights(file) for file in files)  # with the optimiser's state
        assert any(name.startswith("optimizer.") for name in whole)
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
        ends = network.state_dict(), other.state_dict()
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])

    def test_leaves_a_finished_training_unchanged(
        self,
        small_space: MobileNetSpace,
        digits_task: Classification,
        few_digits: ImageData,
        tmp_path: Path,
    ) -> None:
        file = tmp_path / "checkpoint.safetensors"
        first = fit(*self.network(small_space, digits_task), few_digits.train, CONFIG, 0,
                    checkpoint=file)  # fmt: skip
        content = file.read_bytes()
        again = fit(*self.network(small_space, digits_task), few_digits.train, CONFIG, 0,
                    checkpoint=file, on_row=killed_at(12))  # fmt: skip
        assert again.step == first.step
        assert file.read_bytes() == content

    def test_refuses_another_run_or_a_damaged_file(
        self,
        small_space: MobileNetSpace,
        digits_task: Classification,
        few_digits: ImageData,
        tmp_path: Path,
    ) -> None:
        file = tmp_path / "checkpoint.safetensors"
        network, step = self.network(small_space, digits_task)
        fit(network, step, few_digits.train, CONFIG, 0, checkpoint=file, run="a")
        with pytest.raises(RunError, match="checkpoint of another training"):
            fit(network, step, few_digits.train, CONFIG, 0, checkpoint=file, run="b")
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ArtifactError, match="is damaged"):
            fit(network, step, few_digits.train, CONFIG, 0, checkpoint=file, run="a")


class TestTrainingBudget:
    def test_epoch_contains_every_image_once(self, few_digits: ImageData) -> None:
        step = Recorded()
        config = TrainConfig(epochs=3, batch_size=25, shift_pixels=0, workers=0)
        fit(nn.Linear(1, 1), step, few_digits.train, config, 0)
        images, _ = few_digits.train.take(range(len(few_digits.train)))
        everything = sorted(hash(image.tobytes()) for image in images)
        epochs = [list(chain(*step.batches[i : i + 6])) for i in (0, 6, 12)]
        assert len(step.batches) == 18
        assert [sorted(epoch) for epoch in epochs] == [everything] * 3
        assert epochs[0] != epochs[1]

    def test_workers_share_each_batch(self, few_digits: ImageData) -> None:
        config = TrainConfig(epochs=1, batch_size=25, shift_pixels=0)
        parts = [Recorded(), Recorded(), Recorded()]
        fit(nn.Linear(1, 1), parts[2], few_digits.train, config, 0)
        for rank in (0, 1):
            for index in range(6):
                batch = Schedule(config, few_digits.train, 0).batch(index, rank, 2)
                parts[rank](batch, StepContext(random.Random()))
        for zero, one, whole in zip(*(part.batches for part in parts), strict=True):
            assert sorted(zero + one) == sorted(whole)

    @pytest.mark.parametrize("epochs", [0.5, 1, 0.01])
    def test_part_of_an_epoch_has_at_least_one_step(
        self, few_digits: ImageData, epochs: float
    ) -> None:
        step = Recorded()
        fit(nn.Linear(1, 1), step, few_digits.train, TrainConfig(epochs=epochs, batch_size=25), 0)
        assert len(step.batches) == max(1, round(6 * epochs))

    def test_budget_in_minutes_is_kept_also_across_resumes(
        self,
        small_space: MobileNetSpace,
        digits_task: Classification,
        few_digits: ImageData,
        tmp_path: Path,
    ) -> None:
        config = TrainConfig(budget_minutes=1 / 60, batch_size=25, workers=0)
        network = small_space.build(small_space.smallest())
        step = NetworkStep(network, digits_task, SHAPE)
        file, rows = tmp_path / "checkpoint.safetensors", []
        started = time.perf_counter()
        end = fit(network, step, few_digits.train, config, 0, checkpoint=file, on_row=rows.append)
        took = time.perf_counter() - started
        longest = max(b.seconds - a.seconds for a, b in pairwise(rows))
        assert 1 <= end.seconds < 1 + 2 * longest + 0.1
        assert took < end.seconds + 1
        assert len(rows) > 5
        again = fit(network, step, few_digits.train, config, 0, checkpoint=file)
        assert again.step == end.step

    def test_training_ends_at_the_earlier_of_epochs_and_minutes(
        self, few_digits: ImageData
    ) -> None:
        def rows(epochs: float, minutes: float) -> list[TrainingPoint]:
            config = TrainConfig(epochs=epochs, budget_minutes=minutes, batch_size=25)
            found: list[TrainingPoint] = []
            fit(nn.Linear(1, 1), Recorded(), few_digits.train, config, 0, on_row=found.append)
            return found

        assert len(rows(2, 100)) == 12
        cut_off = rows(1e6, 0.001)
        assert len(cut_off) < 6e6
        assert cut_off[-1].share > 0.5


class TestLearningRate:
    def test_rises_to_its_peak_and_falls_along_a_cosine(self, few_digits: ImageData) -> None:
        config = TrainConfig(epochs=100, batch_size=75, warmup=0.1, learning_rate=0.5)
        rows: list[TrainingPoint] = []
        fit(nn.Linear(1, 1), Recorded(), few_digits.train, config, 0, on_row=rows.append)
        rates = [row.learning_rate for row in rows]
        assert rates[0] == pytest.approx(0.05)
        assert rates[20] == max(rates) == 0.5
        assert rates[:21] == sorted(rates[:21])
        assert rates[20:] == sorted(rates[20:], reverse=True)
        assert rates[110] == pytest.approx(0.25)  # in the middle of the decay
        assert rates[-1] < 0.5 * (math.pi / 2 / 180) ** 2 * 1.01

    @pytest.mark.parametrize(("name", "rates"), [("linear", [1, 0.5, 0]), ("constant", [1, 1, 1])])
    def test_follows_the_schedule_after_the_warm_up(
        self, few_digits: ImageData, name: Any, rates: list[float]
    ) -> None:
        config = TrainConfig(epochs=1, learning_rate=1.0, warmup=0.2, schedule=name)
        schedule = Schedule(config, few_digits.train, 0)
        assert [schedule.learning_rate(share) for share in (0.2, 0.6, 1)] == pytest.approx(rates)
        assert schedule.learning_rate(0.1) == pytest.approx(0.55)

    def test_starts_at_its_peak_without_warm_up(self, few_digits: ImageData) -> None:
        config = TrainConfig(epochs=1, batch_size=75, warmup=0.0, learning_rate=0.5)
        rows: list[TrainingPoint] = []
        fit(nn.Linear(1, 1), Recorded(), few_digits.train, config, 0, on_row=rows.append)
        assert rows[0].learning_rate == 0.5


def test_fit_stops_at_a_non_finite_loss_and_keeps_the_last_checkpoint(
    few_digits: ImageData, tmp_path: Path
) -> None:
    class Exploding(Recorded):
        def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
            super().__call__(batch, moment)
            return 0.0, math.inf if len(self.batches) == 6 else 0.0

    file, rows = tmp_path / "checkpoint.safetensors", []
    config = TrainConfig(epochs=2, batch_size=25, workers=0, checkpoint_seconds=1e-9)
    with pytest.raises(DivergedError, match=r"not a number at step 5 \(learning rate 0\.00") as e:
        fit(nn.Linear(2, 2), Exploding(), few_digits.train, config, 0, checkpoint=file,
            on_row=rows.append)  # fmt: skip
    assert e.value.step == 5
    assert 0 < e.value.learning_rate < rows[-1].learning_rate
    rows.clear()
    fit(nn.Linear(2, 2), Recorded(), few_digits.train, config, 0, checkpoint=file,
        on_row=rows.append)  # fmt: skip
    assert rows[0].step == 5


def test_fit_reports_divergence_at_an_extreme_learning_rate(
    small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
) -> None:
    config = TrainConfig(epochs=5, batch_size=25, learning_rate=1e30, warmup=0.0)
    network = small_space.build(small_space.smallest())
    with pytest.raises(DivergedError, match=r"Lower train\.learning_rate"):
        fit(network, NetworkStep(network, digits_task, SHAPE), few_digits.train, config, 0)


def test_fit_saves_no_weights_that_are_not_finite(few_digits: ImageData, tmp_path: Path) -> None:
    """An update after a finite loss may break the weights; only the next loss would show it."""
    network = nn.Linear(2, 2)

    def breaking(batch: Batch, moment: StepContext) -> tuple[float, float]:
        for parameter in network.parameters():
            broken = math.inf if moment.step == 4 else 0.0
            parameter.grad = torch.full_like(parameter, broken)
        return 0.0, 0.0

    file = tmp_path / "checkpoint.safetensors"
    config = TrainConfig(epochs=1, batch_size=25, workers=0, checkpoint_seconds=1e-9)
    with pytest.raises(DivergedError, match=r"at step 5 .*the last good checkpoint is kept"):
        fit(network, breaking, few_digits.train, config, 0, checkpoint=file)
    kept = load_weights(file)
    assert all(t.isfinite().all() for name, t in kept.items() if name.startswith("network."))


class Hungry:
    """Step that runs out of memory with more than `most` images at a time."""

    def __init__(self, network: nn.Module, task: Classification, most: int) -> None:
        self.step = NetworkStep(network, task, SHAPE)
        self.most = most
        self.asked: list[int] = []

    def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
        self.asked.append(moment.parts)
        if math.ceil(len(batch.images) / moment.parts) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")
        return self.step(batch, moment)


class TestOutOfMemory:
    CONFIG = TrainConfig(epochs=1, batch_size=24, workers=0, checkpoint_seconds=1e-9)

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def test_halves_the_images_at_a_time_and_continues(
        self, digits_task: Classification, few_digits: ImageData, tmp_path: Path
    ) -> None:
        file, rows = tmp_path / "checkpoint.safetensors", []
        network = self.network()
        step = Hungry(network, digits_task, most=12)
        fit(network, step, few_digits.train, self.CONFIG, 0, on_row=rows.append)
        assert step.asked == [1, 2, 2, 2, 2, 2, 2]
        assert "out of memory at step 0 with 24 images at a time; from here on 12" in rows[0].note
        assert "train.accumulate = 2" in rows[0].note
        assert not any(row.note for row in rows[1:])
        # Nothing else changes: there is no normalisation here that would see the parts.
        plenty = self.network()
        fit(plenty, NetworkStep(plenty, digits_task, SHAPE), few_digits.train, self.CONFIG, 0)
        for one, other in zip(network.parameters(), plenty.parameters(), strict=True):
            torch.testing.assert_close(one, other)
        # A resumed training keeps the division.
        network = self.network()
        step = Hungry(network, digits_task, most=12)
        with pytest.raises(Killed):
            fit(network, step, few_digits.train, self.CONFIG, 0, checkpoint=file,
                on_row=killed_at(2))  # fmt: skip
        step.asked.clear()
        fit(network, step, few_digits.train, self.CONFIG, 0, checkpoint=file)
        assert set(step.asked) == {2}

    def test_fails_clearly_if_half_the_images_are_too_many(
        self, digits_task: Classification, few_digits: ImageData
    ) -> None:
        network = self.network()
        step = Hungry(network, digits_task, most=11)
        message = r"out of memory at step 0 .*with 24 images at a time, and then with 12 .*accumul"
        with pytest.raises(DeviceError, match=message) as caught:
            fit(network, step, few_digits.train, self.CONFIG, 0)
        assert "\n" not in str(caught.value)
        assert step.asked == [1, 2]

    def test_does_not_change_another_error(self, few_digits: ImageData) -> None:
        def wrong(batch: Batch, moment: StepContext) -> tuple[float, float]:
            raise RuntimeError("the size of tensor a must match")

        with pytest.raises(RuntimeError, match="must match") as caught:
            fit(nn.Linear(2, 2), wrong, few_digits.train, self.CONFIG, 0)
        assert type(caught.value) is RuntimeError


def test_network_step_in_parts_gives_the_gradient_of_the_whole_batch(
    digits_task: Classification, few_digits: ImageData
) -> None:
    images, targets = (torch.from_numpy(a) for a in few_digits.train.take(range(25)))
    gradients = []
    for parts in (1, 4):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        step = NetworkStep(network, digits_task, SHAPE)
        loss, _ = step(Batch(images, targets), StepContext(random.Random(0), parts=parts))
        gradients.append((loss, network[1].weight.grad))
    torch.testing.assert_close(*gradients)


def test_fit_uses_bfloat16_on_a_cpu_only_on_request(
    digits_task: Classification, few_digits: ImageData
) -> None:
    seen: list[torch.dtype] = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network[1].register_forward_hook(lambda module, given, outputs: seen.append(outputs.dtype))
    for precision in ("auto", "bf16", "fp32"):
        config = TrainConfig(epochs=0.01, batch_size=25, workers=0, precision=precision)
        fit(network, NetworkStep(network, digits_task, SHAPE), few_digits.train, config, 0)
    assert seen == [torch.float32, torch.bfloat16, torch.float32]


def test_weight_decay_excludes_normalisation_and_biases(few_digits: ImageData) -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}

    def flat(batch: Batch, moment: StepContext) -> tuple[float, float]:
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return 0.0, 0.0

    fit(network, flat, few_digits.train, TrainConfig(epochs=1, batch_size=25), 0)
    for name, parameter in network.named_parameters():
        changed = not torch.equal(parameter, before[name])
        assert changed == (parameter.dim() > 1), name


def stepped(few_digits: ImageData, gradient: float, **settings: Any) -> float:
    """Return how far one step moves a weight whose gradient is given, in learning rates."""
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)

    def step(batch: Batch, moment: StepContext) -> tuple[float, float]:
        network.weight.grad = torch.full_like(network.weight, gradient)
        return 0.0, 0.0

    images = len(few_digits.train)
    config = TrainConfig(epochs=1, batch_size=images, learning_rate=0.5, warmup=0.0, **settings)
    fit(network, step, few_digits.train, config, 0)
    return float(network.weight.detach()) / -0.5


def test_fit_uses_the_optimizer_of_its_settings(few_digits: ImageData) -> None:
    assert stepped(few_digits, 3.0) == pytest.approx(1, rel=1e-3), "AdamW divides by the gradient"
    assert stepped(few_digits, 3.0, optimizer="sgd") == pytest.approx(3 * 1.9), "Nesterov"
    plain = {"momentum": 0.0, "nesterov": False}
    assert stepped(few_digits, 3.0, optimizer="sgd", optimizer_options=plain) == pytest.approx(3)
    assert stepped(few_digits, 3.0, optimizer="torch.optim:Adagrad") == pytest.approx(1)


def test_fit_scales_gradients_down_to_the_largest_norm(few_digits: ImageData) -> None:
    plain = {"optimizer": "sgd", "optimizer_options": {"momentum": 0.0, "nesterov": False}}
    for gradient, expected in ((3.0, 2.0), (1.0, 1.0)):
        moved = stepped(few_digits, gradient, clip_norm=2.0, **plain)
        assert moved == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "sdg"}, "unknown train.optimizer 'sdg'; did you mean 'sgd'"),
        ({"optimizer": "torch.optim:Adan"}, r"train\.optimizer 'torch\.optim:Adan': .* has no"),
        ({"optimizer_options": {"momentum": 1}}, r"'adamw' with .*'momentum': 1.* cannot be made"),
        ({"optimizer": "sgd", "optimizer_options": {"momentum": -1}}, "Invalid momentum"),
    ],
)
def test_make_optimizer_refuses_unknown_names_and_options(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_optimizer(nn.Linear(1, 1), TrainConfig(epochs=1, **settings))


class TestLayerRates:
    def test_frozen_weights_stay_and_others_move_by_their_share(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        cases: list[dict[str, float]] = [{}, {"stem.*": 0.0, "stages.*": 0.5}]
        config = TrainConfig(
            epochs=1,
            batch_size=len(few_digits.train),
            learning_rate=0.1,
            schedule="constant",
            warmup=0.0,
            weight_decay=0.0,
            optimizer="sgd",
            optimizer_options={"momentum": 0.0, "nesterov": False},
            workers=0,
        )
        moved = []
        for rates in cases:
            torch.manual_seed(0)
            network = small_space.build(small_space.smallest())
            before = {name: p.detach().clone() for name, p in network.named_parameters()}
            chosen = replace(config, layer_rates=rates)
            shape = small_space.input_shape(small_space.smallest())
            step = NetworkStep.of(network, digits_task, shape, chosen)
            fit(network, step, few_digits.train, chosen, 0)
            assert all(p.requires_grad for p in network.parameters())
            after = dict(network.named_parameters())
            moved.append({name: after[name].detach() - old for name, old in before.items()})
        whole, slower = moved
        for name, by in whole.items():
            scale = {"stem": 0.0, "stages": 0.5}.get(name.partition(".")[0], 1.0)
            torch.testing.assert_close(slower[name], scale * by, rtol=1e-3, atol=1e-6)
        assert {name.partition(".")[0] for name in whole} > {"stem", "stages"}

    def test_supernets_name_weights_like_their_largest_network(
        self, small_space: MobileNetSpace
    ) -> None:
        config = TrainConfig(epochs=1, layer_rates={"stem.*": 0.0, "*": 0.1})
        groups = make_optimizer(Supernet(small_space), config).param_groups
        network = small_space.build(small_space.largest())
        known = [n for n, _ in network.named_parameters() if not n.startswith("stem.")]
        assert sum(len(group["params"]) for group in groups) == len(known)
        assert {group["scale"] for group in groups} == {0.1}

    def test_first_pattern_that_matches_counts(self) -> None:
        config = TrainConfig(epochs=1, layer_rates={"stages.0.*": 0.0, "stages.*": 0.3})
        rates = [config.layer_rate(name) for name in ("stages.0.x", "stages.1.x", "head.x")]
        assert rates == [0.0, 0.3, 1.0]

    @pytest.mark.parametrize(
        ("rates", "message"),
        [
            ({"backbone.*": 0.1}, r"no weight matches 'backbone\.\*'; the weights are called stem"),
            ({"*": 0.0}, "freezes all weights; leave some to be trained"),
        ],
    )
    def test_rates_that_match_nothing_or_freeze_everything_are_refused(
        self, small_space: MobileNetSpace, rates: dict[str, float], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            check_layer_rates(TrainConfig(epochs=1, layer_rates=rates), small_space)

    def test_negative_rates_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"layer_rates has -1 for 'stem\.\*'; expected at le"):
            TrainConfig(epochs=1, layer_rates={"stem.*": -1})


def test_train_config_identity_leaves_out_defaults() -> None:
    assert TrainConfig(epochs=1).identity == {"schema": 1, "epochs": 1}
    other = TrainConfig(epochs=1, optimizer_options={"fused": False})
    assert other.identity["optimizer_options"] == {"fused": False}


class TestTrainingSteps:
    def test_sandwich_step_gives_every_weight_a_gradient(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        supernet = small_space.supernet()
        images, targets = (torch.from_numpy(a) for a in few_digits.train.take(range(25)))
        first, last = SupernetStep(supernet, digits_task)(
            Batch(images, targets), StepContext(random.Random(0))
        )
        assert first > 0
        assert last >= 0
        assert all(p.grad is not None for p in supernet.parameters())

    def test_uniform_step_gives_skipped_blocks_no_gradient(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        supernet = small_space.supernet()
        images, targets = (torch.from_numpy(a) for a in few_digits.train.take(range(25)))
        step = SupernetStep(supernet, digits_task, "uniform")
        rng = next(
            random.Random(seed)
            for seed in range(100)
            if 1 in [v for n, v in small_space.sample(random.Random(seed)).values if "depth" in n]
        )
        first, last = step(Batch(images, targets), StepContext(rng))
        assert first == last
        assert any(p.grad is None for p in supernet.parameters())

    def test_network_step_gives_the_gradient_of_the_task_loss(
        self, small_space: MobileNetSpace, digits_task: Classification, few_digits: ImageData
    ) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        images, targets = few_digits.train.take(range(25))
        step = NetworkStep(network, digits_task, SHAPE)
        loss, _ = step(
            Batch(torch.from_numpy(images), torch.from_numpy(targets)),
            StepContext(random.Random(0)),
        )
        outputs = network(digits_task.preprocessing(images))
        expected = digits_task.loss(outputs, torch.from_numpy(targets))
        assert loss == pytest.approx(expected.item())
        [gradient] = torch.autograd.grad(expected, [network[1].weight])
        torch.testing.assert_close(network[1].weight.grad, gradient)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, r"train\.epochs is 0; expected a number above 0"),
        ({"epochs": math.nan}, r"train\.epochs is nan"),
        ({"epochs": 1, "learning_rate": -1.0}, r"train\.learning_rate is -1\.0"),
        ({"epochs": 1, "batch_size": 0}, r"train\.batch_size is 0"),
        ({"epochs": 1, "workers": -1}, r"train\.workers is -1; expected at least 0"),
        ({"epochs": 1, "warmup": 1.0}, r"train\.warmup is 1\.0; expected a share in \[0, 1\)"),
        ({"epochs": 1, "accumulate": 0}, r"train\.accumulate is 0; expected a number above 0"),
        ({"epochs": 1, "accumulate": 40}, r"train\.accumulate is 40, .* less than 2 of 64 images"),
        ({"epochs": 1, "ema": 1.0}, r"train\.ema is 1\.0; expected a share in \[0, 1\)"),
        ({"epochs": 1, "precision": "fp16"}, r"unknown train\.precision 'fp16'; .*bf16"),
        ({"epochs": 1, "distillation_loss": "alfa"}, "did you mean 'alpha'"),
        ({"epochs": 1, "ranking_check": 3}, r"train\.ranking_check is 3; expected at least 4"),
        ({"epochs": 1, "sampling": "sandwitch"}, "did you mean 'sandwich'"),
        ({"epochs": 1, "schedule": "cosin"}, "unknown train.schedule 'cosin'; did you mean 'cosi"),
        ({"epochs": 1, "clip_norm": 0}, r"train\.clip_norm is 0; expected a number above 0"),
        ({"epochs": 1, "cutout": 1.5}, r"train\.cutout is 1\.5; expected a share in \[0, 1\]"),
        ({"epochs": 1, "erasing": -0.1}, r"train\.erasing is -0\.1; expected a share in \[0, 1\]"),
        ({"epochs": 1, "rand_augment": -1}, r"train\.rand_augment is -1; expected at least 0"),
        ({"epochs": 1, "augment": "flip"}, r"train\.augment is 'flip'; .*package\.module:function"),
        ({"epochs": 1, "label_smoothing": 1.0}, r"label_smoothing is 1\.0; .* in \[0, 1\)"),
    ],
)
def test_train_config_refuses_wrong_settings(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**given)  # type: ignore[arg-type]


def test_training_without_a_length_is_refused(few_digits: ImageData) -> None:
    with pytest.raises(ConfigError, match=r"\[train\] needs epochs or budget_minutes"):
        Schedule(TrainConfig(learning_rate=0.1), few_digits.train, 0)


def test_train_config_adjusted_replaces_settings() -> None:
    config = TrainConfig(budget_minutes=5, learning_rate=0.1, flip=True)
    adjusted = config.adjusted({"learning_rate": 0.2, "cutout": 0.25})
    assert adjusted == TrainConfig(budget_minutes=5, learning_rate=0.2, flip=True, cutout=0.25)
    in_epochs = config.adjusted({"epochs": 2})
    assert (in_epochs.epochs, in_epochs.budget_minutes) == (2, None)
    with pytest.raises(ConfigError, match=r"\[train\] has no key 'rate'; .*learning_rate"):
        config.adjusted({"rate": 1})


def test_recipe_space_settings_are_those_of_train_config() -> None:
    settings = inspect.signature(recipe_space).parameters
    assert set(settings) < {each.name for each in fields(TrainConfig)}


def test_balanced_epochs_draw_all_classes_equally_often(few_digits: ImageData) -> None:
    split = few_digits.train
    rare = np.flatnonzero(split.targets == 3)[1:]
    uneven = Split(split.images, split.image_targets, np.delete(split.positions, rare))
    config = TrainConfig(epochs=1, batch_size=len(uneven), balanced=True)
    schedule = Schedule(config, uneven, 0)
    drawn = np.concatenate([schedule.batch(step).targets.numpy() for step in range(40)])
    shares = np.bincount(drawn) / len(drawn)
    assert shares == pytest.approx(np.full(10, 0.1), abs=0.02)
    plain = Schedule(replace(config, balanced=False), uneven, 0).batch(0)
    assert np.bincount(plain.targets.numpy())[3] == 1


def test_fit_applies_cutout(few_digits: ImageData) -> None:
    plain, erased = Recorded(), Recorded()
    for step, cutout in ((plain, 0.0), (erased, 0.5)):
        config = replace(CONFIG, cutout=cutout, shift_pixels=0)
        fit(nn.Linear(1, 1), step, few_digits.train, config, 0)
    before, after = (list(chain(*step.batches)) for step in (plain, erased))
    changed = sum(one != other for one, other in zip(before, after, strict=True))
    assert changed > 0.9 * len(before)


@pytest.mark.parametrize(
    ("batch_size", "world", "message"),
    [
        (200, 1, "batch_size is 200, but there are only 150 training images; lower train.batch"),
        (1, 1, "batch_size is 1; expected at least 2 images for each of 1 workers"),
        (5, 3, "batch_size is 5; expected at least 2 images for each of 3 workers"),
    ],
)
def test_fit_refuses_batch_sizes_that_are_too_large_or_small(
    few_digits: ImageData, batch_size: int, world: int, message: str
) -> None:
    config = TrainConfig(epochs=1, batch_size=batch_size)
    with pytest.raises(ConfigError, match=message):
        fit(nn.Linear(1, 1), Recorded(), few_digits.train, config, 0, world=world)
