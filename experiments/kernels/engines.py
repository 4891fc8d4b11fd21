"""TensorRT engines in half precision and in int8, where TensorRT is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.quantization.quantize import random_batches

__all__ = ["engine", "int8_engine", "symmetric"]


def engine(model: Path, images: Tensor, int8: bool = False) -> Callable[[], object]:
    """Return a function that runs an ONNX file in half precision, always on the same images.

    Args:
        model: ONNX file.
        images: Images, float32 (N, C, H, W); their memory must stay in place.
        int8: Whether TensorRT may compute the quantised parts of the file in int8.

    Raises:
        ModuleNotFoundError: TensorRT is not installed.
        RuntimeError: TensorRT does not accept the file.
    """
    import tensorrt as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise RuntimeError(f"TensorRT cannot parse {model.name}: {parser.get_error(0)}")
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.set_flag(trt.BuilderFlag.FP16)
    if int8:
        config.set_flag(trt.BuilderFlag.INT8)
    given, returned = network.get_input(0).name, network.get_output(0).name
    profile.set_shape(given, *(tuple(images.shape),) * 3)
    config.add_optimization_profile(profile)
    built = trt.Runtime(logger).deserialize_cuda_engine(
        builder.build_serialized_network(network, config)
    )
    context = built.create_execution_context()
    context.set_input_shape(given, tuple(images.shape))
    outputs = torch.empty(tuple(context.get_tensor_shape(returned)), device=images.device)
    context.set_tensor_address(given, images.data_ptr())
    context.set_tensor_address(returned, outputs.data_ptr())

    def run() -> Tensor:
        if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("the engine of TensorRT failed to run")
        return outputs

    return run


def int8_engine(model: Path, images: Tensor) -> Callable[[], object]:
    """Return such a function for a file in single precision, quantised as TensorRT requires.

    Raises:
        ModuleNotFoundError: TensorRT is not installed.
        RuntimeError: TensorRT does not accept the file.
    """
    import tensorrt  # noqa: F401  # before what takes seconds

    return engine(symmetric(model), images, int8=True)


def symmetric(model: Path) -> Path:
    """Write a quantised copy of a file beside it and return its path.

    The ranges come from random images, all zero points are 0, and biases stay floats.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    module = OnnxModule.load(model)
    batches = iter(random_batches(module.input_shape, 1))

    class Reader(CalibrationDataReader):
        def get_next(self) -> dict[str, Any] | None:
            batch = next(batches, None)
            return None if batch is None else {module.input_name: batch}

    quantised = model.with_name(f"{model.stem}-symmetric.onnx")
    quantize_static(
        model,
        quantised,
        Reader(),
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        op_types_to_quantize=["Conv", "Gemm", "MatMul"],
        extra_options={"ActivationSymmetric": True, "QuantizeBias": False},
    )
    return quantised
