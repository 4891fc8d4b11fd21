"""Error-compensating rounding of an int8 file, layer by layer, with the scales that it has.

Each layer is rounded for the inputs that it gets in the quantised network, in which the layers
before it are rounded already, so that it can make up for their errors, too. The file stays an
ordinary QDQ file: nothing but stored bytes changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hwnas.atomic import replacing
from hwnas.deploy.quantization.gptq import compensated, output_errors
from hwnas.deploy.quantization.reused_weights import float_name
from hwnas.deploy.quantization.weighted_layers import QuantisedLayer, quantised_layers

__all__ = ["compensate_rounding"]


def compensate_rounding(
    quantised: Path,
    plain: Path,
    batches: Sequence[NDArray[np.float32]],
    largest: int,
) -> dict[str, float]:
    """Choose the rounding of all layers of a QDQ file by GPTQ, in place.

    Args:
        quantised: File that ONNX Runtime's tools quantised, with symmetric weights.
        plain: File that it was made from, with the weights in float32.
        batches: Inputs (N, ...) of the network.
        largest: Largest step of a weight: 127, or 64 in reduced range.

    Returns:
        For each layer, by the name of its node, the squared error of its outputs on the batches
        over that of rounding to nearest: at most 1, and 1 for a layer without errors. Layers that
        `quantised_layers` leaves out stay as they are.

    Raises:
        StorageError: The file cannot be written.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(quantised)
    weights = {each.name: each for each in onnx.load(plain).graph.initializer}
    stored = {each.name: each for each in model.graph.initializer}
    inputs = _LayerInputs(model, batches)
    ratios = {}
    for layer in quantised_layers(model):
        exact = weights.get(float_name(layer.stored))
        if exact is None:
            continue
        steps = layer.steps(numpy_helper.to_array(stored[layer.scale]))
        bytes_of = numpy_helper.to_array(stored[layer.stored])
        nearest = layer.rows(bytes_of)
        wanted = layer.rows(numpy_helper.to_array(exact)).double() / steps
        hessian = inputs.hessian(layer)
        found = compensated(wanted, nearest, hessian, largest)
        before, after = (output_errors(w, wanted, hessian).sum() for w in (nearest, found))
        ratios[layer.name] = float(after / before) if before > 0 else 1.0
        rounded = layer.stored_form(found, bytes_of.shape)
        stored[layer.stored].CopyFrom(numpy_helper.from_array(rounded, layer.stored))
    with replacing(quantised) as temporary:
        onnx.save(model, temporary)
    return ratios


class _LayerInputs:
    """Inputs of layers in a quantised network whose weights change from one layer to the next."""

    def __init__(self, model: Any, batches: Sequence[NDArray[np.float32]]) -> None:
        self._model, self._batches = model, batches
        self._source = model.graph.input[0].name
        self._makers = {name: node for node in model.graph.node for name in node.output}

    def hessian(self, layer: QuantisedLayer) -> torch.Tensor:
        """Return the sum over all batches of the outer products of a layer's inputs."""
        return reduce(torch.add, map(layer.hessian, self._of(layer.source)))

    def _of(self, tensor: str) -> Iterator[NDArray[np.float32]]:
        """Yield the values of a tensor for each batch."""
        from onnxruntime import InferenceSession

        if tensor == self._source:
            yield from self._batches
            return
        part = self._up_to(tensor).SerializeToString()
        session = InferenceSession(part, providers=["CPUExecutionProvider"])
        for batch in self._batches:
            yield session.run(None, {self._source: batch})[0]

    def _up_to(self, tensor: str) -> Any:
        """Return the part of the model that computes a tensor."""
        from onnx import TensorProto, helper

        tensors, names = set[str](), [tensor]
        while names:
            name = names.pop()
            if name not in tensors and name in self._makers:
                names += self._makers[name].input
            tensors.add(name)
        graph = self._model.graph
        part = helper.make_graph(
            [node for node in graph.node if tensors & set(node.output)],
            graph.name,
            graph.input,
            [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None)],
            [each for each in graph.initializer if each.name in tensors],
        )
        model = helper.make_model(part, opset_imports=self._model.opset_import)
        model.ir_version = self._model.ir_version
        return model
