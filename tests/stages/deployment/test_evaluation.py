"""Evaluation of all files of a network on images with targets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

import hwnas as api
from hwnas.deploy import Bundle
from hwnas.errors import ConfigError, DataError
from hwnas.progress import SilentReporter

Command = Callable[..., Any]
FORMATS = ["openvino", "onnx-pixels"]


@pytest.fixture
def bundle(finished: Path, tmp_path: Path) -> Bundle:
    """Bundle of a trained network outside its run, with converted files."""
    api.open(finished).best().export(tmp_path / "bundle", formats=FORMATS)
    return Bundle.load(tmp_path / "bundle")


@pytest.fixture
def images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Digits, uint8 (N, 8, 8, 1), and their classes."""
    found = load_digits()
    return (found.images[..., None] * 15.9375).astype(np.uint8), found.target


@pytest.mark.slow
def test_each_file_has_the_accuracy_of_its_answers(
    bundle: Bundle, images: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> None:
    found = api.evaluate(bundle, "digits", split="all", reporter=SilentReporter())
    pixels, classes = images
    answers = bundle.predict(pixels).argmax(axis=1)
    assert (found.n, found.of, found.split) == (len(classes), len(classes), "all")
    assert [each.file for each in found.files] == ["model.onnx", "model.xml", "model.pixels.onnx"]
    for each in found.files:
        quality = each.qualities[0]
        assert quality.metric == "accuracy"
        assert quality.value == pytest.approx((answers == classes).mean(), abs=0.01)
        assert abs(quality.loss) < 0.01
        assert each.is_reference == (each.file == "model.onnx")
        assert sum(kind.images for kind in each.classes) == len(classes)
        for kind in each.classes:
            assert kind.images == (classes == int(kind.label)).sum()
            assert kind.right + sum(kind.mistaken.values()) == kind.images
            assert list(kind.mistaken.values()) == sorted(kind.mistaken.values(), reverse=True)
    share = sum(kind.right for kind in found.files[0].classes) / len(classes)
    assert share == pytest.approx(found.files[0].qualities[0].value)
    assert api.evaluate(bundle, "digits", reporter=SilentReporter()).n < len(classes)


@pytest.mark.slow
def test_export_and_conversion_record_the_quality_of_the_files(
    bundle: Bundle, hwnas: Command
) -> None:
    for each in bundle.converted:
        assert each.quality is not None
        assert each.quality.split == "test"
        assert f"| {each.quality.value:.4f} |" in (bundle.folder / "README.md").read_text()
    plain = api.convert(bundle, "onnx-opset17").converted[-1]
    assert plain.quality is None
    answer = hwnas("convert", bundle.folder, "--to", "onnx-opset17", "--data", "digits")
    made = Bundle.load(bundle.folder).converted[-1]
    assert made.quality is not None
    assert f"accuracy {made.quality.value:.4f} on {made.quality.n} test images" in answer.out


@pytest.mark.slow
def test_broken_and_foreign_files_do_not_hide_the_others(bundle: Bundle, hwnas: Command) -> None:
    (bundle.folder / "model.pixels.onnx").write_bytes(b"broken")
    path = bundle.folder / "bundle.json"
    description = json.loads(path.read_text())
    foreign = {**description["converted"][0], "format": "strange", "main": "model.strange"}
    description["converted"].append(foreign)
    path.write_text(json.dumps(description))
    answer = hwnas("evaluate", bundle.folder, "--data", "digits")
    assert answer.status == 1
    assert "✗ model.pixels.onnx: " in answer.out
    assert "model.strange: not run here: there is no format 'strange'" in answer.out
    by_class = hwnas("evaluate", bundle.folder, "--data", "digits", "--by-class").out
    assert "model.onnx by class" in by_class
    assert "mistaken for" in by_class
    files = json.loads(hwnas("evaluate", bundle.folder, "--data", "digits", "--json").out)["files"]
    assert [len(each["metrics"]) for each in files] == [1, 1, 0, 0]
    assert [bool(each["failure"]) for each in files] == [False, False, True, False]


def test_run_and_onnx_file_are_evaluated(finished: Path, tmp_path: Path, hwnas: Command) -> None:
    of_run = json.loads(hwnas("evaluate", finished, "--pick", "fastest", "--json").out)
    fastest = api.open(finished).best("fastest").bundle
    inside = api.evaluate(fastest, reporter=SilentReporter())
    assert of_run == json.loads(json.dumps(inside.to_json()))
    recorded = {
        row["name"]: row for row in fastest.description["metrics"] if row.get("split") == "test"
    }
    (evaluated,) = of_run["files"][0]["metrics"]
    assert {name: evaluated[name] for name in ("value", "standard_error", "n")} == pytest.approx(
        {name: recorded["accuracy"][name] for name in ("value", "standard_error", "n")}
    )
    run = api.open(finished)
    assert api.evaluate(run.best("fastest"), reporter=SilentReporter()) == inside
    assert api.evaluate(run, pick="fastest", reporter=SilentReporter()) == inside
    other = api.evaluate(run.best("fastest"), "digits", split="all", reporter=SilentReporter())
    assert other.n > inside.n
    alone = Path(shutil.copy(fastest.onnx_file, tmp_path / "alone.onnx"))
    (file,) = api.evaluate(alone, "digits", reporter=SilentReporter()).files
    assert file.file == "alone.onnx"
    assert file.computed_in == "fp32 in onnxruntime"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--data", "nothing"], "nothing"),
        (["--data", "digits", "--split", "half"], "'half'"),
        ([], "comes without images; give some (--data)"),
        (["--data", "digits", "--pick", "knee"], "--pick is for the networks of a run"),
    ],
)
def test_wrong_options_are_refused(
    finished: Path, tmp_path: Path, hwnas: Command, options: list[str], told: str
) -> None:
    found = api.open(finished).best().bundle
    folder = shutil.copytree(found.folder, tmp_path / "alone")
    hwnas("evaluate", folder, *options).refused(told)


def test_few_new_images_of_some_classes_are_evaluated(
    finished: Path,
    tmp_path: Path,
    images: tuple[NDArray[np.uint8], NDArray[np.int64]],
    hwnas: Command,
) -> None:
    pixels, classes = images
    rows = [*np.flatnonzero(classes == 7)[:3], *np.flatnonzero(classes == 2)[:2]]
    for row in rows:
        path = tmp_path / "new" / str(classes[row]) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[row, ..., 0]).save(path)
    bundle = Bundle.load(
        shutil.copytree(api.open(finished).best().bundle.folder, tmp_path / "alone")
    )
    right = (bundle.predict(pixels[rows]).argmax(axis=1) == classes[rows]).mean()
    found = api.evaluate(bundle, f"folder:{tmp_path / 'new'}", split="all")
    assert (found.n, found.of) == (5, 5)
    assert found.files[0].qualities[0].value == pytest.approx(right)
    counts = {each.label: each.images for each in found.files[0].classes}
    assert counts == {str(number): {2: 2, 7: 3}.get(number, 0) for number in range(10)}
    hwnas("evaluate", bundle.folder, "--data", f"folder:{tmp_path / 'new'}").refused(
        "too few", "need no parts: give --split all"
    )
    shutil.rmtree(tmp_path / "new" / "2")
    by_class = hwnas(
        "evaluate", bundle.folder, "--data", f"folder:{tmp_path / 'new'}", "--split", "all",
        "--by-class",
    ).out  # fmt: skip
    assert "3 of 3 images (all)" in by_class
    (tmp_path / "new" / "7").rename(tmp_path / "new" / "seven")
    hwnas(
        "evaluate", bundle.folder, "--data", f"folder:{tmp_path / 'new'}", "--split", "all"
    ).refused("has images of 'seven', which is none of the network's 10 classes")  # fmt: skip
    with pytest.raises(DataError) as refused:  # all images of other classes would not fit, either
        api.evaluate(bundle, f"folder:{tmp_path / 'new'}")
    assert "--split all" not in str(refused.value)


def test_images_that_do_not_fit_are_refused(
    finished: Path, tmp_path: Path, images: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> None:
    pixels, classes = images
    some = classes < 3
    path = tmp_path / "three.npz"
    parts = {"x_train": pixels[some], "y_train": classes[some]}
    np.savez(path, **parts, x_test=pixels[some], y_test=classes[some])
    folder = shutil.copytree(api.open(finished).best().bundle.folder, tmp_path / "alone")
    with pytest.raises(DataError, match=r"has 3 classes .* give images with the classes"):
        api.evaluate(folder, f"npz:{path}")
    np.savez(path, x_train=pixels, y_train=classes, x_test=pixels, y_test=classes)
    with pytest.raises(DataError, match=r"divided into parts .* name one of them"):
        api.evaluate(folder, f"npz:{path}", split="all")
    with pytest.raises(ConfigError, match="the split is 'half'; expected one of test"):
        api.evaluate(folder, f"npz:{path}", split="half")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the largest loss is -1"):
        api.convert(folder, "onnx-pixels", data=f"npz:{path}", max_loss=-1)
