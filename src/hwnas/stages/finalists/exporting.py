"""Export of a run's networks as ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from hwnas.deploy.export.to_onnx import Export, export_onnx
from hwnas.search_spaces import Architecture
from hwnas.stages.run_inputs import RunInputs

__all__ = ["examples", "export_network"]

_EXAMPLES = 16


def examples(run_inputs: RunInputs) -> int:
    """Return the number of validation images used to check an export and to package a bundle."""
    return min(_EXAMPLES, len(run_inputs.data.validation))


def export_network(
    run_inputs: RunInputs, architecture: Architecture, network: nn.Module, path: Path
) -> Export:
    """Export a network as ONNX, and also compare it with the module on images of the run.

    Args:
        run_inputs: Data, task and space of the run.
        architecture: Architecture of the network.
        network: Network with its weights.
        path: File to write.

    Raises:
        ArtifactError: PyTorch cannot export the network, or the file computes different outputs.
        StorageError: The file cannot be written.
    """
    shape = run_inputs.space.input_shape(architecture)
    preprocessing = run_inputs.task.preprocessing.at(*shape[1:])
    some = run_inputs.data.validation.first(examples(run_inputs))
    images, _ = some.take(np.arange(len(some)))
    traceable = run_inputs.space.traceable
    return export_onnx(network, shape, path, preprocessing(images), preprocessing, traceable)
