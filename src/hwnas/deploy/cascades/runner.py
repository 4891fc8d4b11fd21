"""Runs a cascade: a small network answers, and a big one where the small one is unsure.

Needs numpy, onnxruntime and pillow, and nothing else; cascade.json and the networks lie beside it:

    python runner.py image.png ...      what is on images
    python runner.py --verify           whether it gives the golden outputs

hwnas copies this file into every cascade, with the imported function that opens images inlined, and
uses the same functions itself to decide which network answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.bundles.image_file import prepared, upright_pixels

__all__ = ["CONFIDENCES", "Runner", "confidences", "probabilities", "reading_size", "unsure"]

Floats = NDArray[np.float64]
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def probabilities(scores: NDArray[Any]) -> Floats:
    """Return the softmax of class scores (N, K); NaN for an image with NaN or infinite scores."""
    rows = np.asarray(scores, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        odds = np.exp(rows - rows.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def _margin(shares: Floats) -> Floats:
    """Return the difference between the two highest probabilities."""
    second, first = np.partition(shares, -2, axis=1)[:, -2:].T
    return np.asarray(first - second)


def _maximum(shares: Floats) -> Floats:
    """Return the highest probability."""
    return np.asarray(shares.max(axis=1))


CONFIDENCES: dict[str, Callable[[Floats], Floats]] = {"margin": _margin, "maximum": _maximum}
"""Measures of confidence by name: from class probabilities (N, K) to values (N,) in 0..1."""


def confidences(scores: NDArray[Any], rule: str) -> Floats:
    """Return the confidence in each image's class, given scores (N, K).

    Returns:
        Confidences (N,) in 0..1; -1, below any threshold, where scores are NaN or infinite.
    """
    found = CONFIDENCES[rule](probabilities(scores))
    return np.where(np.isnan(found), -1.0, found)


def unsure(scores: NDArray[Any], rule: str, threshold: float) -> NDArray[np.bool_]:
    """Return a mask (N,) of the images on which the big network is run.

    Args:
        scores: Class scores of the small network, (N, K).
        rule: Key of `CONFIDENCES`.
        threshold: Confidence below which the big network is run: 0 selects no image, 1 all images.
            Images whose scores are NaN or infinite are always selected.
    """
    confidence = confidences(scores, rule)
    return np.asarray((confidence < threshold) | (threshold >= 1))


def reading_size(small: Mapping[str, Any], big: Mapping[str, Any]) -> tuple[int, int]:
    """Return the height and width that image files are read for, which suffice for both networks.

    Args:
        small: Preprocessing of the small network, from cascade.json.
        big: Preprocessing of the big network.
    """
    return max(small["height"], big["height"]), max(small["width"], big["width"])


class Runner:
    """Both networks of a cascade, loaded.

    Args:
        folder: Folder of the cascade.
        threads: Threads for one operator.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        import onnxruntime

        self.folder = folder
        self.about = json.loads((folder / "cascade.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._sessions = {
            part: onnxruntime.InferenceSession(
                folder / self.about[part]["file"], options, providers=["CPUExecutionProvider"]
            )
            for part in ("small", "big")
        }

    def scores(self, image: NDArray[np.uint8]) -> tuple[NDArray[Any], str]:
        """Return class scores (K,) of an image, uint8 (H, W, C), and the network that gave them."""
        found = self._run("small", image)
        if not unsure(found, self.about["rule"], self.about["threshold"])[0]:
            return found[0], "small"
        return self._run("big", image)[0], "big"

    def read(self, path: str | Path) -> NDArray[np.uint8]:
        """Read an image file as uint8 (H, W, C), upright, with the networks' number of channels."""
        from PIL import Image

        small, big = (self.about[part]["preprocessing"] for part in ("small", "big"))
        channels, size = small["channels"], reading_size(small, big)
        # Given a path, Pillow would memory-map plain rotated TIFF files with a wrong width.
        with Path(path).open("rb") as file, Image.open(file) as image:
            pixels = upright_pixels(image, _MODES[channels], size)
        return pixels.reshape(*pixels.shape[:2], channels)

    def answer(self, path: str | Path) -> dict[str, Any]:
        """Return the likeliest class of an image file, its probability and the network used.

        Raises:
            ValueError: The scores of both networks are NaN or infinite.
        """
        scores, part = self.scores(self.read(path))
        shares = probabilities(scores[None])[0]
        if np.isnan(shares).any():
            raise ValueError("the scores of both networks are NaN or infinite; no prediction")
        best = int(shares.argmax())
        label = self.about["labels"][best]
        return {"label": label, "probability": float(shares[best]), "network": part}

    def verify(self) -> float:
        """Return the largest difference to the golden outputs, relative to the largest of them."""
        with np.load(self.folder / "golden.npz", allow_pickle=False) as golden:
            images, expected = golden["images"], golden["outputs"]
        found = np.stack([self.scores(image)[0] for image in images])
        return float(np.abs(found - expected).max() / np.abs(expected).max())

    def _run(self, part: str, image: NDArray[np.uint8]) -> NDArray[Any]:
        batch = prepared(image, self.about[part]["preprocessing"])
        session = self._sessions[part]
        outputs: NDArray[Any] = session.run(None, {session.get_inputs()[0].name: batch})[0]
        return outputs


def main(arguments: list[str]) -> int:
    """Print the prediction for each image file, or check the golden outputs."""
    runner = Runner(Path(__file__).parent)
    if not arguments:
        print(__doc__)
        return 2
    if arguments == ["--verify"]:
        error = runner.verify()
        print(f"golden outputs differ by {error:.1e} of the largest")
        return int(not error <= runner.about["golden"]["tolerance"])
    for path in arguments:
        try:
            found = runner.answer(path)
        except Exception as error:  # damaged images make Pillow raise nearly anything
            reason = " ".join(str(error).split()) or type(error).__name__
            print(f"{path}: {reason}", file=sys.stderr)
            return 2
        print(f"{path}  {found['label']}  {found['probability']:.1%}  ({found['network']})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
