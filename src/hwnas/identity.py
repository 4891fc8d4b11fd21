"""Identities of stored results: hashes of their inputs, and the rule for reusing a result.

Every result that outlives its process carries the `Identity` of its inputs. `may_reuse` alone
decides on its reuse: a result is reused if all its inputs equal the current ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hwnas.hashing import content_hash

__all__ = ["Identity", "InputChange", "may_reuse"]

SCHEMA = 1
"""Version of the meaning of inputs; a new version keeps older results from being reused."""
_LONGEST = 200
"""Maximum number of characters of both values of a change that a line shows in full."""


@dataclass(frozen=True)
class InputChange:
    """Difference of one input from its value when a result was made.

    Attributes:
        name: Name of the input, e.g. ``"train.epochs"`` or ``"data"``.
        before: Value or hash of the input then; None where it was absent, which is the default.
        now: Value or hash of the input now; None where it is absent.
    """

    name: str
    before: Any
    now: Any

    @property
    def text(self) -> str:
        """Description in one line, with the values if they are short settings or hardware."""
        before, now = _shown(self.before), _shown(self.now)
        known = re.fullmatch(r"seed|hardware|[a-z]+\.[a-z_.]+", self.name)
        if not known or len(before) + len(now) > _LONGEST:
            return f"{self.name} changed"
        return f"{self.name} was {before}, is {now}"


def _shown(value: Any) -> str:
    return "the default" if value is None else repr(value)


@dataclass(frozen=True)
class Identity:
    """Inputs of a result by name: settings as JSON values, contents as hashes.

    An input that is None counts as absent.
    """

    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None = None, **inputs: Any) -> Identity:
        """Return the identity of settings and further inputs.

        Args:
            settings: JSON values by dotted name, stored unchanged.
            inputs: Further inputs by name: text stored unchanged, other values as content hashes.
        """
        named = {k: v if isinstance(v, str) else content_hash(v) for k, v in inputs.items()}
        return cls({**(settings or {}), **named})

    @property
    def key(self) -> str:
        """Hash of all inputs that are not None."""
        given = ((name, value) for name, value in self.inputs.items() if value is not None)
        return content_hash(SCHEMA, sorted(given))

    def changes_since(self, stored: Identity) -> tuple[InputChange, ...]:
        """Return the inputs that differ from those of a stored result, sorted by name."""
        names = sorted(self.inputs.keys() | stored.inputs.keys())
        return tuple(
            InputChange(name, stored.inputs.get(name), self.inputs.get(name))
            for name in names
            if content_hash(stored.inputs.get(name)) != content_hash(self.inputs.get(name))
        )


def may_reuse(stored: Identity | str | None, wanted: Identity) -> bool:
    """Return whether a stored result may be reused: its inputs are the wanted ones.

    Args:
        stored: Identity of the stored result, or its key; None where the result carries none.
        wanted: Identity of the result that is needed now.
    """
    key = stored.key if isinstance(stored, Identity) else stored
    return key is not None and key == wanted.key
