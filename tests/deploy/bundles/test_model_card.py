import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    Preprocessing,
    export_onnx,
    write_bundle,
)
from hwnas.deploy.bundles.model_card import _run, card
from hwnas.deploy.export.comparison import relative_error


def test_card_code_runs_and_prints_the_label_that_the_bundle_gives(
    folder: Path, packed: Bundle, digits: NDArray[np.uint8]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    Image.fromarray(digits[7, :, :, 0]).save(folder / "image.png")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == packed.run(digits[7:8])[0]["label"]


def test_card_says_the_kind_of_each_number(packed: Bundle) -> None:
    text = (packed.folder / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    (accuracy,) = [row for row in rows if "accuracy" in row]
    assert "0.97 fraction | 0.9435 to 0.9843 | 360 | evaluated | test" in accuracy
    predicted, measured = [row for row in rows if "latency" in row]
    assert "| predicted |" in predicted
    assert "1 ms | p20 0.9, p80 1.1 | 50 | measured | cpu-onnxruntime-fp32-b1-t1" in measured
    assert "contended" in measured


def test_card_escapes_markup_in_foreign_text(packed: Bundle) -> None:
    text = card(packed.description)
    assert "<b>" not in text
    assert r"digits \| &lt;b>" in text
    assert "| hardware.cores | 2 |" in text
    assert "Licence: not stated" in text


def test_card_describes_values_and_shortens_long_label_lists(packed: Bundle) -> None:
    outputs = {**packed.description["outputs"], "kind": "values", "labels": []}
    assert "gives values." in card({**packed.description, "outputs": outputs})
    outputs = {**packed.description["outputs"], "labels": [f"class{i}" for i in range(1000)]}
    text = card({**packed.description, "outputs": outputs})
    assert "1000 classes" in text
    assert "class999" not in text


@pytest.fixture(scope="module")
def colour(
    to_pack: BundleNetwork,
    facts: BundleFacts,
    tmp_path_factory: pytest.TempPathFactory,
    digits: NDArray[np.uint8],
) -> Bundle:
    """Bundle of a network that takes RGB images of 7 x 11 pixels."""
    torch.manual_seed(2)
    network = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(60, 10))
    folder = tmp_path_factory.mktemp("colour")
    made = export_onnx(network, (3, 7, 11), folder / "network.onnx", traceable=True)
    how = Preprocessing(7, 11, 3, (0.3, 0.5, 0.4), (0.2, 0.3, 0.25))
    changed = replace(
        to_pack,
        export=made,
        weights=network.state_dict(),
        preprocessing=how,
        golden_images=np.repeat(digits[:5], 3, axis=3),
    )
    return write_bundle(folder / "bundle", changed, facts)


def image_files() -> dict[str, tuple[Image.Image, dict[str, Any]]]:
    """Return images that are easily read incorrectly, with the options to save them."""
    rng = np.random.default_rng(0)
    photo = rng.integers(0, 256, (40, 23, 3), np.uint8)
    ramp = np.linspace(0, 65535, 30 * 20).reshape(30, 20).astype(np.uint16)
    clear = np.dstack([photo, rng.integers(0, 256, (40, 23), np.uint8)])
    sideways = Image.Exif()
    sideways[274] = 6
    mirrored = Image.Exif()
    mirrored[274] = 5
    return {
        "sideways.png": (Image.fromarray(photo), {"exif": sideways}),
        "mirrored.jpg": (Image.fromarray(photo), {"exif": mirrored}),
        "16 bits.png": (Image.fromarray(ramp), {}),
        "16 bits.tif": (Image.fromarray(ramp), {}),
        "sideways.tif": (Image.fromarray(photo), {"tiffinfo": {274: 6}}),
        "16 bits sideways.tif": (Image.fromarray(ramp), {"tiffinfo": {274: 6}}),
        "alpha.png": (Image.fromarray(clear), {}),
        "grey with alpha.png": (Image.fromarray(clear).convert("LA"), {}),
        "palette.gif": (Image.fromarray(photo).quantize(16), {}),
        "tiny.png": (Image.fromarray(photo[:3, :4]), {}),
        "wide.png": (Image.fromarray(photo[:5]), {}),
        "two colours.png": (Image.fromarray(photo).convert("1"), {}),
    }


@pytest.mark.parametrize("name", sorted(image_files()))
@pytest.mark.parametrize("kind", ["packed", "colour"])
def test_card_code_gives_the_outputs_of_the_bundle(
    kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    folder = Path(shutil.copytree(bundle.folder, tmp_path / "bundle"))
    image, options = image_files()[name]
    image.save(folder / name, **options)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    found: dict[str, Any] = {}
    exec(code.replace("image.png", name), found)
    expected = bundle.predict(bundle.preprocessing.read_image(folder / name)[None])
    assert relative_error(found["outputs"], expected) < 1e-4
    (answer,) = bundle.run([folder / name])
    assert found["labels"][found["outputs"][0].argmax()] == answer["label"]


def test_card_code_opens_the_file_that_hwnas_run_uses(packed: Bundle) -> None:
    def files_on_card(*artifacts: tuple[str, str, str]) -> tuple[str, str]:
        listed = [{"variant": v, "runtime": r, "files": [f]} for v, r, f in artifacts]
        bare = {k: v for k, v in packed.description.items() if k not in ("artifacts", "sweep")}
        text = "\n".join(_run({**bare, "artifacts": listed}))
        (file,) = re.findall(r'InferenceSession\("(.*)"\)', text)
        (same,) = re.findall(r"does the same(.*?);", text)
        return file, same

    fp32 = "fp32", "onnxruntime", "model.onnx"
    int8 = "int8", "onnxruntime", "model.int8.onnx"
    assert files_on_card(int8, fp32) == ("model.int8.onnx", "")
    elsewhere = "int8", "openvino", "model.int8.onnx"
    file, differs = files_on_card(elsewhere, fp32)
    assert file == "model.onnx"
    assert "with model.int8.onnx in openvino" in differs
    assert files_on_card(elsewhere, ("fp32", "mnn", "model.onnx"))[0] == "model.onnx"
