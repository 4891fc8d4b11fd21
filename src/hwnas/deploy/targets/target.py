"""Devices, and targets: a target is a device together with a number format."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hwnas.deploy.agent.client.added_devices import added_names, is_added
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.registry import Registry

__all__ = ["BROWSER", "HARDWARE", "RUNTIMES", "Device", "Target", "known_hardware"]

BROWSER = "browser"
HARDWARE = ("cpu", "cuda", BROWSER)
"""Hardware of the machine that hwnas runs on: its processor, the first NVIDIA GPU that CUDA
programs see, and its browser. Remote devices have the names under which they were added."""


class _Capabilities(Protocol):
    """Part of a runtime that decides which targets there are (`hwnas.deploy.runtimes`)."""

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats in which the runtime computes."""

    @property
    def hardware(self) -> tuple[str, ...]:
        """Hardware of this machine that hwnas uses it on, the main one first."""


RUNTIMES: Registry[_Capabilities] = Registry("runtime", "hwnas.deploy.runtimes")
"""Capabilities of the runtimes by name."""

_SHAPE = "hardware-runtime-format-bBATCH-tTHREADS"
_PARTS = 4  # of the name of a device


@dataclass(frozen=True)
class Device:
    """Hardware with a runtime, a batch size and a number of threads.

    The runtime is part of the device because it changes which network is fastest.

    Attributes:
        hardware: ``"cpu"``, ``"cuda"`` or ``"browser"`` of the machine that hwnas runs on;
            otherwise the name of an added device.
        runtime: Name of the runtime, a key of `hwnas.deploy.RUNTIMES`.
        batch: Images per run, at least 1.
        threads: Threads that compute, at least 1.
    """

    hardware: str
    runtime: str
    batch: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        if not (self.is_here or is_added(self.hardware)):
            raise ConfigError(
                f"unknown hardware {self.hardware!r}; {closest(self.hardware, known_hardware())}"
            )
        if self.runtime not in RUNTIMES:
            raise ConfigError(
                f"unknown runtime {self.runtime!r}; {closest(self.runtime, RUNTIMES)}"
            )
        places = RUNTIMES[self.runtime].hardware
        if self.is_here and self.hardware not in places:
            raise ConfigError(f"{self.runtime} runs on {' and '.join(places)}, not {self.hardware}")
        if self.batch < 1 or self.threads < 1:
            raise ConfigError(
                f"batch is {self.batch} and threads {self.threads}; both must be at least 1"
            )

    @classmethod
    def here(cls, runtime: str, batch: int = 1, threads: int = 1) -> Device:
        """Return a device of this machine, on the hardware that the runtime is mainly for.

        Raises:
            ConfigError: The runtime is unknown, or a number is less than 1.
        """
        places = RUNTIMES[runtime].hardware if runtime in RUNTIMES else HARDWARE
        return cls(places[0], runtime, batch, threads)

    @classmethod
    def parse(cls, text: str) -> Device:
        """Read the name of a device, or that of a target, whose number format is left out.

        Raises:
            ConfigError: The name has another form, or a part of it is unknown.
        """
        parts = text.split("-")
        if len(parts) == _PARTS:
            parts.insert(2, "fp32")
        return Target.parse("-".join(parts)).device

    @property
    def is_here(self) -> bool:
        """True if the device is the machine that hwnas runs on."""
        return self.hardware in HARDWARE

    @property
    def name(self) -> str:
        """Name of the device, for example ``"cpu-onnxruntime-b1-t1"``."""
        return f"{self.hardware}-{self.runtime}-b{self.batch}-t{self.threads}"


@dataclass(frozen=True)
class Target:
    """Device with the number format in which a network runs on it.

    Attributes:
        device: Hardware, runtime, batch and threads.
        format: Number format, one of those of the device's runtime.
    """

    device: Device
    format: str = "fp32"

    def __post_init__(self) -> None:
        formats = RUNTIMES[self.device.runtime].formats
        if self.format not in formats:
            raise ConfigError(
                f"unknown format {self.format!r} of runtime {self.device.runtime}; "
                f"{closest(self.format, formats)}"
            )

    @property
    def name(self) -> str:
        """Name, for example ``"cpu-onnxruntime-fp32-b1-t1"``; `Target.parse` is the inverse."""
        d = self.device
        return f"{d.hardware}-{d.runtime}-{self.format}-b{d.batch}-t{d.threads}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target's name.

        Raises:
            ConfigError: The name is not of the form hardware-runtime-format-bBATCH-tTHREADS, or a
                part of it is unknown.
        """
        parts = re.fullmatch(r"([^-]+)-([^-]+)-([^-]+)-b([0-9]{1,6})-t([0-9]{1,6})", text)
        try:
            if parts is None:
                raise ConfigError(f"expected {_SHAPE}")
            hardware, runtime, number_format, batch, threads = parts.groups()
            return cls(Device(hardware, runtime, int(batch), int(threads)), number_format)
        except ConfigError as error:
            raise ConfigError(
                f"target {text!r}: {error}; the closest target is {_nearest(text)!r}"
            ) from None


def known_hardware() -> tuple[str, ...]:
    """Return the hardware that targets can name: that of this machine and the added devices."""
    return (*HARDWARE, *added_names())


def _nearest(text: str) -> str:
    """Return the name of the likeliest target, with the batch and threads in ``text``, if any."""
    batch, threads = (
        max(1, int(found[1])) if (found := re.search(rf"-{letter}([0-9]{{1,6}})(-|$)", text)) else 1
        for letter in "bt"
    )
    words = text.split("-")
    runtime = _closest_word(words, list(RUNTIMES))
    can = RUNTIMES[runtime]
    number_format = _closest_word(words, can.formats)
    places = [each for each in known_hardware() if each not in HARDWARE or each in can.hardware]
    hardware = _closest_word(words, places)
    return Target(Device(hardware, runtime, batch, threads), number_format).name


def _closest_word(words: Sequence[str], options: Sequence[str]) -> str:
    """Return the option that is most similar to any word, or the first option if none is."""
    near = [match for word in words for match in difflib.get_close_matches(word, options, n=1)]

    def similarity(option: str) -> float:
        return max(difflib.SequenceMatcher(None, word, option).ratio() for word in words)

    return max(near, key=similarity, default=options[0])
