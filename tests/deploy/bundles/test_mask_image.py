from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.deploy.bundles.mask_image import write_mask
from hwnas.errors import ConfigError


def test_write_mask_stores_classes_with_a_colour_palette(tmp_path: Path) -> None:
    mask = np.arange(256, dtype=np.uint8).reshape(8, 32)
    write_mask(tmp_path / "mask.png", mask)
    with Image.open(tmp_path / "mask.png") as image:
        assert np.array_equal(np.asarray(image), mask)
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(colours, axis=0)) == 256
    # The first colours of Pascal VOC's classes: background, aeroplane, bicycle, bird; and void.
    assert colours[:4].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]
    assert colours[255].tolist() == [224, 224, 192]


def test_write_mask_refuses_formats_other_than_png(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"written as PNG, .* use the ending \.png"):
        write_mask(tmp_path / "mask.jpg", np.zeros((2, 2), np.uint8))
