"""Limits of what the ONNX runtime of a device can read, such as an old release of TensorRT."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hwnas.deploy.file_formats.registry import FILE_FORMATS
from hwnas.deploy.onnx.node_names import block_of
from hwnas.errors import ArtifactError, ConfigError
from hwnas.plugin import closest

__all__ = ["SHIPPED", "DeviceLimits", "check_readable", "device_limits"]


@dataclass(frozen=True)
class DeviceLimits:
    """Newest opset and the operators that a device can read.

    Attributes:
        name: Name of the device or runtime, for messages.
        opset: Newest version of ONNX's operator set that it reads; None if there is no limit.
        operators: Operators that it has; all of these opsets if empty.
        without: Operators that it lacks.
    """

    name: str
    opset: int | None = None
    operators: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.opset is not None and self.opset < 1:
            raise ConfigError(f"the limits of {self.name} have opset {self.opset}; expected >= 1")
        if self.opset is None and not self.operators and not self.without:
            raise ConfigError(
                f"the limits of {self.name} limit nothing; give opset, operators or without"
            )

    def problem(self, path: Path) -> str | None:
        """Return why the device cannot read an ONNX file, with what to do; None if it can.

        Args:
            path: ONNX file.
        """
        import onnx

        model = onnx.load(path, load_external_data=False)
        opset = max(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))
        if self.opset is not None and opset > self.opset:
            return f"{path.name} has opset {opset}, newer than {self.opset}{self._older()}"
        for node in model.graph.node:
            if node.op_type in self.without or (
                self.operators and node.op_type not in self.operators
            ):
                layer = block_of(node.name)
                where = f" in {layer}" if layer else ""
                return (
                    f"{path.name} has the operator {node.op_type}{where}, which it lacks; search "
                    "a space without it, or choose another network"
                )
        return None

    def _older(self) -> str:
        """Return the advice to convert to a format with an opset that the device reads."""
        opsets = {
            name: int(name.removeprefix(_OLDER)) for name in FILE_FORMATS if name.startswith(_OLDER)
        }
        fit = [name for name in opsets if self.opset is not None and opsets[name] <= self.opset]
        if not fit:
            return "; no format of hwnas is old enough"
        return f"; add the format {max(fit, key=opsets.__getitem__)}"


_OLDER = "onnx-opset"
SHIPPED: Mapping[str, DeviceLimits] = {
    "onnxruntime-1.10": DeviceLimits("ONNX Runtime 1.10", 15),
    "onnxruntime-1.12": DeviceLimits("ONNX Runtime 1.12", 17),
    "onnxruntime-1.14": DeviceLimits("ONNX Runtime 1.14", 18),
    "onnxruntime-1.16": DeviceLimits("ONNX Runtime 1.16", 19),
    "tensorrt-8.6": DeviceLimits("TensorRT 8.6", 17, without=("DeformConv",)),
}
"""Limits by the name of a release, from its documentation."""


def device_limits(given: str | DeviceLimits | None) -> DeviceLimits | None:
    """Return the limits with a name of `SHIPPED`, or those of a TOML file; others as given.

    A file has the keys ``name``, ``opset``, ``operators`` and ``without``; see `DeviceLimits`.

    Raises:
        ConfigError: There is neither such a name nor such a file, or the file is wrong.
    """
    if not isinstance(given, str):
        return given
    if given in SHIPPED:
        return SHIPPED[given]
    path = Path(given)
    if path.suffix != ".toml":
        raise ConfigError(
            f"unknown device limits {given!r}; {closest(given, SHIPPED)}, or a TOML file with "
            "name, opset, operators or without"
        )
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the device limits {path}: {error}") from error
    return _from_table({"name": path.stem, **found}, path)


def _from_table(table: Mapping[str, Any], path: Path) -> DeviceLimits:
    known = [field.name for field in fields(DeviceLimits)]
    kinds = {"name": str, "opset": int, "operators": list, "without": list}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: {key} is not a key of device limits; {closest(key, known)}")
        texts = not isinstance(value, list) or all(isinstance(each, str) for each in value)
        if not isinstance(value, kinds[key]) or isinstance(value, bool) or not texts:
            expected = {str: "text", int: "a whole number", list: "a list of texts"}[kinds[key]]
            raise ConfigError(f"{path}: {key} is {value!r}; expected {expected}")
    return DeviceLimits(
        table["name"],
        table.get("opset"),
        tuple(table.get("operators", ())),
        tuple(table.get("without", ())),
    )


def check_readable(limits: DeviceLimits, files: Sequence[Path]) -> None:
    """Raise if a device can read none of the ONNX files of a network.

    Args:
        limits: Limits of the device.
        files: Files of the network, at least one.

    Raises:
        ArtifactError: It can read none; the message is about the last one.
    """
    problems = [limits.problem(path) for path in files]
    if all(problem is not None for problem in problems):
        raise ArtifactError(f"{limits.name} cannot read the network: {problems[-1]}")
