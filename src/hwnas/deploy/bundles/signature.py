"""Signatures of bundles by minisign, over the list of checksums.

A user signs with minisign itself (``minisign -Sm BUNDLE/bundle.sha256``), so hwnas never sees a
secret key. The list covers all other files, so its signature covers the whole bundle.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from pathlib import Path

from hwnas.deploy.runtimes.checks import missing_package
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["SIGNATURE_SUFFIX", "PublicKey", "check_signature"]

SIGNATURE_SUFFIX = ".minisig"
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "
_KEY, _HASHED, _PLAIN = b"Ed", b"ED", b"Ed"  # what is signed: the file's BLAKE2b hash, or the file
_ID_BYTES, _KEY_BYTES, _SIGNATURE_BYTES = 8, 32, 64


@dataclass(frozen=True)
class PublicKey:
    """Public key of minisign.

    Attributes:
        id: Identifier of the key, 8 bytes.
        key: Ed25519 key, 32 bytes.
    """

    id: bytes
    key: bytes

    @classmethod
    def read(cls, given: str) -> PublicKey:
        """Return the key in a file, or the key itself as minisign prints it.

        Args:
            given: Path of a ``.pub`` file, or its second line.

        Raises:
            ConfigError: It is no public key of minisign.
        """
        text = given
        if (path := Path(given)).is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            text = next((line for line in lines if line and not line.startswith(_UNTRUSTED)), "")
        found = _decoded(text)
        if len(found) != 2 + _ID_BYTES + _KEY_BYTES or found[:2] != _KEY:
            raise ConfigError(
                f"{given} is no public key of minisign; give the file that `minisign -G` wrote, "
                "such as minisign.pub, or the line in it"
            )
        return cls(found[2 : 2 + _ID_BYTES], found[2 + _ID_BYTES :])

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether a signature is that of a message by this key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.key).verify(signature, message)
        except InvalidSignature:
            return False
        return True


def check_signature(file: Path, key: PublicKey) -> str:
    """Check the signature beside a file, and return its trusted comment.

    Args:
        file: Signed file; its signature has the same name with ``.minisig`` after it.
        key: Public key of the signer.

    Raises:
        ArtifactError: There is no signature, it is damaged, by another key, or of another content.
        ConfigError: The package that verifies is not installed.
    """
    if (reason := missing_package("cryptography", "'hwnas[agent]'")) is not None:
        raise ConfigError(reason)
    beside = file.with_name(file.name + SIGNATURE_SUFFIX)
    try:
        lines = beside.read_text(encoding="utf-8").splitlines()
        content = file.read_bytes()
    except FileNotFoundError:
        raise ArtifactError(
            f"there is no {beside.name}; sign the bundle with `minisign -Sm {file}`"
        ) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{beside.name} cannot be read ({error})") from error
    told = lines[2].removeprefix(_TRUSTED) if len(lines) == 4 else ""
    signed, whole = (_decoded(lines[i]) if len(lines) == 4 else b"" for i in (1, 3))
    kind, signature = signed[:2], signed[2 + _ID_BYTES :]
    sizes = len(signature), len(whole)
    if kind not in (_HASHED, _PLAIN) or sizes != (_SIGNATURE_BYTES, _SIGNATURE_BYTES):
        raise ArtifactError(f"{beside.name} is no signature of minisign; sign the bundle again")
    if signed[2 : 2 + _ID_BYTES] != key.id:
        raise ArtifactError(f"{beside.name} was made with another key")
    message = hashlib.blake2b(content).digest() if kind == _HASHED else content
    if not key.verify(signature, message):
        raise ArtifactError(
            f"{beside.name} is the signature of other content; if the bundle was changed on "
            "purpose, sign it again"
        )
    if not key.verify(whole, signature + told.encode()):
        raise ArtifactError(f"the comment in {beside.name} was changed")
    return told


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return b""
