"""TensorRT engines, for the NVIDIA GPU of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.onnx.graph import read_whole_model
from hwnas.deploy.onnx.node_names import refused
from hwnas.deploy.runtimes.checks import missing_package
from hwnas.deploy.runtimes.session import ArraySession, loading
from hwnas.deploy.runtimes.tracing import compiling
from hwnas.deploy.targets.gpu import gpu_name
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "TensorRT"]


@dataclass(frozen=True)
class TensorRT:
    """Engines in single precision, of TensorRT 10 or later, for one batch size.

    An engine runs only on GPUs of the model that it was built on, and with the same release of
    TensorRT.
    """

    suffix: str = ".engine"
    packages: tuple[str, ...] = ("tensorrt",)
    takes_pixels: bool = False
    number_format: str = "fp32"
    is_program: bool = False

    def unavailable(self) -> str | None:
        """Return why engines cannot be built here and what to install, or None if they can."""
        if not gpu_name():
            return "an engine is built on the GPU that runs it, and this machine has no NVIDIA GPU"
        return missing_package("tensorrt", "tensorrt")

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        model = read_whole_model(network.model)
        with compiling(network.model):
            engine, reason = _build(model.SerializeToString(), network.batch)
        if engine is None:
            raise refused(network.model, "TensorRT", reason)
        to.write_bytes(engine)
        return {}

    def cannot_run(self) -> str | None:
        """Return why files cannot be run here, or None if they can."""
        return self.unavailable()

    def load(self, file: Path, batch: int) -> ArraySession:
        """See `FileFormat.load`."""
        with loading(file):
            import tensorrt
            import torch

            logger = tensorrt.Logger(tensorrt.Logger.ERROR)
            engine = tensorrt.Runtime(logger).deserialize_cuda_engine(file.read_bytes())
            if engine is None:
                raise ValueError("it is damaged, or made for another GPU or release of TensorRT")
            context = engine.create_execution_context()
            source, result = (engine.get_tensor_name(index) for index in range(2))
            shape = tuple(engine.get_tensor_shape(source))[1:]

        def compute(images: NDArray[np.float32]) -> NDArray[Any]:
            given = torch.from_numpy(images).cuda()
            context.set_input_shape(source, tuple(given.shape))
            outputs = torch.empty(tuple(context.get_tensor_shape(result)), device=given.device)
            context.set_tensor_address(source, given.data_ptr())
            context.set_tensor_address(result, outputs.data_ptr())
            stream = torch.cuda.current_stream()
            if not context.execute_async_v3(stream.cuda_stream):
                raise RuntimeError("TensorRT could not run the engine")
            stream.synchronize()
            return np.array(outputs.cpu())

        return ArraySession(file, compute, shape, 1, {"gpu": gpu_name()}, batch)


def _build(model: bytes, batch: int) -> tuple[Any, str]:
    """Return an engine for one batch size as bytes, or None and why TensorRT builds none."""
    import tensorrt

    logger = tensorrt.Logger(tensorrt.Logger.ERROR)
    builder = tensorrt.Builder(logger)
    kinds = tensorrt.NetworkDefinitionCreationFlag
    definition = builder.create_network(1 << int(kinds.STRONGLY_TYPED))
    parser = tensorrt.OnnxParser(definition, logger)
    if not parser.parse(model):
        errors = [parser.get_error(index).desc() for index in range(parser.num_errors)]
        return None, "; ".join(errors) or "the parser gave no message"
    images = definition.get_input(0)
    shape = (batch, *tuple(images.shape)[1:])
    profile = builder.create_optimization_profile()
    profile.set_shape(images.name, min=shape, opt=shape, max=shape)
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    return builder.build_serialized_network(definition, config), "no engine could be built"


_FORMAT: FileFormat = TensorRT()
PLUGINS = (
    Plugin("file format", "tensorrt", _FORMAT, "TensorRT engine, for the GPU of this machine"),
)
