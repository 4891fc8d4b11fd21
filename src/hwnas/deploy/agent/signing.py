"""Signatures that prove that both sides know the token, without sending it.

A request is signed with a key derived from the token, over the agent's challenge, the host's nonce
and the certificate that the host saw. Therefore a request cannot be changed, replayed, or forwarded
by an attacker in between who shows another certificate. The reply is signed likewise. No clocks are
compared, because small devices often have no correct one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable

__all__ = [
    "CHALLENGE",
    "DIGEST",
    "NONCE",
    "SIGNATURE",
    "Challenges",
    "digest_of",
    "is_digest",
    "key_of",
    "new_secret",
    "reply_signature",
    "request_signature",
    "same",
]

CHALLENGE, NONCE, DIGEST, SIGNATURE = (
    f"X-Hwnas-{name}" for name in ("Challenge", "Nonce", "Digest", "Signature")
)
"""Names of the HTTP headers."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SECRET_BYTES = 32
_LASTS_S, _MOST_NONCES = 300.0, 20_000


def new_secret() -> str:
    """Return 256 random bits as text without line breaks."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def key_of(token: str) -> str:
    """Return the key derived from a token, in hexadecimal; the token cannot be derived from it.

    A plain hash suffices, since a token is random and long.
    """
    return hashlib.sha256(f"hwnas agent key\n{token.strip()}".encode()).hexdigest()


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of some content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def is_digest(text: object) -> bool:
    """Return whether a value is a SHA-256 in hexadecimal, as keys and fingerprints are."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def request_signature(
    key: str, certificate: str, challenge: str, nonce: str, method: str, path: str, digest: str
) -> str:
    """Return the signature of a request to the agent with this certificate.

    The request is identified by its challenge, nonce, method, path and the digest of its body.
    """
    return _signature(key, "request", certificate, challenge, nonce, method, path, digest)


def reply_signature(key: str, certificate: str, nonce: str, status: int, digest: str) -> str:
    """Return the signature of the reply to the request with this nonce."""
    return _signature(key, "reply", certificate, nonce, str(status), digest)


def _signature(key: str, *parts: str) -> str:
    # No part can contain a line break, so text cannot be moved from one part to another.
    return hmac.new(bytes.fromhex(key), "\n".join(parts).encode(), hashlib.sha256).hexdigest()


def same(one: str, other: str) -> bool:
    """Return whether two signatures are equal, in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


class Challenges:
    """Challenges that requests have to sign, and the nonces seen with each.

    A challenge is valid for some minutes, or until a maximum number of requests used it. The
    previous one stays valid as well. So nonces need not be kept for ever.

    Args:
        clock: Function that returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._current, self._made = new_secret(), clock()
        self._nonces: dict[str, set[str]] = {self._current: set()}

    def current(self) -> str:
        """Return the challenge for the next request."""
        with self._lock:
            return self._renewed()

    def admit(self, challenge: str, nonce: str) -> bool:
        """Return whether a request is the first with its nonce; check its signature before.

        A challenge that has expired or never existed admits no request.
        """
        with self._lock:
            self._renewed()
            seen = self._nonces.get(challenge)
            if seen is None or nonce in seen or len(seen) >= _MOST_NONCES:
                return False
            seen.add(nonce)
            return True

    def _renewed(self) -> str:
        now = self._clock()
        full = len(self._nonces[self._current]) >= _MOST_NONCES
        if full or now - self._made >= _LASTS_S:
            stale = now - self._made >= 2 * _LASTS_S
            before = {} if stale else {self._current: self._nonces[self._current]}
            self._current, self._made = new_secret(), now
            self._nonces = {**before, self._current: set()}
        return self._current
