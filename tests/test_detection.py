"""Detection from recipe to bundle."""

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
from hwnas.search.tasks.box_metrics import box_metrics
from hwnas.search.tasks.detection import detection

Command = Callable[..., Any]

HERE = Path(__file__).parent
RECIPE = """
name = "squares"
seed = 1

[data]
source = "painted:squares"
validation_fraction = 0.2

[task]
name = "detection"
metrics = ["map_50", "map"]

[space]
name = "mobilenet"
resolution = [8]
width = [1.0]

[space.dense_head]
stride = 2
channels = [16, 32]

[train]
epochs = 80
learning_rate = 0.02
batch_size = 12
flip = true
sampling = "sandwich"
workers = 0

[[objective]]
metric = "map_50"
direction = "maximize"

[[objective]]
metric = "macs"
direction = "minimize"

[search]
trials = 4
workers = 0

[deploy]
top = 1
finetune_epochs = 20
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with a recipe and the module of a user."""
    folder = tmp_path_factory.mktemp("squares")
    shutil.copy(HERE / "search" / "painted.py", folder)
    (folder / "recipe.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("painted", None)


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    experiment.run(folder / "recipe.toml", folder / "run", reporter=make_reporter(quiet=True))
    return folder / "run"


@pytest.fixture(scope="module")
def bundle(run: Path) -> Bundle:
    return Bundle.load(min((run / "bundles").iterdir()))


@pytest.fixture(scope="module")
def data(folder: Path) -> ImageData:
    return load_data(DataConfig("painted:squares"), folder, 1, folder)


@pytest.fixture
def image(data: ImageData, tmp_path: Path) -> Path:
    pixels = data.test.take([0])[0][0, ..., 0]
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


@pytest.mark.slow
def test_detection_search_optimises_map(run: Path, bundle: Bundle) -> None:
    with (run / "front.csv").open() as file:
        assert all(0 <= float(row["map_50"]) <= 1 for row in csv.DictReader(file))
    named = {(m["name"], m.get("split")): m for m in bundle.description["metrics"]}
    assert named["map_50", "test"]["value"] > 0.5, "it has learned something"
    assert 0 < named["map_50", "test"]["standard_error"] < 0.3
    assert named["map", "validation"]["unit"] == "fraction"
    assert all(check.ok for check in bundle.verify())


@pytest.mark.slow
def test_detection_bundle_reproduces_the_recorded_score(bundle: Bundle, data: ImageData) -> None:
    images, boxes = data.test.take(range(len(data.test)))
    assert bundle.outputs == detection(data).meaning
    found = np.zeros((len(images), 100, 6), np.float32)
    for rows, answer in zip(found, bundle.run(images), strict=True):
        for row, box in zip(rows, answer["boxes"], strict=False):
            sides = [box[side] for side in ("left", "top", "right", "bottom")]
            row[:] = [*sides, bundle.outputs.labels.index(box["label"]), box["score"]]
    recorded = next(
        m["value"]
        for m in bundle.description["metrics"]
        if (m["name"], m.get("split")) == ("map_50", "test")
    )
    # Boxes of low scores, which add little, are not in the answers.
    ours = box_metrics(["map_50"], found, boxes, 2)["map_50"].value
    assert recorded - 0.3 < ours <= recorded + 0.01


@pytest.mark.slow
def test_run_command_prints_and_draws_boxes(
    hwnas: Command, bundle: Bundle, image: Path, tmp_path: Path
) -> None:
    drawn = tmp_path / "boxes.png"
    line = hwnas("run", bundle.folder, image, "--out", drawn).out.strip()
    (answer,) = json.loads(hwnas("run", bundle.folder, image, "--json").out)
    assert answer["boxes"], "the square is found"
    for box in answer["boxes"]:
        assert f"{box['label']} {box['score']:.1%}" in line
    before = np.asarray(Image.open(image).convert("RGB"))
    assert (np.asarray(Image.open(drawn)) != before).any()
    hwnas("run", bundle.folder, image, image, "--out", drawn).refused("--out is for one image")
    hwnas("run", bundle.folder, image, "--out", tmp_path / "m.jpg").refused("use the ending .png")


@pytest.mark.slow
def test_model_card_code_prints_the_boxes_of_the_bundle(
    bundle: Bundle, image: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(bundle.folder, tmp_path / "bundle"))
    text = (folder / "README.md").read_text()
    assert "a box and one score for each of 2 classes (hole, light) for each of 4 x 4 cells" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shutil.copy(image, folder / "image.png")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    (answer,) = bundle.run([image])
    printed = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in printed] == [box["label"] for box in answer["boxes"]]
    for (_, _, *sides), box in zip(printed, answer["boxes"], strict=True):
        wanted = [box[side] for side in ("left", "top", "right", "bottom")]
        assert [float(side) for side in sides] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["objective.0.metric=mAP"], ["'mAP'", "map_50"]),
        (['task.metrics=["map_51"]'], ["unknown task.metrics 'map_51'", "did you mean 'map_"]),
        (["task.name=classification"], ["targets are boxes", "task.name = 'detection'"]),
        (["task.name=segmentation"], ["[task] has no key 'metrics'"]),
        (["data.source=digits"], ["detection needs boxes", "classes"]),
        (["data.fit=crop"], ["boxes cannot be cropped"]),
        (["train.cutmix=0.5"], ["not defined for targets that are boxes"]),
        (["train.balanced=true"], ["the targets are boxes"]),
        (["train.label_smoothing=0.1"], ["task detection has no labels to smooth"]),
        (["train.distillation_loss=alpha"], ["compares probabilities of classes"]),
        (["train.teacher_sees=plain"], ["boxes are shifted and mirrored with their images"]),
        (["deploy.reference=true"], ["gives one vector per image and no maps"]),
        (
            ["space.dense_head.stride=1", "space.stem_stride=2"],
            ["dense_head.stride is 1", "lower space.stem_stride"],
        ),
        (["space.name=vit", "space.dense_head=0"], ["no key 'dense_head'"]),
    ],
)
def test_detection_search_refuses_settings_that_do_not_fit(
    hwnas: Command, folder: Path, tmp_path: Path, overrides: list[str], parts: list[str]
) -> None:
    sets = [word for override in overrides for word in ("--set", override)]
    answer = hwnas("search", folder / "recipe.toml", "--run", tmp_path / "run", *sets)
    answer.refused(*parts)
    assert not (tmp_path / "run").exists()
