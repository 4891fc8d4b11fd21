from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.deploy.bundles.box_image import image_with_boxes, write_image
from hwnas.errors import ConfigError

BOX = {"label": "cat", "score": 0.8, "left": 0.25, "top": 0.5, "right": 0.75, "bottom": 1.0}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_box_is_drawn_where_it_is(channels: int) -> None:
    pixels = np.full((81, 161, channels), 90, np.uint8)
    drawn = np.asarray(image_with_boxes(pixels, [BOX], ["dog", "cat"]))
    changed = (drawn != 90).any(axis=2)
    rows, columns = np.nonzero(changed)
    assert (columns.min(), columns.max()) == (40, 120)
    assert (rows.min(), rows.max()) == (40, 80)
    assert not changed[60:70, 60:100].any(), "only the frame and the label"


def test_labels_have_their_own_colours() -> None:
    pixels = np.full((80, 160, 3), 90, np.uint8)
    colours = set()
    for label in ("dog", "cat"):
        drawn = np.asarray(image_with_boxes(pixels, [BOX | {"label": label}], ["dog", "cat"]))
        colours.add(tuple(drawn[-1, 80].tolist()))
    assert len(colours) == 2


def test_images_are_written_as_png_only(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4))
    write_image(tmp_path / "a.png", image)
    with Image.open(tmp_path / "a.png") as written:
        assert written.format == "PNG"
    with pytest.raises(ConfigError, match=r"use the ending \.png"):
        write_image(tmp_path / "a.jpg", image)
