"""Remote devices that a user has added: addresses and keys of their agents.

A device is a file ``$HWNAS_HOME/agents/NAME.json``, which only its owner may read.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hwnas.deploy.agent.private_file import private_folder, read_private, write_private
from hwnas.deploy.agent.signing import is_digest
from hwnas.errors import ArtifactError, ConfigError
from hwnas.home import home

__all__ = [
    "AddedDevice",
    "added_names",
    "check_hardware_name",
    "is_added",
    "read_added",
    "remove_added",
    "write_added",
]

SCHEMA = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]{0,39}")


@dataclass(frozen=True)
class AddedDevice:
    """Remote device on which an agent measures networks.

    Attributes:
        name: Hardware part of the names of its targets.
        address: ``https://host:port``, ``ssh://user@host:port`` or ``adb://SERIAL``.
        certificate: SHA-256 of the agent's certificate, in hexadecimal; empty with ssh and adb.
        key: Key that signs requests, in hexadecimal; empty with ssh and adb.
        command: Command line that starts the agent there, with ssh; path of the benchmark program,
            with adb.
        hardware: Hardware of the machine that the device stands for, e.g. ``"cpu"``.
        processor: Name of the processor, as in measurements on the device.
        kinds: Runtimes and formats that it had when it was added, e.g. ``"onnxruntime-fp32"``.
        patience_s: Seconds to wait for a device that does not answer.
    """

    name: str
    address: str
    certificate: str = ""
    key: str = field(default="", repr=False)
    command: str = ""
    hardware: str = "cpu"
    processor: str = ""
    kinds: tuple[str, ...] = ()
    patience_s: float = 300.0

    def __post_init__(self) -> None:
        check_hardware_name(self.name)
        if any(secret and not is_digest(secret) for secret in (self.certificate, self.key)):
            raise ConfigError(
                f"{self.name}: certificate or key is not valid; expected 64 hexadecimal digits"
            )
        if not 0 <= self.patience_s < 1e9:
            raise ConfigError(f"patience_s is {self.patience_s:g}; expected seconds, 0 or more")


def check_hardware_name(name: str) -> None:
    """Check that a name can be the first part of a target's name.

    Raises:
        ConfigError: The name is empty, is too long, does not begin with a letter or a digit, or has
            characters other than letters, digits, ``.`` and ``_``.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name of a device: it is the first part of targets such as "
            "NAME-onnxruntime-fp32-b1-t1; expected at most 40 letters, digits, '.' and '_', the "
            "first one a letter or a digit"
        )


def added_names() -> list[str]:
    """Return the names of all added devices, sorted."""
    return sorted(path.stem for path in _folder().glob("*.json") if _NAME.fullmatch(path.stem))


def is_added(name: str) -> bool:
    """Return whether a device of this name was added."""
    return _NAME.fullmatch(name) is not None and _path(name).is_file()


def read_added(name: str) -> AddedDevice:
    """Return an added device.

    Raises:
        ConfigError: No device has this name, or others can read its file.
        ArtifactError: Its file is damaged.
    """
    path = _existing(name)
    text = read_private(path)
    try:
        data: dict[str, Any] = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']!r} is not {SCHEMA}")
        values = {each.name: data[each.name] for each in fields(AddedDevice)}
        return AddedDevice(**{**values, "kinds": tuple(values["kinds"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); add the device again") from error


def write_added(device: AddedDevice) -> Path:
    """Save a device, replacing any older one of the same name, and return the path of its file.

    Raises:
        StorageError: The file cannot be written.
    """
    private_folder(_folder())
    path = _path(device.name)
    write_private(path, json.dumps({"schema": SCHEMA, **asdict(device)}, indent=2) + "\n")
    return path


def remove_added(name: str) -> None:
    """Remove a device; its measurements are kept.

    Raises:
        ConfigError: No device has this name.
    """
    _existing(name).unlink()


def _folder() -> Path:
    return home() / "agents"


def _existing(name: str) -> Path:
    if not is_added(name):
        known = ", ".join(added_names()) or "none"
        raise ConfigError(f"no device {name!r} was added; added devices: {known}")
    return _path(name)


def _path(name: str) -> Path:
    return _folder() / f"{name}.json"
