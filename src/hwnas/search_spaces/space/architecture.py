"""Architecture, a point of a search space, and candidate, an architecture for each role."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hwnas.errors import ConfigError
from hwnas.search_spaces.space.choices import Option

__all__ = ["Architecture", "Candidate"]

SCHEMA = 1


@dataclass(frozen=True, order=True)
class Architecture:
    """Point of a search space, such as one network, in canonical form.

    Only choices that have an effect are listed, in the order of the space. Two architectures are
    therefore equal exactly when they describe the same network.

    Attributes:
        space: Fingerprint of the space, e.g. ``"mobilenet-5d41402a"``.
        values: Pairs of choice name and option.
    """

    space: str
    values: tuple[tuple[str, Option], ...]

    @cached_property
    def id(self) -> str:
        """Hash of twelve hexadecimal digits, the same on every machine and in every version."""
        text = json.dumps([self.space, self.values], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def as_dict(self) -> dict[str, Option]:
        """Return the options of the choices that have an effect, by choice name."""
        return dict(self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the architecture as a versioned JSON object."""
        return {"schema": SCHEMA, "space": self.space, "values": self.as_dict()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Architecture:
        """Create an architecture from the output of `to_json`.

        Raises:
            ConfigError: The object is not an architecture or was written by a newer version.
        """
        if not isinstance(data, Mapping) or not {"schema", "space", "values"} <= set(data):
            raise ConfigError("not an architecture: expected the keys schema, space and values")
        if data["schema"] != SCHEMA:
            raise ConfigError(
                f"architecture has schema {data['schema']!r}, but this version of hwnas reads "
                f"{SCHEMA}; use the version that wrote it"
            )
        values = data["values"]
        if not isinstance(values, Mapping) or not all(
            isinstance(option, int | float | str) for option in values.values()
        ):
            raise ConfigError(
                "not an architecture: values must map each choice to a number or a text"
            )
        return cls(str(data["space"]), tuple((str(k), v) for k, v in values.items()))


@dataclass(frozen=True, order=True)
class Candidate:
    """Unit of evaluation of a search: an architecture for each role.

    A plain search has the single role ``network``. A joint search adds others (``recipe``,
    ``quantisation``, ``accelerator``). Each consumer reads the roles that it understands.

    Attributes:
        roles: Pairs of role and architecture, sorted by role.
    """

    roles: tuple[tuple[str, Architecture], ...]

    @classmethod
    def of(cls, network: Architecture, **others: Architecture) -> Candidate:
        """Create a candidate from its network and the architectures of any other roles."""
        return cls(tuple(sorted({"network": network, **others}.items())))

    def __getitem__(self, role: str) -> Architecture:
        return dict(self.roles)[role]

    @property
    def network(self) -> Architecture:
        """Architecture in the role ``network``."""
        return self["network"]

    @property
    def others(self) -> dict[str, Architecture]:
        """Architectures in all other roles, by role; empty in a plain search."""
        return {role: architecture for role, architecture in self.roles if role != "network"}

    def as_dict(self) -> dict[str, Option]:
        """Return the options of all roles, by choice name.

        Choices of any role but the network are named ``"role.choice"``.
        """
        found = self.network.as_dict()
        for role, architecture in self.others.items():
            found |= {f"{role}.{name}": option for name, option in architecture.values}
        return found

    @cached_property
    def id(self) -> str:
        """Identifier of the network if it is the only role, otherwise a hash over all roles."""
        if len(self.roles) == 1:
            return self.network.id
        text = json.dumps([[role, architecture.id] for role, architecture in self.roles])
        return hashlib.sha256(text.encode()).hexdigest()[:12]
