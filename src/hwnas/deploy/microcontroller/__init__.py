"""C code for microcontrollers: integer networks read from quantised ONNX files."""

from hwnas.deploy.microcontroller.arena import Arena
from hwnas.deploy.microcontroller.c_source import CSource
from hwnas.deploy.microcontroller.network import IntegerNetwork
from hwnas.deploy.microcontroller.reading import read_integer_network

__all__ = ["Arena", "CSource", "IntegerNetwork", "read_integer_network"]
