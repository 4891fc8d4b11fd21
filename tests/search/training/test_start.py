"""Trained weights that a supernet starts from."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.errors import ConfigError
from hwnas.search.data.image_data import ImageData
from hwnas.search.tasks.classification import Classification
from hwnas.search.training import (
    SupernetTraining,
    TrainConfig,
    load_weights,
    save_weights,
    train_supernet,
)
from hwnas.search.training.start import StartWeights
from hwnas.search_spaces import MobileNetSpace

CONFIG = TrainConfig(epochs=1, batch_size=30, learning_rate=0.01, weights="other", workers=0)


@pytest.fixture(scope="module")
def weights(small_space: MobileNetSpace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("other") / "weights.safetensors"
    save_weights(path, small_space.supernet().shared.state_dict())
    return path


def with_outputs(space: MobileNetSpace, outputs: int) -> MobileNetSpace:
    return MobileNetSpace(replace(space.config, outputs=outputs))


def test_training_of_no_epochs_keeps_the_weights_of_the_start(
    small_space: MobileNetSpace,
    digits_task: Classification,
    few_digits: ImageData,
    weights: Path,
    tmp_path: Path,
) -> None:
    start = StartWeights.read(weights, small_space, 10)
    assert start.fresh == ()
    training = SupernetTraining(
        small_space, digits_task, few_digits, replace(CONFIG, epochs=0), 0, "run", tmp_path, start
    )
    before, after = load_weights(weights), load_weights(train_supernet(training))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)

    trained = load_weights(train_supernet(replace(training, config=CONFIG)))
    assert not all(torch.equal(before[name], trained[name]) for name in before)


def test_start_with_other_outputs_leaves_only_the_output_layer_random(
    small_space: MobileNetSpace, weights: Path
) -> None:
    space = with_outputs(small_space, 3)
    start, given = StartWeights.read(weights, space, 3), load_weights(weights)
    network = space.supernet().shared
    assert set(start.fresh) == set(given) - set(start.tensors)
    assert {network.state_dict()[name].shape[0] for name in start.fresh} == {3}
    assert all(torch.equal(start.tensors[name], given[name]) for name in start.tensors)
    missing, unexpected = network.load_state_dict(dict(start.tensors), strict=False)
    assert set(missing) == set(start.fresh)
    assert unexpected == []


def test_start_refuses_weights_of_another_space(small_space: MobileNetSpace, weights: Path) -> None:
    wider = MobileNetSpace(replace(small_space.config, stem_channels=16))
    with pytest.raises(ConfigError, match=r"does not fit space mobilenet: .* is .* in the weights"):
        StartWeights.read(weights, wider, 10)
    colours = MobileNetSpace(replace(small_space.config, in_channels=3))
    with pytest.raises(ConfigError, match="as many image channels"):
        StartWeights.read(weights, colours, 10)


def test_start_refuses_files_that_hold_no_weights(
    small_space: MobileNetSpace, tmp_path: Path
) -> None:
    for name, content in (("empty", b""), ("text", b"[train]\nepochs = 3\n")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be read as a safetensors file; name a run"):
            StartWeights.read(path, small_space, 10)


def test_train_config_allows_no_epochs_only_with_weights() -> None:
    assert TrainConfig(epochs=0, weights="runs/other").epochs == 0
    with pytest.raises(ConfigError, match=r"train\.epochs is 0; expected a number above 0"):
        TrainConfig(epochs=0)
    with pytest.raises(ConfigError, match=r"train\.epochs is -1"):
        TrainConfig(epochs=-1, weights="runs/other")


def test_train_config_identity_leaves_out_the_name_of_the_weights() -> None:
    config = TrainConfig(epochs=1)
    assert replace(config, weights="runs/other").identity == config.identity
