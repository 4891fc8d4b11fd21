"""The rival without a search: MobileNetV3 as published, cut to small images and scaled by width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from experiments.alone import Alone, seconds_each, train_alone
from experiments.sides import Network
from hwnas.errors import ConfigError
from hwnas.search_spaces import MobileNetSpace
from hwnas.search_spaces.mobilenet.config import Stage
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.stages.job import Ingredients

__all__ = ["hand_scaled_space", "train_hand_scaled"]

_PUBLISHED_SHAPE = (224, 224, 3)


def hand_scaled_space(ingredients: Ingredients, width: float) -> MobileNetSpace:
    """A space of one network: MobileNetV3-Large, cut to what the searched space can build.

    The rows of table 1 (Howard et al., ICCV 2019) whose channels the searched space has too, with
    that space's strides, stem and head, at its full resolution.
    """
    searched = ingredients.space
    if not isinstance(searched, MobileNetSpace):
        raise ConfigError(f"space.name is {searched.name!r}; this rival needs space mobilenet")
    config = searched.config
    strides = {stage.channels: stage.stride for stage in config.stages}
    rows: list[Stage] = []
    for row in PRESETS["mobilenet-v3-large"](_PUBLISHED_SHAPE).stages:
        if row.channels in strides:
            first = all(row.channels != earlier.channels for earlier in rows)
            rows.append(replace(row, stride=strides[row.channels] if first else 1))
    resolution = (max(config.resolution),)
    return MobileNetSpace(
        replace(config, stages=tuple(rows), width=(width,), resolution=resolution)
    )


def train_hand_scaled(
    ingredients: Ingredients, widths: Sequence[float], seconds: float, folder: Path, at_once: int
) -> tuple[list[Network], float]:
    """Train each width alone, in equal shares of the time, then fine-tune as the finalists are.

    Args:
        ingredients: Of the run that they are rivals of.
        widths: Width multipliers.
        seconds: For all of them together, without fine-tuning.
        folder: For checkpoints and results; what is finished there is not done again.
        at_once: How many are trained side by side, on one core each, if Ray is running.

    Returns:
        The networks, and how many seconds they were trained, side by side; fine-tuning counts not.
    """
    recipe, share = ingredients.recipe, seconds_each(seconds, len(widths), at_once)
    trainings = [replace(recipe.train, epochs=None, budget_minutes=share / 60)]
    if recipe.fine_tuning is not None:
        trainings.append(recipe.fine_tuning)
    networks = []
    for width in widths:
        space = hand_scaled_space(ingredients, width)
        only = space.smallest()
        build, shape = partial(space.build, only), space.input_shape(only)
        networks.append(Alone(f"width-{width:g}", build, shape, only.to_json()))
    trained, _ = train_alone("hand-scaled", networks, ingredients, trainings, folder, at_once)
    return trained, share * len(widths) / min(at_once, len(widths))
