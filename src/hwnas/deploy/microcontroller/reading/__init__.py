"""Reading of quantised ONNX files as integer networks."""

from hwnas.deploy.microcontroller.reading.graph import read_integer_network

__all__ = ["read_integer_network"]
