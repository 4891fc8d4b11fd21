"""Registry of file formats.

To add one, write a module here with a tuple ``PLUGINS``, as in `openvino_ir`; no list names it.
"""

from __future__ import annotations

from hwnas.deploy.file_formats.file_format import FileFormat
from hwnas.errors import ConfigError
from hwnas.registry import Registry

__all__ = ["FILE_FORMATS", "file_format"]

FILE_FORMATS: Registry[FileFormat] = Registry("file format", __package__)
"""File formats by name."""


def file_format(name: str, where: str | None = None) -> FileFormat:
    """Return a file format that files can be converted to here.

    Args:
        name: Name of the format.
        where: What names it, for messages; the kind if None.

    Raises:
        ConfigError: There is no such format, or its converter is not installed.
    """
    found = FILE_FORMATS.find(name, where)
    if (reason := found.unavailable()) is not None:
        raise ConfigError(f"nothing can be converted to {name} here: {reason}")
    return found
