"""The rival without a search: MobileNetV3 as published, cut to small images and scaled by width."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hwnas.atomic import write_json
from hwnas.deploy import export_onnx
from hwnas.errors import ConfigError
from hwnas.search.cluster import map_tasks
from hwnas.search.evaluate import Evaluation, recalibrate, score
from hwnas.search.training import NetworkStep, TrainConfig, fit
from hwnas.search_spaces import Architecture, MobileNetSpace
from hwnas.search_spaces.mobilenet.config import Stage
from hwnas.search_spaces.mobilenet.presets import PRESETS
from hwnas.stages.job import Ingredients, content_hash

__all__ = ["Network", "hand_scaled_space", "train_hand_scaled"]

_RECALIBRATION_IMAGES = 2048
_PUBLISHED_SHAPE = (224, 224, 3)


@dataclass(frozen=True)
class Network:
    """A trained network of one of the sides.

    Attributes:
        side: Whose it is.
        id: Unique on its side.
        onnx: Where it is.
        validation: Accuracy on the validation images, in 0..1.
        test: Accuracy on the test images, in 0..1.
        macs: Multiply-accumulates of one image.
        params: Trainable parameters.
        architecture: Its choices, as JSON.
    """

    side: str
    id: str
    onnx: Path
    validation: float
    test: float
    macs: int
    params: int
    architecture: dict[str, object]


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
        The networks, and how many seconds they were trained, side by side.
    """
    print(f"hand-scaled, widths {widths}", flush=True)
    share = seconds / math.ceil(len(widths) / at_once)
    shared = ingredients, share, folder
    trained = list(map_tasks(_trained, shared, [(width,) for width in widths], at_once))
    spent = sum(took for _, took in trained) / min(at_once, len(widths))
    return [network for network, _ in trained], spent


def _trained(shared: tuple[Ingredients, float, Path], width: float) -> tuple[Network, float]:
    searched, seconds, folder = shared
    ingredients = replace(searched, searched=hand_scaled_space(searched, width))
    recipe, space, name = ingredients.recipe, ingredients.space, f"width-{width:g}"
    architecture, done = space.smallest(), folder / f"{name}.json"
    onnx = folder / f"{name}.onnx"
    config = replace(recipe.train, epochs=None, budget_minutes=seconds / 60)
    run = content_hash(ingredients.hash, config, recipe.deploy, recipe.seed)
    about = json.loads(done.read_text(encoding="utf-8")) if done.exists() else {}
    if about.get("run") != run or not onnx.exists():
        about = {"run": run, **_train(ingredients, architecture, config, run, onnx)}
        write_json(done, about)
    workload, (metric, *_) = space.workload(architecture), ingredients.task.metrics
    scores = {
        split: Evaluation.from_json(about[split]).values[metric.name]
        for split in ("validation", "test")
    }
    network = Network(
        "hand-scaled",
        name,
        onnx,
        scores["validation"],
        scores["test"],
        workload.macs,
        workload.params,
        architecture.to_json(),
    )
    return network, float(about["seconds"])


def _train(
    ingredients: Ingredients, architecture: Architecture, config: TrainConfig, run: str, onnx: Path
) -> dict[str, object]:
    """From scratch to a tested ONNX file."""
    recipe, task, data = ingredients.recipe, ingredients.task, ingredients.data
    shape = ingredients.space.input_shape(architecture)
    torch.manual_seed(recipe.seed)
    module = ingredients.space.build(architecture).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = NetworkStep(module, task, shape)
    checkpoint = onnx.with_suffix(".safetensors")
    end = fit(module, step, data.train, config, recipe.seed, checkpoint=checkpoint, run=run)
    if recipe.fine_tuning is not None:
        fit(module, step, data.train, recipe.fine_tuning, recipe.seed)
    recalibrate(module, task, data.train.first(_RECALIBRATION_IMAGES), shape)
    validation = score(module, task, data.validation, shape, "validation")
    test = score(module, task, data.test, shape, "test")
    export_onnx(module, shape, onnx)
    checkpoint.unlink()
    return {
        "seconds": end.seconds,
        "validation": validation.to_json(),
        "test": test.to_json(),
    }
