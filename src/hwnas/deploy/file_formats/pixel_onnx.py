"""ONNX files that take pixels: the preprocessing is part of the graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.onnx.graph import read_whole_model
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "PixelOnnx"]

_PIXELS = "pixels"


@dataclass(frozen=True)
class PixelOnnx:
    """ONNX files that take uint8 (N, H, W, C) at the size of the network's input.

    The metadata of the file has ``labels``, the names of the classes, and ``outputs``, the meaning
    of the outputs, as JSON.
    """

    suffix: str = ".pixels.onnx"
    packages: tuple[str, ...] = ("onnx",)
    takes_pixels: bool = True
    number_format: str = "fp32"
    is_program: bool = False

    def unavailable(self) -> str | None:
        """Return None: ONNX is always there."""
        return None

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        model = read_whole_model(network.model)
        graph, how = model.graph, network.preprocessing
        (before,) = [each for each in graph.input if each.type.HasField("tensor_type")]
        mean, std = (
            np.array(each, np.float64).reshape(1, -1, 1, 1) for each in (how.mean, how.std)
        )
        constants = {
            f"{_PIXELS}.scale": (1 / (255 * std)).astype(np.float32),
            f"{_PIXELS}.offset": (mean / std).astype(np.float32),
        }
        names = [_PIXELS, *(f"{_PIXELS}.{step}" for step in ("float", "planes", "scaled"))]
        nodes = [
            helper.make_node("Cast", [names[0]], [names[1]], to=TensorProto.FLOAT),
            helper.make_node("Transpose", [names[1]], [names[2]], perm=[0, 3, 1, 2]),
            helper.make_node("Mul", [names[2], f"{_PIXELS}.scale"], [names[3]]),
            helper.make_node("Sub", [names[3], f"{_PIXELS}.offset"], [before.name]),
        ]
        sizes = before.type.tensor_type.shape.dim
        batch = sizes[0].dim_param or sizes[0].dim_value
        shape = [batch, how.height, how.width, how.channels]
        after = list(graph.node)
        del graph.node[:], graph.input[:]
        graph.node.extend([*nodes, *after])
        graph.input.append(helper.make_tensor_value_info(_PIXELS, TensorProto.UINT8, shape))
        graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in constants.items())
        labels = json.dumps(list(network.outputs.labels), ensure_ascii=False)
        meaning = json.dumps(network.outputs.to_json(), ensure_ascii=False)
        helper.set_model_props(model, {"labels": labels, "outputs": meaning})
        onnx.save(model, to)
        return {}

    def cannot_run(self) -> str | None:
        """Return None: ONNX Runtime is always there."""
        return None

    def load(self, file: Path, batch: int) -> ArraySession:
        """See `FileFormat.load`."""
        import onnxruntime

        with loading(file):
            session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
            [pixels] = session.get_inputs()

        def compute(images: NDArray[Any]) -> NDArray[Any]:
            outputs: NDArray[Any] = session.run(None, {pixels.name: images})[0]
            return outputs

        return ArraySession(file, compute, tuple(pixels.shape[1:]), 1, {})


_FORMAT: FileFormat = PixelOnnx()
PLUGINS = (
    Plugin("file format", "onnx-pixels", _FORMAT, "ONNX that takes pixels, with labels inside"),
)
