"""Discs, squares and triangles drawn on photographs, with their boxes."""

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("disc", "square", "triangle")
TRAIN, TEST = 3600, 900
MOST = 4
"""Largest number of shapes on a photograph."""
SIDES = (12, 48)
"""Least and largest side of a shape's box, in pixels; photographs have 112."""


def shapes_on_photographs() -> dict[str, np.ndarray]:
    """Return photographs with none to four shapes each, and their boxes.

    A shape is filled with a piece of another photograph, so its colour tells nothing. Shapes may
    overlap by at most a fifth of the smaller box.
    """
    path = Path(os.environ["HWNAS_DATA"], "images", "photos5_jpeg.npz")
    found: dict[str, np.ndarray] = {"class_names": np.array(CLASSES)}
    with np.load(path) as arrays:
        for seed, (part, count) in enumerate((("train", TRAIN), ("test", TEST))):
            jpeg, offsets = arrays[f"{part}_jpeg"], arrays[f"{part}_offsets"]
            rng = np.random.default_rng(seed)
            rows = rng.permutation(len(offsets) - 1)[:count]
            photographs = [_opened(jpeg[offsets[row] : offsets[row + 1]]) for row in rows]
            boxes = np.full((count, MOST, 5), -1.0)
            for number, photograph in enumerate(photographs):
                _draw(photograph, photographs, boxes[number], rng)
            found[f"x_{part}"] = np.stack([np.asarray(each) for each in photographs])
            found[f"y_{part}"] = boxes
    return found


def _opened(file: np.ndarray) -> Image.Image:
    return Image.open(io.BytesIO(file.tobytes())).convert("RGB")


def _draw(
    photograph: Image.Image,
    photographs: list[Image.Image],
    boxes: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Draw shapes on a photograph, and write their boxes into the first of the given rows."""
    width, height = photograph.size
    placed: list[tuple[int, int, int, int]] = []
    for _ in range(rng.integers(MOST + 1)):
        w, h = rng.integers(SIDES[0], SIDES[1] + 1, 2)
        left, top = int(rng.integers(width - w)), int(rng.integers(height - h))
        box = (left, top, left + int(w), top + int(h))
        if any(_overlap(box, other) > 0.2 for other in placed):
            continue
        kind = int(rng.integers(len(CLASSES)))
        mask = Image.new("L", (int(w), int(h)))
        _fill(ImageDraw.Draw(mask), CLASSES[kind], int(w) - 1, int(h) - 1)
        other = photographs[rng.integers(len(photographs))]
        x, y = int(rng.integers(width - w)), int(rng.integers(height - h))
        photograph.paste(other.crop((x, y, x + int(w), y + int(h))), box, mask)
        boxes[len(placed)] = [
            box[0] / width, box[1] / height, box[2] / width, box[3] / height, kind
        ]  # fmt: skip
        placed.append(box)


def _fill(draw: ImageDraw.ImageDraw, kind: str, right: int, bottom: int) -> None:
    if kind == "disc":
        draw.ellipse((0, 0, right, bottom), fill=255)
    elif kind == "square":
        draw.rectangle((0, 0, right, bottom), fill=255)
    else:
        draw.polygon([(right / 2, 0), (0, bottom), (right, bottom)], fill=255)


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> float:
    """Return the shared area of two boxes as a share of the smaller one's."""
    across, down = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    areas = [(each[2] - each[0]) * (each[3] - each[1]) for each in (a, b)]
    return max(0, across) * max(0, down) / min(areas)
