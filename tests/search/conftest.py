"""Fixtures: a small set of real digits, its task, and spaces of small networks."""

from __future__ import annotations

import dataclasses

import pytest

from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.classification import Classification, classification
from hwnas.search_spaces import MobileNetConfig, MobileNetSpace, Stage


@pytest.fixture(scope="session")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> ImageData:
    """Return digits: 150 training, 50 validation and 100 test images."""
    cache = tmp_path_factory.mktemp("cache")
    config = DataConfig("digits", validation_fraction=0.25, train_limit=200, test_limit=100)
    return load_data(config, cache, 0, cache)


@pytest.fixture(scope="session")
def digits_task(few_digits: ImageData) -> Classification:
    return classification(few_digits)


@pytest.fixture(scope="session")
def small_space() -> MobileNetSpace:
    """Return a space with every kind of choice, whose networks run in milliseconds."""
    return MobileNetSpace(
        MobileNetConfig(
            stages=(
                Stage(8, 1, depth=(1, 2), kernel_size=(3, 5), expand_ratio=(2, 3)),
                Stage(12, 2, depth=(1, 2), kernel_size=(3, 5), expand_ratio=(2, 3)),
            ),
            resolution=(8,),
            width=(0.5, 1.0),
            in_channels=1,
            outputs=10,
            stem_channels=8,
            stem_stride=1,
            head_channels=24,
            feature_channels=32,
        )
    )


@pytest.fixture(scope="session")
def dropout_space(small_space: MobileNetSpace) -> MobileNetSpace:
    """Return `small_space` with dropout, so that the forward pass is random."""
    return MobileNetSpace(dataclasses.replace(small_space.config, dropout=0.3))
