"""Baseline without a search: published MobileNetV3, cut to small images and scaled by width."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.alone import Alone
from hwnas.recipe import read_recipe
from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.mobilenet.config import Stage
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.search_spaces.registry import named_space
from hwnas.stages.run_inputs import RunInputs

__all__ = ["hand_scaled"]

RECIPE = Path(__file__).parent / "recipe.toml"
"""Recipe of the supernet whose strides, stem and head the baseline shares."""

_PUBLISHED_SHAPE = (224, 224, 3)


def hand_scaled(run_inputs: RunInputs, width: float) -> Alone:
    """Return MobileNetV3-Large at a width, cut to what the supernet's space can build.

    It has the rows of table 1 (Howard et al., ICCV 2019) whose channels are also in that space,
    with the space's strides, stem and head, at the full resolution.
    """
    given, shape = read_recipe(RECIPE)[0].space, run_inputs.data.image_shape
    options = {**given.options, "resolution": [max(shape[:2])]}
    space = named_space("mobilenet", shape, run_inputs.task.outputs, options)
    assert isinstance(space, MobileNetSpace)
    config = space.config
    strides = {stage.channels: stage.stride for stage in config.stages}
    rows: list[Stage] = []
    for row in PRESETS["mobilenet-v3-large"](_PUBLISHED_SHAPE).stages:
        if row.channels in strides:
            first = all(row.channels != earlier.channels for earlier in rows)
            rows.append(replace(row, stride=strides[row.channels] if first else 1))
    scaled = MobileNetSpace(replace(config, stages=tuple(rows), width=(width,)))
    only = scaled.smallest()
    build, input_shape = partial(scaled.build, only), scaled.input_shape(only)
    return Alone(f"width-{width:g}", build, input_shape, only.to_json())
