"""ONNX files in older versions of the operator set, for devices that know no newer one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.error_line import first_line
from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.onnx.graph import read_whole_model
from hwnas.deploy.runtimes.registry import RUNTIMES
from hwnas.deploy.runtimes.runtime import Session
from hwnas.deploy.silence import silenced
from hwnas.deploy.targets.target import Device, Target
from hwnas.errors import ArtifactError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "OlderOnnx"]


_IR_VERSION = 8  # of the releases of ONNX that brought opsets 15 to 18


@dataclass(frozen=True)
class OlderOnnx:
    """ONNX files in one version of the operator set.

    Attributes:
        opset: Version of the operator set.
    """

    opset: int
    packages: tuple[str, ...] = ("onnx",)
    takes_pixels: bool = False
    number_format: str = "fp32"
    is_program: bool = False

    @property
    def suffix(self) -> str:
        """Ending of the file's name."""
        return f".opset{self.opset}.onnx"

    def unavailable(self) -> str | None:
        """Return None: ONNX is always there."""
        return None

    def convert(self, network: SourceNetwork, to: Path) -> Mapping[str, int]:
        """See `FileFormat.convert`."""
        import onnx
        from onnx import version_converter

        model = read_whole_model(network.model)
        given = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
        for node in model.graph.node:
            if node.op_type.startswith("Reduce") and len(node.input) > 1:
                # Without effect where axes are given, but the converter keeps it in older opsets.
                left = [each for each in node.attribute if each.name != "noop_with_empty_axes"]
                del node.attribute[:]
                node.attribute.extend(left)
        try:
            with silenced("stderr"):
                converted = version_converter.convert_version(model, self.opset)
            converted.ir_version = min(converted.ir_version, _IR_VERSION)
            onnx.checker.check_model(converted, full_check=True)
        except Exception as error:  # the converter in C++ and the checker share no error class
            kinds = ", ".join(sorted({node.op_type for node in model.graph.node}))
            raise ArtifactError(
                f"{network.model} cannot be written in opset {self.opset} instead of {given}: "
                f"{first_line(error)}; one of its operators has no older form: {kinds}"
            ) from error
        onnx.save(converted, to)
        return {}

    def cannot_run(self) -> str | None:
        """Return None: ONNX Runtime is always there."""
        return None

    def load(self, file: Path, batch: int) -> Session:
        """See `FileFormat.load`."""
        return RUNTIMES["onnxruntime"].load(file, Target(Device("cpu", "onnxruntime", batch)))


def _plugin(opset: int, used_by: str) -> Plugin[FileFormat]:
    form: FileFormat = OlderOnnx(opset)
    return Plugin("file format", f"onnx-opset{opset}", form, f"ONNX in opset {opset}, {used_by}")


PLUGINS = (
    _plugin(15, "for ONNX Runtime from 1.10 on"),
    _plugin(17, "for TensorRT 8.6, and ONNX Runtime from 1.12 on"),
)
