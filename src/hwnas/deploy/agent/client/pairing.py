"""Registration of a machine with an agent as a remote device of this host."""

from __future__ import annotations

from dataclasses import replace

from hwnas.deploy.agent.client.added_devices import (
    AddedDevice,
    check_hardware_name,
    is_added,
    read_added,
    write_added,
)
from hwnas.deploy.agent.client.client import ask
from hwnas.deploy.agent.client.transport import WITHOUT_TOKEN, certificate_at
from hwnas.deploy.agent.signing import key_of
from hwnas.deploy.targets.target import BROWSER, HARDWARE, RUNTIMES
from hwnas.errors import ConfigError, DeviceError
from hwnas.plugin import closest

__all__ = ["add_device"]

_ANSWER_S = 10.0
_FIRST_ANSWER_S = 60.0  # a small board loads all its runtimes to describe them


def add_device(
    name: str,
    address: str,
    token: str,
    command: str = "",
    patience_s: float = 300.0,
    hardware: str = "cpu",
) -> AddedDevice:
    """Query an agent, save it as a device with its pinned certificate, and return the device.

    Both sides prove over the certificate that they know the token, so that an attacker in between
    cannot show another certificate. Adding a device again at the same address pins its certificate
    anew.

    Args:
        name: Name of the device; the first part of the names of its targets.
        address: ``https://host:port``, ``ssh://user@host:port`` or ``adb://SERIAL``.
        token: Token that the agent has shown; not used with ssh and adb.
        command: With ssh, the command that starts the agent there; with adb, the path of the
            benchmark program on the device (`hwnas.deploy.agent.client.adb`).
        patience_s: Seconds to wait later for a device that does not answer.
        hardware: Hardware of the machine that gets this name; one of `HARDWARE`.

    Raises:
        ConfigError: The name is taken or not valid, the hardware is unknown, or the address is not
            valid.
        DeviceError: The agent does not answer, the token is not its own, or it has no runtime for
            the hardware.
        StorageError: The device cannot be saved.
    """
    _check_free(name, address)
    if hardware not in HARDWARE:
        raise ConfigError(f"unknown hardware {hardware!r}; {closest(hardware, HARDWARE)}")
    device = AddedDevice(name, address, command=command, patience_s=patience_s, hardware=hardware)
    if not address.startswith(WITHOUT_TOKEN):
        try:
            certificate = certificate_at(address, _ANSWER_S, hardware == BROWSER)
        except OSError as error:
            raise DeviceError(
                f"no agent answers at {address} ({error}); check that the machine is on and its "
                "agent runs"
            ) from error
        device = replace(device, certificate=certificate, key=key_of(token), command="")
    about = ask(device, _FIRST_ANSWER_S)
    reasons = about.kinds_of(hardware)
    kinds = tuple(kind for kind, reason in reasons.items() if not reason)
    if not kinds:
        why = next(iter(reasons.values()), "the agent does not know this hardware")
        raise DeviceError(f"{address} has no runtime for {hardware}: {why}")
    device = replace(device, processor=about.processors.get(hardware, ""), kinds=kinds)
    write_added(device)
    return device


def _check_free(name: str, address: str) -> None:
    check_hardware_name(name)
    if name in HARDWARE or name in RUNTIMES:
        raise ConfigError(f"{name!r} is the name of hardware or of a runtime; choose another one")
    if is_added(name) and (known := read_added(name)).address != address:
        raise ConfigError(
            f"{name} is already the device at {known.address}; choose another name, or run: "
            f"hwnas devices remove {name}"
        )
