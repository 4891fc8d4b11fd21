"""Images of given classes from sources that are not divided into parts."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hwnas.errors import DataError
from hwnas.search.data.image_data import DataConfig
from hwnas.search.data.loading import labelled_images
from hwnas.search.data.split import Split

CLASSES = ("cat", "dog", "owl", "yak")


def labelled(folder: Path, classes: tuple[str, ...] = CLASSES) -> Split:
    config = DataConfig(f"folder:{folder}", size=4, cache=str(folder.parent / "cache"))
    return labelled_images(config, Path(), classes)


def save(folder: Path, counts: dict[str, int]) -> Path:
    """Save images whose grey level is the position of their class, times 50."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            grey = np.full((4, 4), CLASSES.index(name) * 50 if name in CLASSES else 255, np.uint8)
            Image.fromarray(grey).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("labelled")


@given(st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 3), min_size=1))
def test_every_image_is_read_with_the_position_of_its_class(
    places: Path, counts: dict[str, int]
) -> None:
    name = "-".join(f"{key}{counts[key]}" for key in sorted(counts))
    folder = places / name
    split = labelled(folder if folder.exists() else save(folder, counts))
    images, targets = split.take(range(len(split)))
    assert len(split) == sum(counts.values())
    assert (images[:, 0, 0, 0] == targets * 50).all()


def test_other_order_of_the_classes_gives_other_positions(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", {"cat": 1, "yak": 2})
    assert sorted(labelled(folder, CLASSES[::-1]).targets) == [0, 0, 3]


def test_numbers_are_positions_where_no_class_has_such_a_name(tmp_path: Path) -> None:
    path = tmp_path / "shards" / "0.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as tar:
        for name, number in (("a", 3), ("b", 0), ("c", 3)):
            picture = io.BytesIO()
            Image.new("L", (4, 4), number).save(picture, "PNG")
            for suffix, content in (("png", picture.getvalue()), ("cls", b"%d" % number)):
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    assert labelled(path.parent).targets.tolist() == [3, 0, 3]
    assert labelled(path.parent, ("3", "0")).targets.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"has images of '3', which is none of the network's 3"):
        labelled(path.parent, CLASSES[:3])


def test_other_classes_and_divided_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"images of 'emu', .* give images with the classes of"):
        labelled(save(tmp_path / "birds", {"emu": 1, "owl": 1}))
    save(tmp_path / "parts" / "train", {"cat": 1})
    save(tmp_path / "parts" / "test", {"cat": 1})
    with pytest.raises(DataError, match=r"divided into parts .* name one of them: test"):
        labelled(tmp_path / "parts")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no class folders"):
        labelled(tmp_path / "empty")
