"""Fixture of data sets in folders."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., ImageData]:
    """Return a function that loads the folder ``set``, with settings of ``[data]``."""

    def loaded(**options: object) -> ImageData:
        config = DataConfig("folder:set", **options)  # type: ignore[arg-type]
        return load_data(config, tmp_path, 0, tmp_path / "cache")

    return loaded
