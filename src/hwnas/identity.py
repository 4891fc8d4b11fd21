"""What a stored result depends on, and whether it may be used again.

Every result that is kept beyond the process that made it carries the `Identity` of its inputs.
`may_reuse` alone decides whether it serves: it does where its inputs are those of now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwnas.content import content_hash

__all__ = ["Change", "Identity", "may_reuse"]

SCHEMA = 1
"""Raised where the meaning of an input changes, so that results of before are not reused."""
_LONGEST = 200
"""Characters of two values that a line still shows."""


@dataclass(frozen=True)
class Change:
    """One input that differs from when a result was made.

    Attributes:
        name: Of the input, e.g. ``"train.epochs"`` or ``"data"``.
        before: Its value or hash then; None where there was none, which is the default.
        now: Its value or hash now, likewise.
    """

    name: str
    before: Any
    now: Any

    @property
    def text(self) -> str:
        """One line: short values of settings and hardware in full, all else only as changed."""
        before, now = _shown(self.before), _shown(self.now)
        known = re.fullmatch(r"seed|hardware|[a-z]+\.[a-z_.]+", self.name)
        if not known or len(before) + len(now) > _LONGEST:
            return f"{self.name} changed"
        return f"{self.name} was {before}, is {now}"


def _shown(value: Any) -> str:
    return "the default" if value is None else repr(value)


@dataclass(frozen=True)
class Identity:
    """The inputs of a result by name: settings as JSON values, contents as hashes.

    An input that is None is one that is not there.
    """

    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None = None, **inputs: Any) -> Identity:
        """Return the identity of some settings and further inputs.

        Args:
            settings: JSON values by dotted name; kept as they are.
            inputs: Text is kept as it is, all else as its content hash.
        """
        named = {k: v if isinstance(v, str) else content_hash(v) for k, v in inputs.items()}
        return cls({**(settings or {}), **named})

    @property
    def key(self) -> str:
        """Hash of all inputs."""
        given = ((name, value) for name, value in self.inputs.items() if value is not None)
        return content_hash(SCHEMA, sorted(given))

    def changes_since(self, stored: Identity) -> tuple[Change, ...]:
        """Return the inputs that differ from those of a stored result, by name."""
        names = sorted(self.inputs.keys() | stored.inputs.keys())
        return tuple(
            Change(name, stored.inputs.get(name), self.inputs.get(name))
            for name in names
            if content_hash(stored.inputs.get(name)) != content_hash(self.inputs.get(name))
        )


def may_reuse(stored: Identity | str | None, wanted: Identity) -> bool:
    """Return whether a stored result serves: whether all its inputs are those that are wanted.

    Args:
        stored: Of the result, or its key; None where it carries none.
        wanted: Of the result that is needed now.
    """
    key = stored.key if isinstance(stored, Identity) else stored
    return key is not None and key == wanted.key
