"""Proofs that both sides know the token, without ever sending it.

A request is signed with a key that follows from the token, over the agent's challenge, a nonce of
the host's and the certificate that the host saw. So a request cannot be changed, sent again, or
passed on by somebody in between who shows a certificate of his own; the reply is signed likewise.
No clock is compared: small devices often have none that is right.
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
"""Names of headers."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SECRET_BYTES = 32
_LASTS_S, _MOST_NONCES = 300.0, 20_000


def new_secret() -> str:
    """256 random bits as text that fits into a line."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def key_of(token: str) -> str:
    """The key that a token stands for, in hexadecimal; the token does not follow from it.

    A plain hash is enough, since a token is random and long.
    """
    return hashlib.sha256(f"hwnas agent key\n{token.strip()}".encode()).hexdigest()


def digest_of(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def is_digest(text: object) -> bool:
    """Whether something is a SHA-256 in hexadecimal, as keys and fingerprints are, too."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def request_signature(
    key: str, certificate: str, challenge: str, nonce: str, method: str, path: str, digest: str
) -> str:
    """Of a request whose body has this digest, to the agent with this certificate."""
    return _signature(key, "request", certificate, challenge, nonce, method, path, digest)


def reply_signature(key: str, certificate: str, nonce: str, status: int, digest: str) -> str:
    """Of the reply to the request with this nonce."""
    return _signature(key, "reply", certificate, nonce, str(status), digest)


def _signature(key: str, *parts: str) -> str:
    # A line break cannot be in any part, so parts cannot be shifted against each other.
    return hmac.new(bytes.fromhex(key), "\n".join(parts).encode(), hashlib.sha256).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two signatures are the same; takes as long whether they are or not."""
    return hmac.compare_digest(one.encode(), other.encode())


class Challenges:
    """What requests have to be signed over, and which nonces were seen with it.

    A challenge lasts for some minutes, or until so many requests were made with it; the one before
    it still counts. So nonces need not be kept for ever.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._current, self._made = new_secret(), clock()
        self._nonces: dict[str, set[str]] = {self._current: set()}

    def current(self) -> str:
        """The challenge for the next request."""
        with self._lock:
            return self._renewed()

    def admit(self, challenge: str, nonce: str) -> bool:
        """Whether this is the first request of its nonce; ask for requests whose signature holds.

        A challenge that is not known any more, or never was, admits none.
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
