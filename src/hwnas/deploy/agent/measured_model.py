"""The ONNX files that a device is asked to measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError

__all__ = ["check_model"]


def check_model(path: Path) -> None:
    """Check that a file is a valid ONNX model, with all weights in the file itself.

    Raises:
        ArtifactError: The file is not a valid ONNX model, or keeps weights in other files.
    """
    import onnx

    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's errors have no other common base class
        raise ArtifactError(f"{path} is not an ONNX file: {first_line(error)}") from error
    if _refers_outside(model):
        raise ArtifactError(f"{path} keeps weights in other files; save them in the ONNX file")
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        raise ArtifactError(f"{path} is not a valid ONNX model: {first_line(error)}") from error


def _refers_outside(message: Any) -> bool:
    """Return whether any tensor in a protobuf message, at any depth, lies in another file."""
    if message.DESCRIPTOR.name == "TensorProto":
        return bool(message.external_data or message.data_location)
    for described, value in message.ListFields():
        if described.message_type is None:
            continue
        several = value if hasattr(value, "__len__") else [value]
        if any(_refers_outside(each) for each in several):
            return True
    return False
