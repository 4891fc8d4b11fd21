from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.experiment.from_images import task_tables
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.layouts.image_table import kind_of_table
from hwnas.search.data.loading import load_data
from hwnas.search.data.manifest import manifest_difference
from hwnas.search.data.sources import source_manifest
from hwnas.search.tasks.multi_task import multi_task
from hwnas.search.tasks.multilabel import multilabel
from hwnas.search.tasks.regression import regression


def image(path: Path, shade: int, size: tuple[int, int] = (6, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, shade).save(path)


def table(folder: Path, header: str, rows: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata.csv").write_text("\n".join([f"file_name,{header}", *rows, ""]))


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    """Make twenty images whose shades are ten times their storeys."""
    folder = tmp_path / "houses"
    for i in range(20):
        image(folder / "front" / f"{i}.png", 10 * i)
    table(folder, "storeys,area", [f"front/{i}.png,{i},{i / 2}" for i in reversed(range(20))])
    return folder


def load(folder: Path) -> ImageData:
    return load_data(
        DataConfig(f"folder:{folder}", validation_fraction=0.25), folder, 0, folder.parent / "cache"
    )


def test_table_gives_the_values_of_each_image_and_their_names(houses: Path) -> None:
    image(houses / "front" / "not-listed.png", 255)
    data = load(houses)
    assert (data.kind, data.value_names, data.class_names) == ("values", ("storeys", "area"), None)
    assert sum(map(len, (data.train, data.validation, data.test))) == 20
    for split in (data.train, data.validation, data.test):
        images, targets = split.take(range(len(split)))
        np.testing.assert_array_equal(images[:, 0, 0, 0], 10 * targets[:, 0])
        np.testing.assert_array_equal(targets[:, 1], targets[:, 0] / 2)


def test_table_in_each_part_divides_the_images(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    for part, count in (("train", 8), ("val", 4), ("test", 2)):
        for i in range(count):
            image(folder / part / f"{i}.png", 20 * i)
        table(folder / part, "kind", [f"{i}.png,{'ab'[i % 2]}" for i in range(count)])
    data = load(folder)
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 4, 2)
    assert data.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("header", "entries", "kind", "names"),
    [
        ("kind", ["b", "a"], "classes", ("a", "b")),
        ("label", ["10", "9"], "classes", ("9", "10")),
        ("storeys", ["10", "9"], "values", None),
        ("dog,cat", ["0,1", "1,0"], "labels", None),
        ("dog,cat", ["0,1", "1,2"], "values", None),
        ("kind,side", ["cat,left", "dog,right"], "tasks", None),
        ("kind,angle", ["cat,0", "dog,1"], "tasks", None),
    ],
)
def test_table_columns_tell_classes_labels_and_values_apart(
    tmp_path: Path, header: str, entries: list[str], kind: str, names: tuple[str, ...] | None
) -> None:
    folder = tmp_path / "set"
    for i in range(12):
        image(folder / f"{i}.png", 20 * i)
    table(folder, header, [f"{i}.png,{entries[i % 2]}" for i in range(12)])
    assert kind_of_table(folder) == kind
    assert load(folder).class_names == names


def test_table_columns_of_texts_are_the_classes_of_several_tasks(tmp_path: Path) -> None:
    folder, kinds, sides = tmp_path / "set", ("owl", "cat", "dog"), ("right", "left")
    for i in range(24):
        image(folder / f"{i}.png", 10 * i)
    rows = [f"{i}.png,{kinds[i % 3]},{i % 4},{sides[i % 2]}" for i in range(24)]
    table(folder, "kind,angle,side", rows)
    data = load(folder)
    assert (data.kind, data.value_names) == ("values", ("kind", "angle", "side"))
    assert data.value_classes == (("cat", "dog", "owl"), (), ("left", "right"))
    images, targets = data.train.take(range(len(data.train)))
    numbers = images[:, 0, 0, 0] // 10
    np.testing.assert_array_equal(targets[:, 0], np.array([2, 0, 1])[numbers % 3])
    np.testing.assert_array_equal(targets[:, 1:], np.stack([numbers % 4, 1 - numbers % 2], 1))
    named, objective = task_tables(folder)
    assert (named["task"]["name"], objective["metric"]) == ("multi-task", "accuracy")
    task = multi_task(data)
    assert task.task_outputs == {"kind": 3, "angle": 4, "side": 2}
    assert task.meaning.labels == (*("cat", "dog", "owl"), *"0123", *("left", "right"))
    for other in (regression, multilabel):
        with pytest.raises(DataError, match="the column kind has the texts 'cat', 'dog', 'owl'"):
            other(data)


def test_table_images_of_a_group_stay_in_one_split(houses: Path) -> None:
    table(houses, "group,storeys", [f"front/{i}.png,street {i // 4},{i}" for i in range(20)])
    data = load(houses)
    assert data.value_names == ("storeys",)
    streets = [
        set((split.targets[:, 0] // 4).tolist())
        for split in (data.train, data.validation, data.test)
    ]
    assert sum(map(len, streets)) == len(set().union(*streets)) == 5


def test_table_manifest_notices_changes_of_targets_and_of_listed_images(houses: Path) -> None:
    def manifest() -> object:
        return source_manifest(f"folder:{houses}", houses)

    before = manifest()
    assert before == load(houses).manifest
    image(houses / "front" / "not-listed.png", 255)
    assert manifest() == before
    table(houses, "storeys", [f"front/{i}.png,{i}" for i in range(20)])
    changed = manifest()
    assert manifest_difference(before, changed) == "1 of 21 files changed (metadata.csv)"  # type: ignore[arg-type]
    image(houses / "front" / "3.png", 99, (9, 9))
    assert "front/3.png" in manifest_difference(changed, manifest())  # type: ignore[arg-type]


def test_table_skips_damaged_images_with_their_values(houses: Path) -> None:
    (houses / "front" / "7.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"1 of 20 images of .* is damaged: front/7\.png"):
        load(houses)
    config = DataConfig(f"folder:{houses}", validation_fraction=0.25, skip_damaged=True)
    data = load_data(config, houses, 0, houses.parent / "cache")
    assert data.skipped == ("front/7.png",)
    images, targets = data.train.take(range(len(data.train)))
    np.testing.assert_array_equal(images[:, 0, 0, 0], 10 * targets[:, 0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "metadata.csv has no rows"),
        ("file_name,area\n", "metadata.csv has no rows"),
        ("file,area\n0.png,1\n", "has the columns file, area; expected images and metadata.csv"),
        ("file_name\n0.png\n", "has the columns file_name; expected"),
        ("file_name,group\n0.png,a\n", "has no column of targets; expected"),
        ("file_name,a,a\n0.png,1,2\n", "has the columns file_name, a, a; expected"),
        ("file_name,area\n0.png,1\n1.png\n", "line 3: expected 2 entries, none of them empty"),
        ("file_name,area\n0.png,1\n1.png,\n", "line 3: expected 2 entries, none of them empty"),
        ("file_name,area\n0.png,1,2\n", "line 2: expected 2 entries"),
        ("file_name,area\n0.png,1\n9.png,1\n", r"line 3: there is no image .*9\.png; add it"),
        ("file_name,area\nsub/0.png,1\n", r"sub cannot be read \(No such file or directory\)"),
        ("file_name,area\n../0.png,1\n", r"line 2: \.\./0\.png is not in the folder"),
        ("file_name,area\n/0.png,1\n", r"line 2: /0\.png is not in the folder"),
        ("file_name,area\n0.png,1\n0.png,2\n", r"line 3: 0\.png is in the table twice"),
        ("file_name,area\n0.png,1\n1.png,large\n", "line 3: area is 'large'; expected a number"),
        ("file_name,area\n0.png,1\n1.png,nan\n", "line 3: area is 'nan'; expected a number"),
        ('file_name,area\n"0.png,1\n', r"metadata\.csv cannot be read \(unexpected end of data\)"),
    ],
)
def test_table_refuses_wrong_entries_and_names_the_line(
    tmp_path: Path, text: str, told: str
) -> None:
    folder = tmp_path / "set"
    for i in range(2):
        image(folder / f"{i}.png", i)
    (folder / "metadata.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        load(folder)


def test_table_refuses_parts_that_differ(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    for part in ("train", "test"):
        for i in range(8):
            image(folder / part / f"{i}.png", i)
        table(folder / part, "kind", [f"{i}.png,{'ab'[i % 2]}" for i in range(8)])
    table(folder / "test", "kind", [f"{i}.png,c" for i in range(8)])
    with pytest.raises(DataError, match="line 2: the table of train has no image of class 'c'"):
        load(folder)
    table(folder / "test", "sort", [f"{i}.png,a" for i in range(8)])
    with pytest.raises(DataError, match="has the columns sort, but that of train kind"):
        load(folder)
    shutil.rmtree(folder / "test")
    with pytest.raises(DataError, match=r"metadata\.csv in train/ only"):
        load(folder)
