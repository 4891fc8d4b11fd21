"""Networks of a run as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from hwnas.deploy.export import Export, export_onnx
from hwnas.search_spaces import Architecture
from hwnas.stages.job import Ingredients

__all__ = ["examples", "export_network"]

_EXAMPLES = 16


def examples(ingredients: Ingredients) -> int:
    """How many validation images files are compared and packed with."""
    return min(_EXAMPLES, len(ingredients.data.validation))


def export_network(
    ingredients: Ingredients, architecture: Architecture, network: nn.Module, path: Path
) -> Export:
    """Write a network as ONNX, compared with the module on images of the run, too.

    Args:
        ingredients: Of the run.
        architecture: Of the network.
        network: With its weights.
        path: The file to write.

    Raises:
        ArtifactError: PyTorch cannot export it, or the file computes something else.
        StorageError: The file cannot be written.
    """
    shape = ingredients.space.input_shape(architecture)
    preprocessing = ingredients.task.preprocessing.at(*shape[1:])
    some = ingredients.data.validation.first(examples(ingredients))
    images, _ = some.take(np.arange(len(some)))
    return export_onnx(network, shape, path, preprocessing(images), preprocessing)
