"""Self-signed certificate of an agent, which hosts identify by its fingerprint."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hwnas.deploy.agent.private_file import read_private, write_private
from hwnas.deploy.agent.signing import digest_of
from hwnas.errors import ConfigError, DeviceError

__all__ = ["Certificate", "own_certificate"]

_YEARS = 20
"""Validity of the certificate in years.

Nothing checks the dates: a host compares fingerprints, and a small device may have no clock.
"""


@dataclass(frozen=True)
class Certificate:
    """Certificate with its private key.

    Attributes:
        path: PEM file that holds both, readable by its owner only.
    """

    path: Path

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a server with this certificate.

        Raises:
            ConfigError: The file is damaged.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path} is damaged ({error}); remove it, start the agent, and add the device "
                "again on its hosts"
            ) from error
        return context

    def fingerprint(self) -> str:
        """Return the SHA-256 of the certificate, in hexadecimal."""
        text = self.path.read_text(encoding="utf-8")
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        _, _, rest = text.partition(begin)
        return digest_of(ssl.PEM_cert_to_DER_cert(begin + rest.partition(end)[0] + end))


def own_certificate(path: Path) -> Certificate:
    """Return the agent's certificate, which is created on first use.

    Raises:
        ConfigError: The file exists and others can read it.
        DeviceError: The certificate has to be created, and the package for that is not installed.
        StorageError: The file cannot be written.
    """
    if path.exists():
        read_private(path)
    else:
        write_private(path, _make())
    return Certificate(path)


def _make() -> str:
    """Return a new P-256 key and a certificate signed with it, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise DeviceError(
            "an agent needs cryptography for its certificate; run: pip install cryptography"
        ) from error

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hwnas agent")])
    start = datetime(2020, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=365 * _YEARS))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem: bytes = private + made.public_bytes(serialization.Encoding.PEM)
    return pem.decode()
