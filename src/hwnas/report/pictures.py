"""Pictures of a finalist's architecture, stage by stage, and its description in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hwnas.report.data import BlockPicture, StagePicture
from hwnas.report.markup import Html, element
from hwnas.report.quantities import number

__all__ = ["architecture_lines", "stages_picture"]

SHORT = {"kernel_size": "k", "expand_ratio": "e"}
TALLEST, SHORTEST = 96.0, 36.0  # heights of a block, in pixels
TOP, HEIGHT = 20, 148  # space for the labels above, and height of a picture, in pixels


def architecture_lines(architecture: Mapping[str, int | float | str]) -> list[str]:
    """Describe choices in one line a stage: ``stage0: depth 2 · k5 e6 · k3 e4``."""
    lines: dict[str, dict[str, list[str]]] = {}
    for name, option in architecture.items():
        *path, last = name.split(".")
        stage, block = (path[0] if path else ""), ".".join(path[1:])
        shown = option if isinstance(option, str) else number(option)
        text = f"{SHORT[last]}{shown}" if last in SHORT else f"{last} {shown}"
        lines.setdefault(stage, {}).setdefault(block, []).append(text)
    return [
        (f"{stage}: " if stage else "")
        + " · ".join(_block(b, words) for b, words in blocks.items())
        for stage, blocks in lines.items()
    ]


def _block(name: str, words: Sequence[str]) -> str:
    """Describe a block; a numbered block has no name, since its position gives the number."""
    shown = (", " if " " in words[0] else " ").join(words)
    return shown if re.fullmatch(r"([a-z]+\d+)?", name) else f"{name} {shown}"


def stages_picture(
    stages: Sequence[StagePicture], widest_channels: int, colour: str, title: str
) -> Html:
    """Draw a network's stages as inline SVG, with the input at the left.

    Args:
        stages: Stages of the network, at least one.
        widest_channels: Number of channels that is drawn tallest; the same for all pictures that
            are compared.
        colour: Colour of the blocks; larger kernels are more opaque.
        title: Alternative text for screen readers.
    """
    shapes, left = [], 4.0
    for stage in stages:
        tall = SHORTEST + (TALLEST - SHORTEST) * (stage.channels / widest_channels) ** 0.5
        start = left
        for position, block in enumerate(stage.blocks):
            stride = stage.stride if position == 0 else 1
            shapes.append(_block_shape(block, left, tall, stride, colour))
            left += _width(block) + 3
        label = f"{stage.channels} ch" + (f", 1/{stage.stride}" if stage.stride > 1 else "")
        left = max(left, start + 62)
        shapes.append(_text(start, 14, label, "stage", anchor="start"))
        left += 18
    width = round(left - 14)
    return element(
        "svg",
        element("title", title),
        *shapes,
        class_="stages",
        role="img",
        width=width,
        height=HEIGHT,
        viewBox=f"0 0 {width} {HEIGHT}",
    )


def _width(block: BlockPicture) -> float:
    return 24 + 7 * block.expand_ratio


def _block_shape(block: BlockPicture, left: float, tall: float, stride: int, colour: str) -> Html:
    """Draw a box labelled with kernel size and expansion ratio; with a stride it tapers."""
    width, middle = _width(block), TOP + TALLEST / 2 + 10
    before = tall / 2 + (10 if stride > 1 else 0)
    corners = (
        (left, middle - before),
        (left + width, middle - tall / 2),
        (left + width, middle + tall / 2),
        (left, middle + before),
    )
    centre = left + width / 2
    return element(
        "g",
        element(
            "polygon",
            points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners),
            fill=colour,
            fill_opacity=f"{min(0.85, 0.12 * block.kernel_size - 0.16):.2f}",
            stroke=colour,
            stroke_linejoin="round",
        ),
        _text(centre, middle - 1, f"{block.kernel_size}×{block.kernel_size}", "kernel"),
        _text(centre, middle + 13, f"e{number(block.expand_ratio)}", "expand"),
    )


def _text(x: float, y: float, text: str, class_: str, anchor: str = "middle") -> Html:
    return element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=class_, text_anchor=anchor)
