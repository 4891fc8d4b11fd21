"""Transports of requests and replies between a host and an agent."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
from typing import Protocol
from urllib.parse import urlsplit

from hwnas.deploy.agent.client.adb import ADB, AdbTransport
from hwnas.deploy.agent.client.added_devices import AddedDevice
from hwnas.deploy.agent.client.ssh import StdioTransport, ssh_arguments
from hwnas.deploy.agent.signing import (
    CHALLENGE,
    DIGEST,
    NONCE,
    SIGNATURE,
    digest_of,
    new_secret,
    reply_signature,
    request_signature,
    same,
)
from hwnas.deploy.targets.target import BROWSER
from hwnas.errors import ConfigError, DeviceError

__all__ = ["WITHOUT_TOKEN", "HttpsTransport", "Transport", "certificate_at", "open_transport"]

WITHOUT_TOKEN = ("ssh://", ADB)
"""Beginnings of addresses to which another program connects, and proves who we are."""

_HOST = re.compile(r"[A-Za-z0-9.:-]+")
_PATH = re.compile(r"/[A-Za-z0-9][A-Za-z0-9_.]{0,39}")


class Transport(Protocol):
    """Connection to an agent."""

    def request(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request, and return the reply's status and body.

        Raises:
            OSError: The agent cannot be reached now; a later attempt may succeed.
            DeviceError: The agent answers, but is not the one that was added.
        """
        ...

    def close(self) -> None:
        """Close the connection, if there is one."""
        ...


def open_transport(device: AddedDevice) -> Transport:
    """Return the transport to a device's agent, without sending anything yet.

    Raises:
        ConfigError: The device's address is not valid.
    """
    if device.address.startswith("ssh://"):
        return StdioTransport(ssh_arguments(device.address, device.command))
    if device.address.startswith(ADB):
        return AdbTransport(device)
    return HttpsTransport(device)


class HttpsTransport:
    """Transport that sends signed requests to an agent listening on a port.

    Args:
        device: Device with its address, certificate and key.
    """

    def __init__(self, device: AddedDevice) -> None:
        self._device, self._challenge = device, ""
        self._host, self._port, self._path = _parts_of(device.address, device.hardware == BROWSER)

    def request(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request, and send it once more if the challenge that it signed has expired."""
        for _ in range(2):
            status, content = self._once(method, self._path + path, body, timeout_s)
            if status != http.client.UNAUTHORIZED:
                return status, content
            if not self._challenge:
                break  # the answer is not an agent's
        raise DeviceError(
            f"{self._device.address} refuses the token of {self._device.name}; give the right one, "
            "or start the agent with --new-token, and run: hwnas devices add "
            f"{self._device.name} --agent {self._device.address}"
        )

    def close(self) -> None:
        """Do nothing, because each request has its own connection."""

    def _once(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        nonce, digest = new_secret(), digest_of(body)
        device = self._device
        signature = request_signature(
            device.key, device.certificate, self._challenge, nonce, method, path, digest
        )
        headers = {DIGEST: digest, NONCE: nonce, SIGNATURE: signature}
        headers |= {CHALLENGE: self._challenge} if self._challenge else {}
        connection = _connection(self._host, self._port, timeout_s)
        try:
            connection.connect()
            self._check_certificate(_certificate_of(connection))
            # The agent may answer before it has read the whole request.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                connection.request(method, path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__} {error}") from error
        finally:
            connection.close()
        self._challenge = reply.headers.get(CHALLENGE, "")
        if reply.status != http.client.UNAUTHORIZED:
            right = reply_signature(
                device.key, device.certificate, nonce, reply.status, digest_of(content)
            )
            self._check_reply(reply.headers.get(SIGNATURE, ""), right)
        return reply.status, content

    def _check_certificate(self, certificate: str) -> None:
        device = self._device
        if certificate != device.certificate:
            raise DeviceError(
                f"the certificate of {device.name} at {device.address} changed: SHA-256 "
                f"{certificate}, expected {device.certificate}. If its agent was set up again, "
                f"run: hwnas devices add {device.name} --agent {device.address}; otherwise do not "
                "trust it"
            )

    def _check_reply(self, given: str, right: str) -> None:
        if not same(given, right):
            raise DeviceError(
                f"{self._device.address} does not prove that it knows the token of "
                f"{self._device.name}, so its reply is rejected; check the address"
            )


def certificate_at(address: str, timeout_s: float, browser: bool = False) -> str:
    """Return the SHA-256 of the certificate shown at an address, in hexadecimal.

    Raises:
        ConfigError: The address is not valid.
        OSError: No TLS server answers at the address.
    """
    host, port, _ = _parts_of(address, browser)
    connection = _connection(host, port, timeout_s)
    try:
        connection.connect()
        return _certificate_of(connection)
    finally:
        connection.close()


def _connection(host: str, port: int, timeout_s: float) -> http.client.HTTPSConnection:
    """Return an encrypted connection, whose certificate is compared by fingerprint afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def _certificate_of(connection: http.client.HTTPSConnection) -> str:
    assert isinstance(connection.sock, ssl.SSLSocket)
    return digest_of(connection.sock.getpeercert(binary_form=True) or b"")


def _parts_of(address: str, browser: bool) -> tuple[str, int, str]:
    """Return host, port and path of an agent's address; the path is the name of a browser."""
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
    except ValueError:
        host, port = "", None
    rest, path = address.partition("://")[2], "" if port is None else url.path.rstrip("/")
    plain = url.scheme == "https" and f"{url.netloc}{path}" == rest.rstrip("/") and "@" not in rest
    known = _PATH.fullmatch(path) if browser else not path
    if not plain or port is None or not _HOST.fullmatch(host) or not known:
        raise ConfigError(
            f"the agent's address is {address!r}; expected https://host:port, ssh://user@host, or "
            "adb://SERIAL"
        )
    return host, port, path
