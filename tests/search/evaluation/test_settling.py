"""Thresholds of early exits, fitted wherever a network is trained or scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hwnas.search.data.image_data import ImageData
from hwnas.search.evaluation.evaluate import SupernetEvaluator, TrainEvaluator, train_network
from hwnas.search.evaluation.scoring import Fidelity, score
from hwnas.search.evaluation.settling import fit_exit, settle
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import NetworkStep, TrainConfig
from hwnas.search_spaces import Architecture, Candidate, batch_norms, resnet, vit
from hwnas.search_spaces.early_exit import EarlyExitNetwork, EarlyExitSpace

RESNET = EarlyExitSpace(resnet((8, 8, 1), 10))
VIT = EarlyExitSpace(vit((8, 8, 1), 10, preset="tiny", depth=(2,)))  # without batch normalisation


def with_exit(space: EarlyExitSpace, share: float = 0.3) -> Architecture:
    values = space.networks.smallest().as_dict()
    after = list(space.places)[-1]
    return space.architecture({**values, "exit_share": share, "exit_after": after})


def share_that_leaves(
    network: nn.Module, space: EarlyExitSpace, task: Classification, data: ImageData
) -> float:
    """Return the share of validation images whose confidence reaches the threshold."""
    assert isinstance(network, EarlyExitNetwork)
    assert network.head is not None
    images, _ = data.validation.take(np.arange(len(data.validation)))
    height, width = space.input_shape(with_exit(space))[1:]
    preprocessing = task.preprocessing.at(height, width)
    with torch.no_grad():
        confidence = network.paths(preprocessing(torch.from_numpy(images)))[2]
    return float((confidence >= network.head.threshold).float().mean())


@pytest.mark.parametrize("space", [RESNET, VIT], ids=["resnet", "vit"])
def test_settle_lets_the_wanted_share_of_validation_images_leave(
    space: EarlyExitSpace, digits_task: Classification, few_digits: ImageData
) -> None:
    torch.manual_seed(0)
    network, shape = space.build(with_exit(space)), space.input_shape(with_exit(space))
    settle(network, digits_task, few_digits, shape, 128)
    assert not network.training
    left = share_that_leaves(network, space, digits_task, few_digits)
    assert left == pytest.approx(0.3, abs=1 / len(few_digits.validation))
    assert network.head is not None
    assert float(network.head.fitted_share) == pytest.approx(left)


def test_fit_exit_uses_no_labels(digits_task: Classification, few_digits: ImageData) -> None:
    shape, thresholds = RESNET.input_shape(with_exit(RESNET)), []
    split = few_digits.validation
    for targets in (split.image_targets, split.image_targets[::-1].copy()):
        torch.manual_seed(0)
        network = RESNET.build(with_exit(RESNET))
        data = replace(few_digits, validation=replace(split, image_targets=targets))
        fit_exit(network, digits_task, data, shape)
        assert network.head is not None
        thresholds.append(float(network.head.threshold))
    assert thresholds[0] == thresholds[1] < 1


def test_network_without_an_exit_settles_as_before(
    digits_task: Classification, few_digits: ImageData
) -> None:
    largest = RESNET.largest()
    network, shape = RESNET.build(largest), RESNET.input_shape(largest)
    settle(network, digits_task, few_digits, shape, 128)
    norms = batch_norms(network)
    assert norms
    assert all(norm.running_mean.any() for norm in norms if norm.running_mean is not None)


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
def test_training_ends_with_a_fitted_exit(
    fixed: bool, digits_task: Classification, few_digits: ImageData
) -> None:
    network, config = with_exit(RESNET), TrainConfig(epochs=4, batch_size=32, workers=0)
    torch.manual_seed(0)
    module = RESNET.build(network)
    step = NetworkStep.of(module, digits_task, RESNET.input_shape(network), config)
    train_network(step, few_digits, config, 0, fix_statistics=fixed)
    left = share_that_leaves(module, RESNET, digits_task, few_digits)
    assert left == pytest.approx(0.3, abs=1 / len(few_digits.validation))


@pytest.mark.slow
def test_train_evaluator_keeps_the_threshold_with_the_weights(
    digits_task: Classification, few_digits: ImageData, tmp_path: Path
) -> None:
    config = TrainConfig(epochs=12, batch_size=32, learning_rate=0.01, ema=0.9, workers=0)
    alone = TrainEvaluator(RESNET, digits_task, few_digits, config, folder=tmp_path)
    candidate = Candidate.of(with_exit(RESNET))
    found = alone.evaluate(candidate, Fidelity())
    assert found.values["accuracy"] > 0.3
    again = alone.trained(candidate)
    left = share_that_leaves(again, RESNET, digits_task, few_digits)
    assert left == pytest.approx(0.3, abs=1 / len(few_digits.validation))
    shape = RESNET.input_shape(candidate.network)
    kept = score(again, digits_task, few_digits.validation, shape, "validation")
    assert kept.values == found.values


def test_supernet_evaluator_fits_the_exit_of_each_candidate(
    digits_task: Classification, few_digits: ImageData
) -> None:
    torch.manual_seed(0)
    supernet = RESNET.supernet()
    weights = {name: t.numpy().copy() for name, t in supernet.shared.state_dict().items()}
    network = with_exit(RESNET)
    shape = RESNET.input_shape(network)
    found = SupernetEvaluator(RESNET, digits_task, few_digits, weights, 128).evaluate(
        Candidate.of(network), Fidelity()
    )
    extracted = supernet.extract(network)
    settle(extracted, digits_task, few_digits, shape, 128)
    expected = score(extracted, digits_task, few_digits.validation, shape, "validation")
    assert found.values == expected.values
