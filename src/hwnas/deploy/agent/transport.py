"""Ways from a host to an agent; all of them carry requests and replies."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
from typing import Protocol
from urllib.parse import urlsplit

from hwnas.deploy.agent.added import AddedDevice
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
from hwnas.deploy.agent.ssh import StdioTransport, ssh_arguments
from hwnas.errors import ConfigError, DeviceError

__all__ = ["HttpsTransport", "Transport", "certificate_at", "open_transport"]

_HOST = re.compile(r"[A-Za-z0-9.:-]+")


class Transport(Protocol):
    """A way to an agent."""

    def request(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request and give the reply's status and body.

        Raises:
            OSError: The agent cannot be reached now; it may be worth while to try again.
            DeviceError: It can, and is not the one that was added.
        """
        ...

    def close(self) -> None:
        """End the connection, if there is one."""
        ...


def open_transport(device: AddedDevice) -> Transport:
    """The way to the agent of a device; nothing is sent yet.

    Raises:
        ConfigError: Its address is none.
    """
    if device.address.startswith("ssh://"):
        return StdioTransport(ssh_arguments(device.address, device.command))
    return HttpsTransport(device)


class HttpsTransport:
    """Signed requests to an agent that listens on a port.

    Args:
        device: Address, certificate and key.
    """

    def __init__(self, device: AddedDevice) -> None:
        self._device, self._challenge = device, ""
        self._host, self._port = _host_and_port(device.address)

    def request(self, method: str, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request, and once more if the challenge that it was signed over is an old one."""
        for _ in range(2):
            status, content = self._once(method, path, body, timeout_s)
            if status != http.client.UNAUTHORIZED:
                return status, content
            if not self._challenge:
                break  # it is no agent
        raise DeviceError(
            f"{self._device.address} refuses the token of {self._device.name}; give the right one, "
            "or start the agent with --new-token, and run: hwnas devices add "
            f"{self._device.name} --agent {self._device.address}"
        )

    def close(self) -> None:
        """Every request has a connection of its own."""

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
            # It may have answered before it read all.
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
                f"{certificate}, expected {device.certificate}. If its agent was set up anew, run: "
                f"hwnas devices add {device.name} --agent {device.address}; else do not trust it"
            )

    def _check_reply(self, given: str, right: str) -> None:
        if not same(given, right):
            raise DeviceError(
                f"{self._device.address} does not prove that it knows the token of "
                f"{self._device.name}, so what it says is not believed; is it the agent?"
            )


def certificate_at(address: str, timeout_s: float) -> str:
    """SHA-256 of the certificate that is shown at an address, in hexadecimal.

    Raises:
        ConfigError: The address is none.
        OSError: Nothing answers there in this way.
    """
    connection = _connection(*_host_and_port(address), timeout_s)
    try:
        connection.connect()
        return _certificate_of(connection)
    finally:
        connection.close()


def _connection(host: str, port: int, timeout_s: float) -> http.client.HTTPSConnection:
    """Encrypted, to somebody whose certificate is compared by its fingerprint afterwards."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def _certificate_of(connection: http.client.HTTPSConnection) -> str:
    assert isinstance(connection.sock, ssl.SSLSocket)
    return digest_of(connection.sock.getpeercert(binary_form=True) or b"")


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
    except ValueError:
        host, port = "", None
    rest = address.partition("://")[2]
    plain = url.scheme == "https" and url.netloc == rest.rstrip("/") and "@" not in rest
    if not plain or port is None or not _HOST.fullmatch(host):
        raise ConfigError(
            f"the agent's address is {address!r}; expected https://host:port, or ssh://user@host"
        )
    return host, port
