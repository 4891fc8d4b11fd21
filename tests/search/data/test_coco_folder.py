"""Folders in COCO's format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.experiment.from_images import recipe_for_images
from hwnas.search.data.boxes import NO_BOX
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.image_size import ImageSize
from hwnas.search.data.layouts.coco_folder import read_coco
from hwnas.search.data.loading import load_data

CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 1, "name": "ball"}, {"id": 7, "name": "unseen"}]
BOX = {"id": 1, "image_id": 0, "category_id": 3, "bbox": [4, 2, 8, 6], "iscrowd": 0}


def write_part(
    folder: Path, file: Path, count: int, boxes: list[Mapping[str, Any]] | None = None
) -> None:
    """Write images of 16 x 8 pixels (width, height), numbered from 0, and their JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    images = []
    for number in range(count):
        name = f"{number:03}.png"
        Image.fromarray(np.full((8, 16, 3), 9 * number, np.uint8)).save(folder / name)
        images.append({"id": number, "file_name": name, "width": 16, "height": 8})
    if boxes is None:
        boxes = [
            {**BOX, "id": n, "image_id": n, "category_id": (3, 1)[n % 2]} for n in range(count)
        ]
    content = {"images": images, "annotations": boxes, "categories": CATEGORIES}
    file.write_text(json.dumps(content))


def loaded(folder: Path, cache: Path, **options: Any) -> ImageData:
    config = DataConfig(f"folder:{folder}", size=8, validation_fraction=0.3, **options)
    return load_data(config, folder, 0, cache)


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    folder = tmp_path / "coco"
    for part, count in (("train2017", 10), ("val2017", 4)):
        write_part(folder / part, folder / "annotations" / f"instances_{part}.json", count)
    return folder


def test_layout_of_coco(coco: Path, tmp_path: Path) -> None:
    data = loaded(coco, tmp_path / "cache")
    assert data.kind == "boxes"
    assert data.class_names == ("ball", "cat")
    assert (len(data.train), len(data.validation), len(data.test)) == (7, 3, 4)
    boxes = data.test.targets[np.argsort(data.test.positions)]
    assert boxes[:, 0].tolist() == [[0.25, 0.25, 0.75, 1.0, kind] for kind in (1, 0, 1, 0)]


@pytest.mark.parametrize("parts", [("",), ("train", "valid"), ("train", "valid", "test")])
def test_json_files_beside_the_images(parts: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    for part in parts:
        write_part(folder / part, folder / part / "_annotations.coco.json", 10)
    data = loaded(folder, tmp_path / "cache")
    assert len(data.test) == (2 if parts == ("",) else 10)
    assert len(data.validation) == (10 if len(parts) == 3 else (2 if parts == ("",) else 3))


def test_a_set_that_an_annotation_tool_did_not_divide(tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    write_part(folder / "images", folder / "annotations" / "instances_default.json", 10)
    data = loaded(folder, tmp_path / "cache")
    assert (len(data.train) + len(data.validation), len(data.test)) == (8, 2)


def test_crowds_and_empty_boxes_are_left_out_but_their_images_stay(tmp_path: Path) -> None:
    boxes = [
        {**BOX, "image_id": 1},
        {**BOX, "image_id": 2, "category_id": 1},
        {**BOX, "image_id": 3, "iscrowd": 1},
        {**BOX, "image_id": 4, "bbox": [4, 2, 0, 6]},
        {**BOX, "image_id": 5, "bbox": [-4, 4, 8, 40]},
    ]
    write_part(tmp_path / "d", tmp_path / "d" / "_annotations.coco.json", 6, boxes)
    cache = ImageCache(tmp_path / "cache", 2**30)
    raw = read_coco(tmp_path / "d", ImageSize(8, 8), cache)
    assert raw.class_names == ("ball", "cat")
    assert raw.targets[:, 0, 4].tolist() == [NO_BOX, 1, 0, NO_BOX, NO_BOX, 1]
    assert raw.targets[5, 0, :4].tolist() == [0, 0.5, 0.25, 1]


def test_damaged_images_are_left_out_with_their_boxes(coco: Path, tmp_path: Path) -> None:
    (coco / "val2017" / "001.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"001\.png"):
        loaded(coco, tmp_path / "cache")
    data = loaded(coco, tmp_path / "cache", skip_damaged=True)
    boxes = data.test.targets[np.argsort(data.test.positions)]
    assert boxes[:, 0, 4].tolist() == [1, 1, 0]


def changed(coco: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = coco / "annotations" / "instances_train2017.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("images"), "not in COCO's format .KeyError: 'images'"),
        (lambda c: c["annotations"][0].pop("bbox"), "not in COCO's format .KeyError: 'bbox'"),
        (lambda c: c["annotations"][0].update(image_id=99), "not in COCO's format .KeyError: 99"),
        (lambda c: c["annotations"][0].update(category_id=9), "no category 9"),
        (lambda c: c["images"][0].update(width=0), "ZeroDivisionError"),
        (lambda c: c["images"][0].update(id=1), "an id of an image twice"),
        (lambda c: c["images"][0].update(file_name="x.png"), r"there is no image .*x\.png"),
        (lambda c: c["images"][0].update(file_name="../x.png"), "is not in the folder"),
        (lambda c: c["images"][0].update(file_name="001.png"), "listed twice"),
    ],
)
def test_wrong_json_is_refused_in_one_line(
    coco: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    changed(coco, change)
    with pytest.raises(DataError, match=message) as refusal:
        loaded(coco, tmp_path / "cache")
    assert "\n" not in str(refusal.value)


def test_boxes_of_no_image_are_refused(tmp_path: Path) -> None:
    write_part(tmp_path / "d", tmp_path / "d" / "_annotations.coco.json", 6, [])
    with pytest.raises(DataError, match=r"expected one or more"):
        loaded(tmp_path / "d", tmp_path / "cache")


def test_a_changed_json_file_changes_the_fingerprint(coco: Path, tmp_path: Path) -> None:
    before = loaded(coco, tmp_path / "cache").fingerprint
    changed(coco, lambda c: c["annotations"][0].update(bbox=[4, 2, 8, 5]))
    assert loaded(coco, tmp_path / "cache").fingerprint != before


def test_cropping_is_refused(coco: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="images with boxes cannot be cropped"):
        loaded(coco, tmp_path / "cache", fit="crop")


def test_recipe_for_a_folder_is_for_detection(coco: Path) -> None:
    text = recipe_for_images(coco, 10)
    assert 'name = "detection"' in text
    assert 'metric = "map"' in text
