"""The kinds of targets that can be measured, here and on added devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.machine import machine, processor_of, versions
from hwnas.deploy.targets.target import HARDWARE

__all__ = ["DeviceStatus", "devices", "devices_here"]


@dataclass(frozen=True)
class DeviceStatus:
    """Availability of one kind of target.

    Attributes:
        target: Pattern of the target's names, e.g. ``"cpu-onnxruntime-fp32-b{B}-t{T}"``; the name
            of the device alone if its file is damaged.
        usable: True if the target can be measured now.
        reason: Why the target cannot be used and what to install; empty if usable.
        details: Processor, cores, instructions and versions, by name.
    """

    target: str
    usable: bool
    reason: str
    details: Mapping[str, str]


def devices() -> list[DeviceStatus]:
    """Return the status of every known kind of target; added devices are queried."""
    from hwnas.deploy.agent.client.client import devices_elsewhere

    elsewhere = [
        DeviceStatus(_pattern(name, kind) if kind else name, not reason, reason, details)
        for name, kind, reason, details in devices_elsewhere()
    ]
    return [*devices_here(), *elsewhere]


def devices_here() -> list[DeviceStatus]:
    """Return the status of every kind of target of this machine, usable or not."""
    described = machine()
    found = []
    for hardware in HARDWARE:
        about = {key: described[key] for key in ("processor", "cores", "instructions")}
        if hardware != "cpu":
            about = {"processor": processor_of(hardware) or "none"}
        for runtime in RUNTIMES.values():
            if hardware not in runtime.hardware:
                continue
            reason = runtime.unavailable(hardware) or ""
            details = {**about, **versions(runtime.packages)}
            found += [
                DeviceStatus(
                    _pattern(hardware, f"{runtime.name}-{number_format}"),
                    not reason,
                    reason,
                    details,
                )
                for number_format in runtime.formats
            ]
    return found


def _pattern(hardware: str, kind: str) -> str:
    return f"{hardware}-{kind}-b{{B}}-t{{T}}"
