"""OpenVINO's intermediate representation: the network as XML, its weights in a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.onnx.graph import check_graph
from hwnas.deploy.onnx.node_names import refused
from hwnas.deploy.runtimes.checks import missing_package
from hwnas.deploy.runtimes.openvino import OpenVINOSession
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.runtimes.session import loading
from hwnas.deploy.targets.target import Device, Target
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "OpenVINOFile"]


@dataclass(frozen=True)
class OpenVINOFile:
    """OpenVINO's format.

    Attributes:
        suffix: Ending of the file's name.
        half: Whether the weights are stored in half precision.
    """

    suffix: str = ".xml"
    half: bool = False
    packages: tuple[str, ...] = ("openvino",)
    takes_pixels: bool = False
    number_format: str = "fp32"
    is_program: bool = False

    def unavailable(self) -> str | None:
        """Return why files cannot be converted here and what to install, or None if they can."""
        return missing_package("openvino", "'hwnas[openvino]'")

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """Write ``to``, and the weights beside it in a file that ends in ``.bin``.

        The batch stays open. See `FileFormat.convert` for the arguments.
        """
        import openvino

        model = network.model
        check_graph(model)
        try:
            converted = openvino.convert_model(model)
        except Exception as error:  # the converter's frontends share no error class
            raise refused(model, "OpenVINO", str(error).strip().splitlines()[-1]) from error
        openvino.save_model(converted, to, compress_to_fp16=self.half)
        return {}

    def cannot_run(self) -> str | None:
        """Return None: what converts can also run."""
        return None

    def load(self, file: Path, batch: int) -> Session:
        """See `FileFormat.load`."""
        with loading(file):
            return OpenVINOSession(file, Target(Device.here("openvino", batch, 1)))


_FORMAT: FileFormat = OpenVINOFile()
_HALF: FileFormat = OpenVINOFile(".fp16.xml", half=True)
PLUGINS = (
    Plugin(
        "file format",
        "openvino",
        _FORMAT,
        "OpenVINO's model.xml and model.bin",
        extra="openvino",
    ),
    Plugin(
        "file format",
        "openvino-fp16",
        _HALF,
        "OpenVINO's format with weights in half precision",
        extra="openvino",
    ),
)
