"""HTTPS server of an agent, which accepts signed requests only.

Every connection is one request. No body is read before the signature is verified. A request without
a valid signature is answered with 401, whatever its address. Only ``GET /health`` needs no
signature; it says that the agent is up.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from typing import Protocol

from hwnas.deploy.agent.protocol import AgentLimits, AgentReply, AgentRequest
from hwnas.deploy.agent.server.certificate import Certificate
from hwnas.deploy.agent.server.guarded import (
    GREETING_S,
    SLOWEST_BYTES_A_SECOND,
    GuardedHandler,
    GuardedServer,
)
from hwnas.deploy.agent.signing import (
    CHALLENGE,
    DIGEST,
    NONCE,
    SIGNATURE,
    Challenges,
    digest_of,
    reply_signature,
    request_signature,
    same,
)
from hwnas.errors import ConfigError

__all__ = ["AgentServer", "AnswersRequests"]

_LENGTH = re.compile(r"[0-9]{1,12}")
_HEX = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AnswersRequests(Protocol):
    """Part of an agent that answers authorised requests."""

    @property
    def limits(self) -> AgentLimits:
        """Limits on what is accepted."""
        ...

    def answer(self, request: AgentRequest) -> AgentReply:
        """Answer a request; errors become replies too."""
        ...


class AgentServer(GuardedServer):
    """HTTPS server that answers signed requests until `shutdown`.

    Args:
        address: Host and port to listen on; port 0 is any free port.
        api: Agent that answers authorised requests.
        key: Key that requests have to be signed with, in hexadecimal.
        certificate: Certificate of this agent.
    """

    def __init__(
        self, address: tuple[str, int], api: AnswersRequests, key: str, certificate: Certificate
    ) -> None:
        self.api, self.key = api, key
        self.fingerprint = certificate.fingerprint()
        self.challenges = Challenges()
        super().__init__(address, _Handler, api.limits.connections, certificate.context())


class _Handler(GuardedHandler):
    """Handler of one connection, which is one request."""

    server: AgentServer

    def respond(self, whole: bool) -> None:
        """Answer a request, if it is signed or asks for the health of the agent."""
        if whole and (self.command, self.path) == ("GET", "/health"):
            self._send(200, b'{"status": "up"}', {})
        elif whole and self._is_signed():
            self._answer()
        else:
            self._refuse()

    def _is_signed(self) -> bool:
        """Return whether a holder of the key signed this request for this agent; reject replays."""
        challenge, nonce = self._header(CHALLENGE, _WORD), self._header(NONCE, _WORD)
        digest, given = self._header(DIGEST, _HEX), self._header(SIGNATURE, _HEX)
        if not (challenge and nonce and digest and given):
            return False
        server = self.server
        right = request_signature(
            server.key, server.fingerprint, challenge, nonce, self.command, self.path, digest
        )
        return same(given, right) and server.challenges.admit(challenge, nonce)

    def _header(self, name: str, pattern: re.Pattern[str]) -> str:
        """Return a header's value if it matches the pattern, else an empty string."""
        value = str(self.headers.get(name, ""))
        return value if pattern.fullmatch(value) else ""

    def _answer(self) -> None:
        length = int(self._header("Content-Length", _LENGTH) or 0)
        self.allow(length, GREETING_S + length / SLOWEST_BYTES_A_SECOND)
        body = _body(self.rfile.read, length, self._header(DIGEST, _HEX))
        reply = self.server.api.answer(AgentRequest(self.command, self.path, length, body))
        self._reply(reply)

    def _reply(self, reply: AgentReply) -> None:
        content, server = reply.content, self.server
        digest, nonce = digest_of(content), self._header(NONCE, _WORD)
        signature = reply_signature(server.key, server.fingerprint, nonce, reply.status, digest)
        self._send(reply.status, content, {SIGNATURE: signature})

    def _refuse(self) -> None:
        body = json.dumps({"error": "ConfigError", "message": "not signed with the token"})
        self._send(401, body.encode(), {"WWW-Authenticate": "Hwnas"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        lines = {
            **headers,
            CHALLENGE: self.server.challenges.current(),
            "Content-Type": "application/json",
            "Connection": "close",
        }
        self.send(status, content, lines)


def _body(read: Callable[[int], bytes], length: int, promised: str) -> Callable[[int], bytes]:
    """Return a function that reads a body, and checks at its end that it is the signed one."""
    digest, left = hashlib.sha256(), length

    def more(count: int) -> bytes:
        nonlocal left
        try:
            content = read(min(count, left))
        except OSError as error:  # do not let it look like an error of the disk
            raise ConfigError(f"the body was interrupted: {error}; send it again") from error
        digest.update(content)
        left -= len(content)
        if left == 0 and digest.hexdigest() != promised:
            raise ConfigError("the body does not match its signature; send it again")
        return content

    return more
