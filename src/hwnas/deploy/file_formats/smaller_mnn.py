"""MNN files with smaller weights; the computation stays in single precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.file_formats.of_runtimes import RuntimeFormat
from hwnas.deploy.onnx.graph import check_graph
from hwnas.deploy.runtimes.mnn import MNN
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "SmallerMNN"]


@dataclass(frozen=True)
class SmallerMNN(RuntimeFormat):
    """MNN files whose weights are stored in fewer bits.

    Attributes:
        options: Options of MNN's converter.
    """

    options: tuple[str, ...] = ()

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        check_graph(network.model)
        MNN().convert(network.model, to, *self.options)
        return {}


_FP16: FileFormat = SmallerMNN("mnn", ".fp16.mnn", options=("--fp16",))
_W8: FileFormat = SmallerMNN("mnn", ".w8.mnn", options=("--weightQuantBits", "8"))
PLUGINS = (
    Plugin("file format", "mnn-fp16", _FP16, "MNN with weights in half precision", extra="mnn"),
    Plugin("file format", "mnn-w8", _W8, "MNN with weights of 8 bits", extra="mnn"),
)
