import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import ExifTags, Image
from torch.nn import functional

from hwnas.deploy import OutputMeaning, Preprocessing
from hwnas.errors import ArtifactError, ConfigError, DataError

RGB = Preprocessing(6, 5, 3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
GREY = Preprocessing(8, 8, 1, mean=(0.0,), std=(1.0,))


@given(arrays(np.uint8, st.tuples(st.integers(0, 3), st.just(6), st.just(5), st.just(3))))
def test_preprocessing_normalises_by_mean_and_standard_deviation(images: NDArray[np.uint8]) -> None:
    found = RGB(images)
    expected = (images / 255 - np.array(RGB.mean)) / np.array(RGB.std)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-5)


@given(value=st.integers(0, 255), height=st.integers(1, 20), width=st.integers(1, 20))
def test_preprocessing_keeps_plain_images_plain_at_any_size(
    value: int, height: int, width: int
) -> None:
    found = RGB.at(height, width)(np.full((1, 7, 9, 3), value, np.uint8))
    assert found.shape == (1, 3, height, width)
    torch.testing.assert_close(found, found[:, :, :1, :1].expand_as(found), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("size", "antialias"), [((4, 4), True), ((12, 16), False)])
def test_preprocessing_antialiases_only_when_it_shrinks_images(
    digits: NDArray[np.uint8], size: tuple[int, int], antialias: bool
) -> None:
    pixels = torch.from_numpy(digits).permute(0, 3, 1, 2) / 255
    expected = functional.interpolate(pixels, size, mode="bilinear", antialias=antialias)
    torch.testing.assert_close(GREY.at(*size)(digits), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fit", ["stretch", "crop"])
@pytest.mark.parametrize("size", [(8, 8), (5, 11), (12, 7)])
def test_pixels_are_the_rounded_input_before_it_is_normalised(
    fit: Literal["stretch", "crop"], size: tuple[int, int]
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 2), np.uint8)
    how = Preprocessing(*size, 2, (0.0, 0.0), (1.0, 1.0), fit)
    pixels = how.pixels(images)
    assert pixels.dtype == np.uint8
    exact = 255 * how(images).permute(0, 2, 3, 1).numpy()
    assert np.abs(pixels - exact).max() <= 0.5 + 1e-4
    if size == (8, 8):
        np.testing.assert_array_equal(pixels, images)


def test_preprocessing_gives_channels_last_and_keeps_its_input() -> None:
    images = torch.randint(0, 256, (4, 6, 5, 3), dtype=torch.uint8)
    before = images.clone()
    assert RGB(images).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


def test_preprocessing_reads_memory_mapped_images(
    tmp_path: Path, digits: NDArray[np.uint8]
) -> None:
    np.save(tmp_path / "images.npy", digits)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    torch.testing.assert_close(GREY(mapped[3:9]), GREY(digits[3:9]))
    torch.testing.assert_close(GREY(mapped[::-1]), GREY(digits[::-1].copy()))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 8, 8), np.uint8), r"shape \(2, 8, 8\); expected \(N, H, W, 1\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), r"expected \(N, H, W, 1\)"),
        (np.zeros((2, 0, 8, 1), np.uint8), r"shape \(2, 0, 8, 1\)"),
        (np.zeros((2, 8, 8, 1), np.float32), "float32; expected uint8"),
        (torch.zeros(2, 8, 8, 1), "float32; expected uint8"),
    ],
)
def test_preprocessing_refuses_arrays_of_wrong_shape_or_type(
    images: NDArray[np.uint8], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        GREY(images)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 8, 1, (0.0,), (1.0,)), "at least 1"),
        ((8, 8, 3, (0.0,), (1.0,)), "expected 3 of each"),
        ((8, 8, 1, (0.0,), (0.0,)), "must be positive"),
        ((8, 8, 1, (0.0,), (float("nan"),)), "must be positive"),
    ],
)
def test_preprocessing_refuses_invalid_settings(
    values: tuple[int, int, int, tuple[float, ...], tuple[float, ...]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocessing(*values)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(1e-6, 9)), min_size=1, max_size=5))
def test_preprocessing_round_trips_through_json(statistics: list[tuple[float, float]]) -> None:
    mean, std = zip(*statistics, strict=True)
    made = Preprocessing(3, 4, len(mean), mean, std)
    assert Preprocessing.from_json(made.to_json()) == made


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "1"])
@pytest.mark.parametrize("preprocessing", [RGB, GREY])
def test_read_image_converts_any_mode_to_the_channels_of_the_network(
    tmp_path: Path, mode: str, preprocessing: Preprocessing
) -> None:
    path = tmp_path / "image.png"
    Image.new(mode, (7, 4), 1).save(path)
    pixels = preprocessing.read_image(path)
    assert pixels.shape == (4, 7, preprocessing.channels)
    assert pixels.dtype == np.uint8
    assert preprocessing(pixels[None]).shape == (1, *preprocessing.input_shape)


def test_read_image_turns_photographs_upright(tmp_path: Path) -> None:
    """A camera that is held on its side stores pixels unturned, with their orientation."""
    rows = np.arange(6, dtype=np.uint8).repeat(4).reshape(6, 4)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # display turns it by 90 degrees, clockwise
    Image.fromarray(np.rot90(rows)).save(tmp_path / "image.png", exif=exif)
    assert (GREY.read_image(tmp_path / "image.png")[..., 0] == rows).all()


def test_read_image_names_files_that_are_not_images(tmp_path: Path) -> None:
    text, truncated = tmp_path / "notes.png", tmp_path / "half.jpg"
    text.write_text("no image")
    Image.effect_noise((64, 64), 50).save(truncated)
    truncated.write_bytes(truncated.read_bytes()[:900])
    for path in (text, truncated, tmp_path):
        with pytest.raises(DataError, match=f"{path} cannot be read as an image"):
            GREY.read_image(path)
    with pytest.raises(DataError, match="there is no image"):
        GREY.read_image(tmp_path / "missing.png")
    with pytest.raises(DataError, match="this network takes 2"):
        Preprocessing(8, 8, 2, (0, 0), (1, 1)).read_image(text)


def test_output_meaning_converts_class_scores_to_probabilities() -> None:
    meaning = OutputMeaning("class_scores", tuple("abcdefg"))
    logits = np.array([[0, 1000, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, np.log(3)]], np.float32)
    sure, unsure = meaning.describe(logits)
    assert (sure["label"], sure["probability"]) == ("b", 1.0)
    assert unsure["label"] == "g"
    assert unsure["probability"] == pytest.approx(3 / 9)
    assert [entry["label"] for entry in unsure["top"]] == ["g", "a", "b", "c", "d"]


@given(arrays(np.float32, (2, 3), elements=st.floats(-80, 80, width=32)))
def test_output_meaning_gives_probabilities_that_add_up_to_1(logits: NDArray[np.float32]) -> None:
    for row in OutputMeaning("class_scores", ("a", "b", "c")).describe(logits):
        assert sum(entry["probability"] for entry in row["top"]) == pytest.approx(1)
        assert row["probability"] == max(entry["probability"] for entry in row["top"])


def test_output_meaning_scales_standardised_values() -> None:
    meaning = OutputMeaning("values", ("x", "y"), scale=(2.0, 10.0), offset=(1.0, -5.0))
    assert meaning.describe(np.array([[1.5, -2.0]])) == [{"values": {"x": 4.0, "y": -25.0}}]
    assert OutputMeaning.from_json(json.loads(json.dumps(meaning.to_json()))) == meaning
    assert meaning.to_json()["schema"] != OutputMeaning("values").to_json()["schema"]
    assert not OutputMeaning("values", scale=(1.0, 2.0)).fits((1, 3))


def test_output_meaning_names_the_labels_that_are_present() -> None:
    meaning = OutputMeaning("label_scores", ("dog", "bicycle", "sea"))
    some, none = meaning.describe(np.array([[0.0, -1e4, math.log(3)], [-1.0, -1.0, -1.0]]))
    assert some["present"] == ["dog", "sea"]
    assert some["probabilities"] == pytest.approx({"dog": 0.5, "bicycle": 0.0, "sea": 0.75})
    assert none["present"] == []


@pytest.mark.parametrize(
    ("kind", "labels", "scale", "offset"),
    [
        ("class_scores", ("a", "b"), (1.0, 1.0), ()),
        ("values", ("a", "b"), (1.0,), ()),
        ("values", (), (1.0,), (0.0, 0.0)),
    ],
)
def test_output_meaning_refuses_scales_that_do_not_fit(
    kind: Any, labels: tuple[str, ...], scale: tuple[float, ...], offset: tuple[float, ...]
) -> None:
    with pytest.raises(ConfigError, match="expected one for each of the values"):
        OutputMeaning(kind, labels, scale, offset)


def test_output_meaning_returns_values_unchanged() -> None:
    outputs = torch.tensor([[1.5, -2.0]], requires_grad=True)
    assert OutputMeaning("values").describe(outputs) == [{"values": [1.5, -2.0]}]
    named = OutputMeaning("values", ("x", "y")).describe(outputs)
    assert named == [{"values": {"x": 1.5, "y": -2.0}}]


def test_output_meaning_converts_pixel_scores_to_shares_and_masks() -> None:
    classes = np.array([[[0, 2], [2, 2]], [[1, 1], [1, 1]]])
    outputs = np.eye(3, dtype=np.float32)[classes].transpose(0, 3, 1, 2)
    meaning = OutputMeaning("pixel_class_scores", ("a", "b", "c"))
    assert meaning.describe(outputs) == [
        {"shares": {"a": 0.25, "b": 0, "c": 0.75}},
        {"shares": {"a": 0, "b": 1, "c": 0}},
    ]
    assert np.array_equal(meaning.masks(outputs), classes)
    larger = meaning.masks(outputs, (4, 6))
    assert larger.dtype == np.uint8
    assert larger.shape == (2, 4, 6)
    assert larger[0, 0, 0] == 0, "the corner stays what it is"
    assert larger[0, -1, -1] == 2


def test_output_meaning_makes_masks_only_of_pixel_scores() -> None:
    with pytest.raises(DataError, match="gives class_scores of whole images, so it makes no mask"):
        OutputMeaning("class_scores", ("a", "b")).masks(np.zeros((1, 2)))
    meaning = OutputMeaning("pixel_class_scores", ("a", "b"))
    for wrong in ((1, 2), (1, 3, 4, 4)):
        with pytest.raises(DataError, match=r"expected \(N, 2, H, W\)"):
            meaning.describe(np.zeros(wrong))
    with pytest.raises(ConfigError, match="300 pixel classes; a mask can have at most 255"):
        OutputMeaning("pixel_class_scores", tuple(map(str, range(300))))


def test_output_meaning_refuses_wrong_outputs_labels_and_kinds() -> None:
    with pytest.raises(DataError, match=r"shape \(1, 2\); expected \(N, 3\)"):
        OutputMeaning("class_scores", ("a", "b", "c")).describe(np.zeros((1, 2)))
    with pytest.raises(ConfigError, match="two labels"):
        OutputMeaning("class_scores", ("a",))
    with pytest.raises(ConfigError, match="one of class_scores, label_scores, pixel_class"):
        OutputMeaning("polygons")  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [{}, [], {"schema": 2}, {"schema": 1}, {"schema": 1, "kind": 3}])
def test_output_meaning_and_preprocessing_refuse_damaged_json(data: dict[str, object]) -> None:
    for kind in (OutputMeaning, Preprocessing):
        with pytest.raises(ArtifactError):
            kind.from_json(data)


def test_output_meaning_round_trips_through_json() -> None:
    for meaning in (OutputMeaning("values"), OutputMeaning("pixel_class_scores", ("ä", "b"))):
        assert OutputMeaning.from_json(meaning.to_json()) == meaning


TASKS = OutputMeaning(
    "task_class_scores",
    ("cat", "dog", "owl", "left", "right"),
    tasks=(("kind", 3), ("side", 2)),
)


def test_task_scores_give_the_most_probable_class_of_each_task() -> None:
    (answer,) = TASKS.describe(np.array([[0.0, math.log(2), -1e4, math.log(3), 0.0]]))
    found = answer["tasks"]
    assert list(found) == ["kind", "side"]
    assert (found["kind"]["label"], found["side"]["label"]) == ("dog", "left")
    assert found["kind"]["probability"] == pytest.approx(2 / 3)
    assert [each["label"] for each in found["kind"]["top"]] == ["dog", "cat", "owl"]
    assert found["side"]["probability"] == pytest.approx(3 / 4)


def test_task_scores_are_the_same_after_json() -> None:
    text = json.dumps(TASKS.to_json())
    assert OutputMeaning.from_json(json.loads(text)) == TASKS
    assert TASKS.fits((7, 5))
    assert not TASKS.fits((7, 3))


@pytest.mark.parametrize(
    "tasks",
    [(), (("kind", 3),), (("kind", 3), ("side", 3)), (("a", 3), ("a", 2)), (("a", 5), ("b", 0))],
)
def test_task_scores_refuse_tasks_that_do_not_divide_the_labels(
    tasks: tuple[tuple[str, int], ...],
) -> None:
    with pytest.raises(ConfigError, match="expected the number of classes of each task"):
        OutputMeaning("task_class_scores", TASKS.labels, tasks=tasks)


def test_other_outputs_refuse_tasks() -> None:
    with pytest.raises(ConfigError, match="for task_class_scores only"):
        OutputMeaning("class_scores", TASKS.labels, tasks=TASKS.tasks)
