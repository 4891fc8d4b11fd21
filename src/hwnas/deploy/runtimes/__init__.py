"""The runtimes that networks can be measured on, by the name that targets have them under."""

from hwnas.deploy.runtime import Runtime
from hwnas.deploy.runtimes.onnx import OnnxRuntime

__all__ = ["RUNTIMES", "OnnxRuntime"]

RUNTIMES: dict[str, Runtime] = {"onnxruntime": OnnxRuntime()}
