"""Paired browsers: their names, keys and descriptions, kept in the folder of the web agent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hwnas.deploy.agent.client.added_devices import check_hardware_name
from hwnas.deploy.agent.private_file import private_folder, read_private, write_private
from hwnas.deploy.agent.signing import is_digest
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["Browser", "BrowserFacts", "Browsers"]

SCHEMA = 1
_FILE = "browser.json"
_LONGEST = 80
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


@dataclass(frozen=True)
class BrowserFacts:
    """Description of a browser and its device by its page; nothing of it is trusted.

    Attributes:
        device: Model and system, as far as the browser tells them, such as ``"Pixel 8, Android"``.
        browser: Name and version of the browser.
        cores: Number of logical processors; 0 if unknown.
        memory_gib: Memory class in GiB; 0 if unknown.
        webgpu: Name of the GPU that WebGPU uses; empty if there is none.
        isolated: Whether threads and a fine clock are allowed.
    """

    device: str
    browser: str
    cores: int = 0
    memory_gib: float = 0.0
    webgpu: str = ""
    isolated: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BrowserFacts:
        """Return the facts in an object from a page, which is not trusted.

        Raises:
            ConfigError: A value is missing, or of the wrong kind.
        """
        try:
            texts = {name: _text(data[name]) for name in ("device", "browser", "webgpu")}
            cores, memory = int(data["cores"]), float(data["memory_gib"])
            isolated = data["isolated"] is True
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"the page's description is not valid: {error}") from error
        if not texts["device"] or not texts["browser"]:
            raise ConfigError("the page's description names no device or no browser")
        if not 0 <= cores <= 4096 or not 0 <= memory <= 1e6:
            raise ConfigError("the page's description has impossible numbers")
        return cls(cores=cores, memory_gib=memory, isolated=isolated, **texts)

    @property
    def processor(self) -> str:
        """Name of the processor in measurements: all that the browser tells of it."""
        cores = f", {self.cores} cores" if self.cores else ""
        gpu = f", {self.webgpu}" if self.webgpu else ""
        return f"{self.device}{cores}{gpu}"


@dataclass(frozen=True)
class Browser:
    """Paired browser.

    Attributes:
        name: Name of the device.
        key: Key that its requests are signed with, in hexadecimal.
        facts: What its page said when it was paired.
    """

    name: str
    key: str = field(repr=False)
    facts: BrowserFacts


class Browsers:
    """Registry of the paired browsers in a folder.

    Args:
        folder: Folder with a folder for each browser; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        private_folder(folder)

    def folder(self, name: str) -> Path:
        """Return the folder of a browser's files."""
        check_hardware_name(name)
        return self._folder / name

    def names(self) -> list[str]:
        """Return the names of all paired browsers, sorted."""
        return sorted(path.parent.name for path in self._folder.glob(f"*/{_FILE}"))

    def find(self, name: str) -> Browser | None:
        """Return a browser; None if no browser of this name is paired.

        Raises:
            ArtifactError: Its file is damaged.
            ConfigError: Others can read its file.
        """
        try:
            path = self.folder(name) / _FILE
        except ConfigError:
            return None
        if not path.is_file():
            return None
        try:
            data = json.loads(read_private(path))
            if data["schema"] != SCHEMA or not is_digest(data["key"]):
                raise ValueError("unknown schema or key")
            return Browser(name, data["key"], BrowserFacts.from_json(data["facts"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path} is damaged ({error}); pair the browser again") from error

    def put(self, browser: Browser) -> None:
        """Save a browser, in place of an older one of the same name."""
        with self._lock:
            folder = self.folder(browser.name)
            private_folder(folder)
            values = {"schema": SCHEMA, "key": browser.key, "facts": asdict(browser.facts)}
            write_private(folder / _FILE, json.dumps(values) + "\n")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return " ".join(_UNPRINTABLE.sub(" ", value).split())[:_LONGEST]
