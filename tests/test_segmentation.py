"""Segmentation from recipe to bundle: no step assumes one class per image."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.progress import make_reporter
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.segmentation import segmentation

Command = Callable[..., Any]

HERE = Path(__file__).parent
UNET = HERE.parent / "experiments" / "segmentation" / "unet.py"
RECIPE = """
name = "strokes"
seed = 1

[data]
source = "painted:strokes"
validation_fraction = 0.2

[task]
name = "segmentation"

[space]
name = "elastic"
model = "unet:build_unet"
widths = [0.5, 1.0]
step = 4

[train]
epochs = 15
batch_size = 12
flip = true
sampling = "sandwich"
distillation_loss = "alpha"
workers = 0

[[objective]]
metric = "mean_iou"
direction = "maximize"

[[objective]]
metric = "macs"
direction = "minimize"

[search]
trials = 4
workers = 0

[deploy]
top = 1
finetune_epochs = 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with a recipe and the modules of a user."""
    folder = tmp_path_factory.mktemp("strokes")
    shutil.copy(UNET, folder)
    shutil.copy(HERE / "search" / "painted.py", folder)
    (folder / "recipe.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    for name in ("unet", "painted"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    experiment.run(folder / "recipe.toml", folder / "run", reporter=make_reporter(quiet=True))
    return folder / "run"


@pytest.fixture(scope="module")
def bundles(run: Path) -> list[Bundle]:
    return [Bundle.load(path) for path in sorted((run / "bundles").iterdir())]


@pytest.fixture(scope="module")
def data(folder: Path) -> ImageData:
    return load_data(DataConfig("painted:strokes"), folder, 1, folder)


@pytest.mark.slow
def test_segmentation_search_optimises_mean_iou(run: Path, bundles: list[Bundle]) -> None:
    with (run / "front.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(0 < float(row["mean_iou"]) <= 1 for row in rows)
    assert bundles
    for bundle in bundles:
        named = {(m["name"], m.get("split")): m for m in bundle.description["metrics"]}
        assert named["mean_iou", "test"]["value"] > 0.6, "it has learned something"
        assert 0 < named["mean_iou", "test"]["standard_error"] < 0.2
        assert named["pixel_accuracy", "validation"]["unit"] == "fraction"
    assert "test mean IoU" in (run / "report.html").read_text()


@pytest.mark.slow
def test_segmentation_bundles_reproduce_the_recorded_scores(
    bundles: list[Bundle], data: ImageData
) -> None:
    images, masks = data.test.take(range(len(data.test)))
    task = segmentation(data)
    for bundle in bundles:
        assert all(check.ok for check in bundle.verify())
        assert bundle.outputs == task.meaning
        found = np.stack(bundle.masks(images))
        known = masks != 255
        recorded = next(
            m["value"]
            for m in bundle.description["metrics"]
            if (m["name"], m.get("split")) == ("pixel_accuracy", "test")
        )
        assert (found == masks)[known].mean() == pytest.approx(recorded, abs=0.01)
        for mask, answer in zip(found, bundle.run(images), strict=True):
            assert answer["shares"]["ink"] == pytest.approx((mask == 1).mean())


@pytest.mark.slow
def test_run_command_writes_a_mask_in_the_size_of_the_image(
    hwnas: Command, bundles: list[Bundle], data: ImageData, tmp_path: Path
) -> None:
    image, mask = tmp_path / "image.png", tmp_path / "mask.png"
    pixels = data.test.take([0])[0][0, ..., 0]
    Image.fromarray(pixels.repeat(3, 0).repeat(2, 1)).save(image)
    line = hwnas("run", bundles[0].folder, image, "--out", mask).out.strip()
    (answer,) = json.loads(hwnas("run", bundles[0].folder, image, "--json").out)
    likeliest = max(answer["shares"], key=answer["shares"].get)
    assert line.startswith(f"{image}  {likeliest} {answer['shares'][likeliest]:.1%}")
    classes = np.asarray(Image.open(mask))
    assert classes.shape == (24, 16)
    assert set(np.unique(classes)) <= {0, 1, 2}
    hwnas("run", bundles[0].folder, image, image, "--out", mask).refused("--out", "one image")
    hwnas("run", bundles[0].folder, image, "--out", tmp_path / "m.jpg").refused(
        "use the ending .png"
    )


@pytest.mark.slow
def test_model_card_code_gives_the_mask_of_the_bundle(
    bundles: list[Bundle], data: ImageData, tmp_path: Path
) -> None:
    bundle = bundles[0]
    folder = Path(shutil.copytree(bundle.folder, tmp_path / "bundle"))
    text = (folder / "README.md").read_text()
    assert "for each pixel one score for each of 3 classes (paper, ink, chalk)" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    images, _ = data.test.take([0])
    Image.fromarray(images[0, ..., 0]).save(folder / "image.png")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.replace("'", '"')) == bundle.run(images)[0]["shares"]
    assert np.array_equal(np.asarray(Image.open(folder / "mask.png")), bundle.masks(images)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["objective.0.metric=mean_iuo"], ["'mean_iuo'", "'mean_iou'", "pixel_accuracy"]),
        (["objective.0.direction=minimize"], ["more of it is better"]),
        (["task.name=segmentatio"], ["did you mean 'segmentation'"]),
        (["task.label_smoothing=1.5"], ["label_smoothing is 1.5"]),
        (["task.ignore_index=7"], ["[task] has no key 'ignore_index'"]),
        (["train.mixup=0.2"], ["train.mixup"]),
        (["task.name=classification"], ["targets are masks", "task.name = 'segmentation'"]),
        (["data.source=digits"], ["segmentation needs masks", "classes of whole images"]),
        (
            ["train.teacher_sees=plain"],
            ["masks are shifted and mirrored with their images", "set it to 'augmented'"],
        ),
        (["space.model=unet:UNet"], ["[space.model] channels is missing"]),
        (["data.size=7"], ["UNet does not run on an input of (2, 1, 7, 7)", "unet.py line"]),
    ],
)
def test_segmentation_search_refuses_settings_that_do_not_fit(
    hwnas: Command, folder: Path, tmp_path: Path, overrides: list[str], parts: list[str]
) -> None:
    sets = [word for override in overrides for word in ("--set", override)]
    answer = hwnas("search", folder / "recipe.toml", "--run", tmp_path / "run", *sets)
    answer.refused(*parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("space", ["vit", "simplenet", "channels"])
def test_segmentation_search_refuses_classification_spaces(
    hwnas: Command, folder: Path, tmp_path: Path, space: str
) -> None:
    before, after = RECIPE.split("[space]")
    table = f'[space]\nname = "{space}"\n\n[train]' + after.split("[train]")[1]
    (folder / f"{space}.toml").write_text(before + table)
    answer = hwnas("search", folder / f"{space}.toml", "--run", tmp_path / "run")
    answer.refused(
        f"space {space!r} builds networks with outputs of shape (1, 3)",
        "3 maps; choose space mobilenet, resnet or hybrid",
        "elastic",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_classification_search_refuses_segmentation_networks(
    hwnas: Command, folder: Path, tmp_path: Path
) -> None:
    answer = hwnas(
        "search", folder / "recipe.toml", "--run", tmp_path / "run",
        "--set", "data.source=digits", "--set", "task.name=classification",
    )  # fmt: skip
    answer.refused("outputs of shape (1, 10, 8, 8)", "one vector per image")
