"""The runtimes that networks can be measured on, by the name that targets have them under."""

from hwnas.deploy.runtime import Runtime
from hwnas.deploy.runtimes.onnx import OnnxRuntime
from hwnas.deploy.runtimes.openvino import OpenVINO
from hwnas.deploy.runtimes.pytorch import PyTorch

__all__ = ["RUNTIMES", "OnnxRuntime", "OpenVINO", "PyTorch"]

RUNTIMES: dict[str, Runtime] = {
    "onnxruntime": OnnxRuntime(),
    "openvino": OpenVINO(),
    "pytorch": PyTorch(),
    "pytorch_nhwc": PyTorch("pytorch_nhwc", channels_last=True),
}
