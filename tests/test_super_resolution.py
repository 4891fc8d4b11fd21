"""Super-resolution from recipe to bundle."""

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
import torch
from PIL import Image

from hwnas import experiment
from hwnas.deploy import Bundle
from hwnas.progress import make_reporter
from hwnas.search.data.image_data import DataConfig, ImageData
from hwnas.search.data.loading import load_data
from hwnas.search.tasks.super_resolution import super_resolution

Command = Callable[..., Any]

HERE = Path(__file__).parent
RECIPE = """
name = "edges"
seed = 1

[data]
source = "painted:pictures"
validation_fraction = 0.2

[task]
name = "super-resolution"

[space]
name = "edsr"
preset = "tiny"

[train]
epochs = 60
learning_rate = 0.01
batch_size = 12
flip = true
sampling = "sandwich"
workers = 0

[[objective]]
metric = "psnr_db"
direction = "maximize"

[[objective]]
metric = "macs"
direction = "minimize"

[search]
trials = 4
workers = 0

[deploy]
top = 1
finetune_epochs = 10
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a folder with a recipe and the module of a user."""
    folder = tmp_path_factory.mktemp("edges")
    shutil.copy(HERE / "search" / "painted.py", folder)
    (folder / "recipe.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("painted", None)


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    experiment.run(folder / "recipe.toml", folder / "run", reporter=make_reporter(quiet=True))
    return Bundle.load(min((folder / "run" / "bundles").iterdir()))


@pytest.fixture(scope="module")
def data(folder: Path) -> ImageData:
    return load_data(DataConfig("painted:pictures", 0.2), folder, 1, folder)


@pytest.fixture
def image(data: ImageData, tmp_path: Path) -> Path:
    """Write an image that is larger than the network's input."""
    pixels = data.test.take(range(6))[0].reshape(2, 3, 8, 8, 3).transpose(0, 2, 1, 3, 4)
    Image.fromarray(pixels.reshape(16, 24, 3)).save(tmp_path / "image.png")
    return tmp_path / "image.png"


@pytest.mark.slow
def test_search_optimises_the_signal_to_noise_ratio(bundle: Bundle, data: ImageData) -> None:
    with (bundle.folder.parents[1] / "front.csv").open() as file:
        assert all(10 < float(row["psnr_db"]) < 59 for row in csv.DictReader(file))
    recorded = {
        m["name"]: m["value"] for m in bundle.description["metrics"] if m.get("split") == "test"
    }
    images, pictures = data.test.take(range(len(data.test)))
    task = super_resolution(data)
    assert bundle.outputs == task.meaning
    found = task.statistics(torch.from_numpy(bundle.predict(images)), torch.from_numpy(pictures))
    for name in ("psnr_db", "ssim"):
        assert found[name].mean().item() == pytest.approx(recorded[name], rel=1e-4)
    enlarged = torch.from_numpy(images.repeat(2, 1).repeat(2, 2)).permute(0, 3, 1, 2) / 255
    mean, std = (
        torch.tensor(each).view(1, 3, 1, 1) for each in (data.channel_mean, data.channel_std)
    )
    before = task.statistics((enlarged - mean) / std, torch.from_numpy(pictures))
    assert recorded["psnr_db"] > before["psnr_db"].mean().item() + 3, "it has learned something"
    assert all(check.ok for check in bundle.verify())


@pytest.mark.slow
def test_run_command_writes_the_picture_of_a_large_image(
    hwnas: Command, bundle: Bundle, image: Path, tmp_path: Path
) -> None:
    written = tmp_path / "picture.png"
    line = hwnas("run", bundle.folder, image, "--out", written).out.strip()
    assert line.endswith("48 x 32 pixels")
    (answer,) = json.loads(hwnas("run", bundle.folder, image, "--json").out)
    assert (answer["height"], answer["width"]) == (32, 48)
    picture = np.asarray(Image.open(written))
    assert (picture == bundle.pictures([image])[0]).all()
    halved = picture.reshape(16, 2, 24, 2, 3).mean((1, 3))
    assert np.abs(halved - np.asarray(Image.open(image))).mean() < 10, "it shows the same"
    hwnas("run", bundle.folder, image, image, "--out", written).refused("--out is for one image")
    hwnas("serve", bundle.folder).refused("hwnas serve does not answer with yet")
    hwnas("export", bundle.folder.parents[1], "--web", tmp_path / "w").refused("gives picture")
    hwnas("run", bundle.folder, image, "--out", tmp_path / "p.jpg").refused("use the ending .png")


@pytest.mark.slow
def test_model_card_code_writes_the_picture_of_the_bundle(
    bundle: Bundle, image: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(bundle.folder, tmp_path / "bundle"))
    text = (folder / "README.md").read_text()
    assert "gives a picture of 16 x 16 pixels" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    shutil.copy(image, folder / "image.png")
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    found, wanted = np.asarray(Image.open(folder / "picture.png")), bundle.pictures([image])[0]
    assert np.abs(found.astype(int) - wanted).max() <= 1, "rounding may differ"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["objective.0.metric=psnr"], ["'psnr'", "psnr_db"]),
        (['task.metrics=["psnr"]'], ["unknown task.metrics 'psnr'", "did you mean 'psnr_db"]),
        (["task.name=classification"], ["targets are pictures", "task.name = 'super-resolution'"]),
        (["data.source=digits"], ["super-resolution needs pictures", "classes"]),
        (["data.size=16"], ["data.size is 16 x 16", "keep their 8 x 8 pixels"]),
        (["data.fit=crop"], ["pictures cannot be cropped"]),
        (["train.crop=0.5"], ["train.crop changes the pixels of images", "train.flip"]),
        (["train.first_resolution=0.5"], ["train.first_resolution changes the pixels"]),
        (["train.cutmix=0.5"], ["train.cutmix changes the pixels"]),
        (["train.rand_augment=1"], ["train.rand_augment changes the pixels"]),
        (["train.balanced=true"], ["the targets are pictures"]),
        (["train.label_smoothing=0.1"], ["task super-resolution has no labels to smooth"]),
        (["train.distillation_loss=alpha"], ["compares probabilities of classes"]),
        (["train.teacher_sees=plain"], ["pictures are shifted and mirrored with their images"]),
        (["deploy.reference=true"], ["gives one vector per image and no maps"]),
        (["run.minutes=10"], ["plans no job for pictures", "train.epochs"]),
        (["space.upscale=3"], ["[space] has no key 'upscale'"]),
        (["space.blocks=['wide']"], ["space", "blocks"]),
        (["space.name=vit", "space.preset=tiny"], ["needs pictures of 3 channels", "space edsr"]),
        (["space.name=mobilenet"], ["2 times as large as their images; choose space edsr"]),
    ],
)
def test_super_resolution_refuses_settings_that_do_not_fit(
    hwnas: Command, folder: Path, tmp_path: Path, overrides: list[str], parts: list[str]
) -> None:
    sets = [word for override in overrides for word in ("--set", override)]
    answer = hwnas("search", folder / "recipe.toml", "--run", tmp_path / "run", *sets)
    answer.refused(*parts)
    assert not (tmp_path / "run").exists()
