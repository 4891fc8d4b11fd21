from __future__ import annotations

import io
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import DataError
from hwnas.search.data.image_archive import read_npz
from hwnas.search.data.image_cache import ImageCache
from hwnas.search.data.raw_images import RawImages

RNG = np.random.default_rng(0)
PLAIN = {
    "x_train": RNG.integers(0, 256, (30, 9, 8, 3), dtype=np.uint8),
    "y_train": np.arange(30) % 3,
    "x_test": RNG.integers(0, 256, (6, 9, 8, 3), dtype=np.uint8),
    "y_test": np.arange(6) % 3,
    "class_names": np.array(["cat", "dog", "eel"]),
}


def jpeg(value: int, size: tuple[int, int] = (10, 12), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value, value, value)).save(file, "JPEG")
    return file.getvalue()


def joined(name: str, files: list[bytes]) -> dict[str, Any]:
    """Return one split of the layout with concatenated files; its labels alternate 0 and 1."""
    return {
        f"{name}_jpeg": np.frombuffer(b"".join(files), np.uint8),
        f"{name}_offsets": np.cumsum([0, *map(len, files)]),
        f"y_{name}": np.arange(len(files)) % 2,
    }


def read(folder: Path, arrays: dict[str, Any], map_above: int = 10**9, **how: Any) -> RawImages:
    np.savez_compressed(folder / "set.npz", **arrays)
    return read_npz(folder / "set.npz", ImageCache(folder / "cache", map_above))


def test_read_npz_returns_plain_arrays_without_a_cache(tmp_path: Path) -> None:
    raw = read(tmp_path, PLAIN)
    np.testing.assert_array_equal(raw.images, PLAIN["x_train"])
    assert raw.test is not None
    np.testing.assert_array_equal(raw.test[0], PLAIN["x_test"])
    assert raw.targets.dtype == np.int64
    assert raw.class_names == ("cat", "dog", "eel")
    assert not (tmp_path / "cache").exists()


def test_read_npz_maps_masks_if_it_maps_images(tmp_path: Path) -> None:
    masks = {f"y_{part}": PLAIN[f"x_{part}"][..., 0] % 3 for part in ("train", "test")}
    for map_above, kind in ((10**9, np.ndarray), (1000, np.memmap)):
        raw = read(tmp_path, {**PLAIN, **masks}, map_above)
        assert type(raw.targets) is kind
        np.testing.assert_array_equal(raw.targets, masks["y_train"])
        assert raw.test is not None
        np.testing.assert_array_equal(raw.test[1], masks["y_test"])


def test_read_npz_refuses_masks_of_another_size(tmp_path: Path) -> None:
    masks = {f"y_{part}": PLAIN[f"x_{part}"][:, :5, :, 0] % 3 for part in ("train", "test")}
    with pytest.raises(DataError, match="y_train has masks of 5 x 8 pixels for images of 9 x 8;"):
        read(tmp_path, {**PLAIN, **masks})


def test_read_npz_extracts_large_arrays_once_and_maps_them(tmp_path: Path) -> None:
    raw = read(tmp_path, PLAIN, map_above=1000)
    assert isinstance(raw.images, np.memmap)
    np.testing.assert_array_equal(raw.images, PLAIN["x_train"])
    (extracted,) = tmp_path.glob("cache/*/x_train.npy")
    written = extracted.stat().st_mtime_ns
    read_npz(tmp_path / "set.npz", ImageCache(tmp_path / "cache", 1000))
    assert extracted.stat().st_mtime_ns == written
    changed = read(tmp_path, {**PLAIN, "x_train": PLAIN["x_train"][::-1]}, map_above=1000)
    np.testing.assert_array_equal(changed.images, PLAIN["x_train"][::-1])


@pytest.mark.parametrize("map_above", [0, 10**9], ids=["mapped", "in memory"])
def test_read_npz_returns_the_validation_part(tmp_path: Path, map_above: int) -> None:
    given = {"x_val": PLAIN["x_train"][:4], "y_val": np.array([2, 1, 0, 1])}
    raw = read(tmp_path, PLAIN | given, map_above)
    assert raw.validation is not None
    np.testing.assert_array_equal(raw.validation[0], given["x_val"])
    assert raw.validation[1].tolist() == [2, 1, 0, 1]
    encoded = joined("train", [jpeg(0), jpeg(50)]) | joined("test", [jpeg(100), jpeg(150)])
    raw = read(tmp_path, encoded | joined("val", [jpeg(200), jpeg(250)]), map_above)
    assert raw.validation is not None
    assert raw.validation[0][:, 0, 0, 0].tolist() == pytest.approx([200, 250], abs=2)


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_read_npz_decodes_jpeg_files(tmp_path: Path, held_out: str) -> None:
    train = joined("train", [jpeg(value) for value in (0, 50, 100, 150)])
    arrays = train | joined(held_out, [jpeg(200), jpeg(250)])
    raw = read(tmp_path, arrays)
    assert raw.images.shape == (4, 12, 10, 3)
    assert not isinstance(raw.images, np.memmap)
    assert raw.images[:, 0, 0, 0].tolist() == pytest.approx([0, 50, 100, 150], abs=2)
    assert raw.test is not None
    assert raw.test[0][:, 0, 0, 0].tolist() == pytest.approx([200, 250], abs=2)
    mapped = read(tmp_path, arrays, map_above=0)
    assert isinstance(mapped.images, np.memmap)
    np.testing.assert_array_equal(mapped.images, raw.images)


def test_read_npz_gives_grey_jpeg_files_one_channel(tmp_path: Path) -> None:
    files = [jpeg(value, mode="L") for value in (10, 20)]
    assert read(tmp_path, joined("train", files) | joined("test", files)).images.shape[3] == 1


def test_read_npz_does_not_decode_a_set_twice(tmp_path: Path) -> None:
    files = [jpeg(10), jpeg(20)]
    read(tmp_path, joined("train", files) | joined("test", files))
    for file in tmp_path.glob("cache/*/train-*.npy"):
        np.save(file, np.full((2, 12, 10, 3), 77, np.uint8))
    raw = read_npz(tmp_path / "set.npz", ImageCache(tmp_path / "cache", 10**9))
    assert (raw.images == 77).all()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([jpeg(1), b"not a jpeg", jpeg(2)], "1 of 4 images .* is damaged: train_jpeg: image 1 "),
        ([jpeg(1), jpeg(2), jpeg(3)[:-200]], "1 of 4 images .* is damaged: train_jpeg: image 2 "),
        ([jpeg(1), jpeg(2, (10, 13))], r"image 1 has shape \(13, 10, 3\) but the first has \(12"),
        ([jpeg(1), jpeg(2, mode="L")], r"image 1 has shape \(12, 10, 1\) but the first"),
    ],
)
def test_read_npz_names_a_bad_image(tmp_path: Path, train: list[bytes], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, joined("train", train) | joined("test", [jpeg(0)]))
    assert "\n" not in str(caught.value)


def test_read_npz_skips_damaged_images_on_request(tmp_path: Path) -> None:
    train = joined("train", [jpeg(10), b"not a jpeg", jpeg(200)])
    arrays = train | {"y_train": np.array([0, 1, 1])} | joined("test", [jpeg(0), jpeg(50)])
    np.savez(tmp_path / "set.npz", **arrays)
    raw = read_npz(tmp_path / "set.npz", ImageCache(tmp_path / "cache", 10**9), skip_damaged=True)
    assert raw.skipped == ("train_jpeg: image 1",)
    assert raw.images[:, 0, 0, 0].tolist() == pytest.approx([10, 200], abs=2)
    assert raw.targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    "offsets", [[0, 5], [1, 631], [0.0, 631.0], [[0, 631]], [0], [0, 631, 631], [0, 700, 631]]
)
def test_read_npz_refuses_invalid_offsets(tmp_path: Path, offsets: list[Any]) -> None:
    image = jpeg(1)
    fitting = np.where(np.array(offsets) == 631, len(image), np.array(offsets))
    arrays = joined("train", [image]) | joined("test", [image])
    with pytest.raises(DataError, match="train_offsets do not fit; expected rising integers"):
        read(tmp_path, arrays | {"train_offsets": fitting})


def test_read_npz_refuses_jpeg_data_that_are_not_bytes(tmp_path: Path) -> None:
    arrays = joined("train", [jpeg(1)]) | joined("test", [jpeg(1)])
    with pytest.raises(DataError, match=r"train_jpeg is float64 with shape .* expected uint8"):
        read(tmp_path, arrays | {"train_jpeg": np.zeros(4)})


def test_read_npz_names_missing_and_present_arrays(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no x_train, y_train, x_test.*found images, y_test"):
        read(tmp_path, {"images": np.zeros(3), "y_test": np.zeros(3)})
    with pytest.raises(DataError, match=r"has no test_jpeg, test_offsets, y_test"):
        read(tmp_path, joined("train", [jpeg(1)]))


@pytest.mark.parametrize("map_above", [0, 10**9], ids=["mapped", "in memory"])
@pytest.mark.parametrize("name", ["x_train", "y_train", "class_names"])
def test_read_npz_refuses_pickled_objects(tmp_path: Path, name: str, map_above: int) -> None:
    objects = np.array([object()] * 30, dtype=object)
    with pytest.raises(DataError, match=r"set.npz cannot be read|damaged"):
        read(tmp_path, {**PLAIN, name: objects}, map_above)


@pytest.mark.parametrize("map_above", [0, 10**9], ids=["mapped", "in memory"])
def test_read_npz_reports_every_damage_in_one_line(tmp_path: Path, map_above: int) -> None:
    np.savez_compressed(tmp_path / "whole.npz", **PLAIN)
    whole = (tmp_path / "whole.npz").read_bytes()
    damaged = [b"", b"text", whole[:100], whole[: len(whole) // 2], whole[:-1]]
    for at in range(200, 2500, 100):  # inside x_train
        damaged.append(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    for number, content in enumerate(damaged):
        path = tmp_path / f"damaged{number}.npz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{path.name} cannot be read") as caught:
            read_npz(path, ImageCache(tmp_path / "cache", map_above))
        assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.glob("cache/**/x_train.npy") if path.is_file()]


@pytest.mark.slow
def test_read_npz_leaves_no_partial_files_on_a_full_disk(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "set.npz", **{**PLAIN, "x_train": np.zeros((30, 99, 99), "u1")})
    code = """if True:
        import sys
        from pathlib import Path
        from hwnas.errors import StorageError
        from hwnas.search.data.image_archive import read_npz
        from hwnas.search.data.image_cache import ImageCache
        try:
            read_npz(Path("set.npz"), ImageCache(Path("cache"), 0))
        except StorageError as error:
            sys.exit(str(error))
    """
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert run.stderr.startswith("cannot write")
    assert "File too large" in run.stderr
    assert not [path for path in tmp_path.glob("cache/**/*") if path.is_file()]
