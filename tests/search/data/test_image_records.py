from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.experiment.from_images import recipe_for_images
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.layouts.image_records import _damage_named, kind_of_records
from hwnas.search.data.loading import load_data
from hwnas.search.data.sources import source_manifest


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (6, 6), shade).save(file, "PNG")
    return file.getvalue()


def rows(targets: list[Any], declared: Any = None, column: str = "label", **more: Any) -> pa.Table:
    """Return images whose shades are ten times their number, as Hugging Face stores them."""
    images = [{"bytes": png(10 * i), "path": f"{i}.png"} for i in range(len(targets))]
    table = pa.table({"image": images, column: targets, **more})
    if declared is not None:
        features = {"image": {"_type": "Image"}, column: declared}
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    return table


def write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
        return
    with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)


def load(folder: Path, **options: Any) -> ImageData:
    config = DataConfig(f"folder:{folder}", validation_fraction=0.25, **options)
    return load_data(config, folder, 0, folder.parent / "cache")


CLASSES = {"_type": "ClassLabel", "names": ["rust", "healthy"]}


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"),
        ("train/data-00000-of-00001.arrow", "validation/data-00000-of-00001.arrow"),
    ],
)
def test_records_give_images_and_declared_classes_by_part(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    folder = tmp_path / "beans"
    for name, count in zip(names, (16, 6), strict=True):
        write(folder / name, rows([i % 2 for i in range(count)], CLASSES))
    write((folder / names[0]).parent / "cache-0123.arrow", rows([1] * 9, CLASSES))
    data = load(folder)
    assert data.class_names == ("rust", "healthy")
    assert len(data.test) == 6
    assert len(data.train) + len(data.validation) == 16
    images, targets = data.train.take(range(len(data.train)))
    np.testing.assert_array_equal(images[:, 0, 0, 0] // 10 % 2, targets)
    assert source_manifest(f"folder:{folder}", folder) == data.manifest


@pytest.mark.parametrize(
    ("targets", "declared", "kind", "names"),
    [
        (["b", "a"], None, "classes", ("a", "b")),
        ([0, 1], None, "classes", ("0", "1")),
        ([0.5, 1.0], None, "values", None),
        ([[0.5, 1.0], [2.0, 3.0]], None, "values", None),
        ([[0], [0, 1]], {"_type": "Sequence", "feature": CLASSES}, "labels", None),
    ],
    ids=["texts", "numbers", "floats", "lists of floats", "lists of labels"],
)
def test_records_tell_classes_labels_and_values_apart(
    tmp_path: Path, targets: list[Any], declared: Any, kind: str, names: tuple[str, ...] | None
) -> None:
    folder = tmp_path / "set"
    write(folder / "all.parquet", rows(targets * 8, declared))
    assert kind_of_records(folder) == kind
    data = load(folder)
    assert data.class_names == names
    assert data.kind == ("classes" if kind == "classes" else "values")
    if kind == "labels":
        assert data.value_names == ("rust", "healthy")
        assert sorted(np.unique(data.train.targets, axis=0).tolist()) == [[1, 0], [1, 1]]
    task = {"classes": "accuracy", "labels": "multilabel", "values": "regression"}[kind]
    assert task in recipe_for_images(folder, 10)


def test_records_find_the_column_of_targets_among_others(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    more = {"id": list(range(16)), "source": ["web"] * 16}
    write(folder / "all.parquet", rows([0, 1] * 8, **more))
    assert load(folder).class_names == ("0", "1")
    write(folder / "all.parquet", rows([0, 1] * 8, CLASSES, "disease", **more))
    assert load(folder).class_names == ("rust", "healthy")
    write(folder / "all.parquet", rows([0, 1] * 8, None, "disease", **more))
    with pytest.raises(DataError, match="columns disease, id, source beside the image; which one"):
        load(folder)


def test_records_of_a_group_stay_in_one_split(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    groups = [f"patient {i // 4}" for i in range(24)]
    write(folder / "all.parquet", rows([0, 1] * 12, group=groups))
    data = load(folder)
    assert data.class_names == ("0", "1")
    images = [each.take(range(len(each)))[0] for each in (data.train, data.validation, data.test)]
    patients = [set((each[:, 0, 0, 0] // 40).tolist()) for each in images]
    assert sum(map(len, patients)) == len(set().union(*patients)) == 6


@pytest.mark.parametrize(
    ("error", "told"), [(OSError(), "OSError"), (OSError("no magic bytes\nmore"), "no magic bytes")]
)
def test_damage_is_named_by_the_first_line_or_the_type(
    error: OSError, told: str, tmp_path: Path
) -> None:
    refused = pytest.raises(DataError, match=rf"a\.parquet cannot be read \({told}\); ")
    with refused, _damage_named(tmp_path / "a.parquet"):
        raise error


def test_records_name_damaged_images_by_their_row(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    table = rows([0, 1] * 8).to_pylist()
    table[5]["image"]["bytes"] = b"no image"
    write(folder / "all.parquet", pa.Table.from_pylist(table))
    with pytest.raises(DataError, match=r"1 of 16 images .* is damaged: all\.parquet: row 5"):
        load(folder)
    data = load(folder, skip_damaged=True)
    assert data.skipped == ("all.parquet: row 5",)
    images, targets = data.train.take(range(len(data.train)))
    np.testing.assert_array_equal(images[:, 0, 0, 0] // 10 % 2, targets)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            pa.table({"label": [0, 1]}),
            "has 0 columns of encoded images among label; expected files",
        ),
        (rows([0, 1], image2=[png(0), png(1)]), "has 2 columns of encoded images"),
        (pa.table({"image": [png(0)]}), "has the columns none beside the image"),
        (rows([0, None]), "has a row without label; remove it"),
        (rows([[0.5], [1.0, 2.0]]), "label holds list; expected whole numbers or texts"),
        (rows([0.5, float("nan")]), "numbers that are not finite"),
        (rows([1]).slice(0, 0), "has no rows"),
        (
            pa.table({"image": [{"bytes": None, "path": "a.png"}] * 2, "label": [0, 1]}).cast(
                rows([1]).schema
            ),
            "row 0 of .* has no image",
        ),
    ],
)
def test_records_refuse_tables_that_they_cannot_read(
    tmp_path: Path, table: pa.Table, told: str
) -> None:
    folder = tmp_path / "set"
    write(folder / "all.parquet", table)
    with pytest.raises(DataError, match=told):
        load(folder)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_records_name_a_damaged_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "set" / f"all.{suffix}"
    write(path, rows([0, 1] * 8))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"all\.{suffix} cannot be read"):
        load(path.parent)
