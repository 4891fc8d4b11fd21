"""Signatures of bundles, in the format of minisign."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hwnas.deploy.bundles.bundle import SUMS
from hwnas.deploy.bundles.signature import PublicKey
from hwnas.errors import ConfigError

Command = Callable[..., Any]


def _text(*parts: bytes) -> str:
    return base64.b64encode(b"".join(parts)).decode()


@dataclass
class Signer:
    """Key pair that signs as minisign does."""

    id: bytes
    secret: Ed25519PrivateKey

    @classmethod
    def new(cls, id: bytes = b"12345678") -> Signer:
        return cls(id, Ed25519PrivateKey.generate())

    @property
    def line(self) -> str:
        return _text(b"Ed", self.id, self.secret.public_key().public_bytes_raw())

    def sign(self, file: Path, comment: str = "made by me", hashed: bool = True) -> Path:
        content = file.read_bytes()
        message = hashlib.blake2b(content).digest() if hashed else content
        signature = self.secret.sign(message)
        whole = self.secret.sign(signature + comment.encode())
        kind = b"ED" if hashed else b"Ed"
        lines = [
            "untrusted comment: signature",
            _text(kind, self.id, signature),
            f"trusted comment: {comment}",
            _text(whole),
        ]
        beside = file.with_name(f"{file.name}.minisig")
        beside.write_text("\n".join(lines) + "\n")
        return beside


@pytest.mark.parametrize("hashed", [True, False])
def test_signed_bundle_is_verified(
    hwnas: Command, folder: Path, tmp_path: Path, hashed: bool
) -> None:
    signer = Signer.new()
    signer.sign(folder / SUMS, "release 1", hashed)
    public = tmp_path / "minisign.pub"
    public.write_text(f"untrusted comment: public key\n{signer.line}\n")
    for key in (public, signer.line):
        answer = hwnas("verify", folder, "--key", key)
        assert answer.status == 0, answer.err
        assert "signature" in answer.out
        assert "release 1" in answer.out
    assert hwnas("verify", folder).status == 0, "a signature that nobody asks for is no file of it"


def test_signature_of_another_key_or_content_is_refused(
    hwnas: Command, folder: Path, tmp_path: Path
) -> None:
    signer, other, alike = Signer.new(), Signer.new(b"abcdefgh"), Signer.new()
    key = ("--key", signer.line)
    hwnas("verify", folder, *key).refused("minisign -Sm", SUMS)
    other.sign(folder / SUMS)
    hwnas("verify", folder, *key).refused("made with another key")
    alike.sign(folder / SUMS)
    hwnas("verify", folder, *key).refused("signature of other content", "sign it again")
    beside = signer.sign(folder / SUMS)
    beside.write_text(beside.read_text().replace("made by me", "made by you"))
    hwnas("verify", folder, *key).refused("comment", "was changed")
    lines = signer.sign(folder / SUMS).read_text().splitlines()
    for damaged in ("", "\n".join(lines[:3]), "\n".join([lines[0], "%%%", *lines[2:]])):
        beside.write_text(damaged)
        hwnas("verify", folder, *key).refused("is no signature of minisign")
    signer.sign(folder / SUMS)
    (folder / "README.md").write_text("changed")
    hwnas("verify", folder, *key).refused("README.md")


@pytest.mark.parametrize("given", ["", "RWQ", "not a key", "RWQ" + "A" * 60])
def test_wrong_public_key_is_refused(hwnas: Command, folder: Path, given: str) -> None:
    hwnas("verify", folder, "--key", given).refused("is no public key of minisign")
    with pytest.raises(ConfigError):
        PublicKey.read(given)


def test_file_that_is_no_key_is_refused(hwnas: Command, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff\x00")
    hwnas("verify", folder, "--key", tmp_path / "key").refused("is no public key of minisign")


def test_signature_of_minisign_itself_is_verified(
    hwnas: Command, folder: Path, tmp_path: Path
) -> None:
    if shutil.which("minisign") is None:
        pytest.skip("minisign is not installed")
    public, secret = tmp_path / "m.pub", tmp_path / "m.key"
    made = ["minisign", "-G", "-W", "-f", "-p", str(public), "-s", str(secret)]
    subprocess.run(made, check=True, capture_output=True)
    sign = ["minisign", "-S", "-s", str(secret), "-t", "release 2", "-m", str(folder / SUMS)]
    subprocess.run(sign, check=True, capture_output=True)
    assert "release 2" in hwnas("verify", folder, "--key", public).out
