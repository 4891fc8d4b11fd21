"""Untrained networks of all spaces, at their published sizes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.own_models.models import MODELS
from experiments.record import Results
from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    Export,
    OutputMeaning,
    Preprocessing,
    export_onnx,
    write_bundle,
)
from hwnas.search_spaces import (
    Architecture,
    SearchSpace,
    channels,
    elastic,
    hybrid,
    mobilenet,
    nasbench201,
    resnet,
    simplenet,
    vit,
)

__all__ = ["SPACES", "exported_anew", "packed", "random_images", "untrained"]

_IMAGENET = (224, 224, 3), 1000
_CIFAR = (32, 32, 3), 10
SPACES: dict[str, Callable[[], SearchSpace]] = {
    "channels": partial(channels, *_CIFAR, model="resnet20", ratios=(0.5, 0.75, 1)),
    "elastic": lambda: elastic(MODELS["convnext"](*_CIFAR), torch.zeros(2, 3, 32, 32)),
    "hybrid": partial(hybrid, *_IMAGENET),
    "mobilenet": partial(mobilenet, *_IMAGENET),
    "nasbench201": partial(nasbench201, *_CIFAR),
    "resnet": partial(resnet, *_IMAGENET),
    "simplenet": partial(simplenet, *_CIFAR),
    "vit": partial(vit, *_IMAGENET),
}


def untrained(space: SearchSpace, architecture: Architecture, seed: int = 0) -> nn.Module:
    """Return a network with random weights and non-trivial batch-normalisation statistics."""
    torch.manual_seed(seed)
    network = space.build(architecture)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return network.eval()


def exported_anew(
    names: Sequence[str], count: int, results: Results
) -> Iterator[tuple[str, Path, tuple[int, ...]]]:
    """Export random networks without recorded rows; yield their names, files and input shapes.

    Args:
        names: Names of spaces.
        count: Number of networks of each space.
        results: Results whose subjects begin with the name of a network.
    """
    for name in names:
        space, rng = SPACES[name](), random.Random(0)
        for index, architecture in enumerate([space.sample(rng) for _ in range(count)]):
            called = f"{name} {index}"
            if any(row.subject.startswith(f"{called} ") for row in results.rows):
                continue
            print(called, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                model, shape = Path(folder, "network.onnx"), space.input_shape(architecture)
                export_onnx(untrained(space, architecture), shape, model)
                yield called, model, shape


def random_images(count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Return random images, uint8 (count, height, width, channels)."""
    return np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)


def packed(
    space: SearchSpace, architecture: Architecture, outputs: int, folder: Path, name: str
) -> tuple[Export, Bundle]:
    """Export an untrained network and pack it into a bundle.

    Args:
        space: Space of the network.
        architecture: Its architecture.
        outputs: Number of classes.
        folder: Folder for the ONNX file and, in a folder of its own, the bundle.
        name: Name of both.
    """
    folder.mkdir(parents=True, exist_ok=True)
    network = untrained(space, architecture)
    depth, *sides = space.input_shape(architecture)
    preprocessing = Preprocessing(*sides, depth, (0.5,) * depth, (0.25,) * depth)
    images = random_images(2, (*sides, depth))
    made = export_onnx(
        network,
        preprocessing.input_shape,
        folder / f"{name}.onnx",
        preprocessing(images),
        preprocessing,
    )
    meaning = OutputMeaning("class_scores", tuple(f"class {i}" for i in range(outputs)))
    packed = BundleNetwork(architecture, made, network.state_dict(), preprocessing, meaning, images)
    facts = BundleFacts(space=name, task="none: untrained", provenance={"seed": 0})
    bundle = write_bundle(folder / name, packed, facts)
    return made, bundle
