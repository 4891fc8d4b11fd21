import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.deploy import Bundle
from hwnas.deploy.card import card


def test_its_code_runs_and_gives_the_bundles_answer(
    folder: Path, packed: Bundle, digits: NDArray[np.uint8]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    Image.fromarray(digits[7, :, :, 0]).save(folder / "image.png")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == packed.run(digits[7:8])[0]["label"]


def test_every_number_says_its_kind(packed: Bundle) -> None:
    text = (packed.folder / "README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    (accuracy,) = [row for row in rows if "accuracy" in row]
    assert "0.97 fraction | 0.9435 to 0.9843 | 360 | evaluated | test" in accuracy
    predicted, measured = [row for row in rows if "latency" in row]
    assert "| predicted |" in predicted
    assert "1 ms | p20 0.9, p80 1.1 | 50 | measured | cpu-onnxruntime-fp32-b1-t1" in measured
    assert "contended" in measured


def test_foreign_text_stays_text(packed: Bundle) -> None:
    text = card(packed.description)
    assert "<b>" not in text
    assert r"digits \| &lt;b>" in text
    assert "| hardware.cores | 2 |" in text
    assert "Licence: none was stated" in text


def test_values_and_long_label_lists(packed: Bundle) -> None:
    outputs = {**packed.description["outputs"], "kind": "values", "labels": []}
    assert "gives values." in card({**packed.description, "outputs": outputs})
    outputs = {**packed.description["outputs"], "labels": [f"class{i}" for i in range(1000)]}
    text = card({**packed.description, "outputs": outputs})
    assert "1000 classes" in text
    assert "class999" not in text
