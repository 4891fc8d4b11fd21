"""Several spaces searched as one: networks, and how they are trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.architecture import Architecture, Candidate
from hwnas.search_spaces.choice_space import ChoiceSpace
from hwnas.search_spaces.choices import Choice
from hwnas.search_spaces.space import SearchSpace, Segments, StageOutline
from hwnas.search_spaces.steps import PartTable
from hwnas.search_spaces.tabular import TabularSpace

__all__ = ["ProductSpace"]

_NETWORK = "network"


class ProductSpace(SearchSpace):
    """A space of networks and one for each further role of a candidate.

    Its points have the choices of all, those of further roles with the role before their names
    (``"recipe.learning_rate"``). What a network asks of hardware, it asks whatever its other roles
    are.

    Args:
        network: The space of the networks.
        roles: The other spaces, by role.

    Raises:
        ConfigError: There is no other role, or one has the name of the network's.
    """

    def __init__(self, network: SearchSpace, roles: Mapping[str, ChoiceSpace]) -> None:
        if not roles or _NETWORK in roles:
            raise ConfigError(
                f"a product of spaces has the roles {sorted(roles)} beside {_NETWORK!r}; expected "
                "at least one, of another name"
            )
        self._network, self._roles = network, dict(sorted(roles.items()))
        self.name = "+".join([network.name, *(space.name for space in self._roles.values())])

    @property
    def network(self) -> SearchSpace:
        """The space of the networks."""
        return self._network

    @property
    def roles(self) -> Mapping[str, ChoiceSpace]:
        """The other spaces, by role."""
        return self._roles

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Those of the networks, then those of each role."""
        found = list(self._network.choices)
        for role, space in self._roles.items():
            found += [_of_role(role, choice) for choice in space.choices]
        return tuple(found)

    @property
    def identity(self) -> Mapping[str, Any]:
        """The fingerprints of all spaces."""
        return {role: space.fingerprint for role, space in self._spaces()}

    def candidate(self, architecture: Architecture) -> Candidate:
        """The network and the other roles of a point, each as a point of its own space."""
        values = self.check(architecture).as_dict()
        parts: dict[str, Architecture] = {}
        for role, space in self._spaces():
            names = {choice.name: _name(role, choice.name) for choice in space.choices}
            own = {name: values[joint] for name, joint in names.items() if joint in values}
            parts[role] = space.architecture(own)
        return Candidate(tuple(sorted(parts.items())))

    def point(self, candidate: Candidate) -> Architecture:
        """The inverse of `candidate`.

        Raises:
            ConfigError: The candidate has other roles, or a role is of another space.
        """
        given = dict(candidate.roles)
        wanted = [role for role, _ in self._spaces()]
        if set(given) != set(wanted):
            raise ConfigError(
                f"candidate {candidate.id} has the roles {sorted(given)}; {self.name} has "
                f"{sorted(wanted)}"
            )
        return self.architecture(
            {
                _name(role, name): option
                for role, space in self._spaces()
                for name, option in space.check(given[role]).values
            }
        )

    def build(self, architecture: Architecture) -> nn.Module:
        """The network of a point."""
        return self._network.build(self.candidate(architecture).network)

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """Those of the network of a point."""
        return self._network.segments(self.candidate(architecture).network)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """What the network of a point takes."""
        return self._network.input_shape(self.candidate(architecture).network)

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """The stages of the network of a point."""
        return self._network.outline(self.candidate(architecture).network)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """Those of the networks."""
        return self._network.parts(self._of_networks(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """That of the networks."""
        return self._network.depth(self._of_networks(codes))

    def published(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[TabularSpace, npt.NDArray[np.int64]] | None:
        """That of the networks."""
        return self._network.published(self._of_networks(codes))

    def _of_networks(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return codes[:, : len(self._network.choices)]

    def _spaces(self) -> Iterator[tuple[str, ChoiceSpace]]:
        yield _NETWORK, self._network
        yield from self._roles.items()


def _name(role: str, choice: str) -> str:
    return choice if role == _NETWORK else f"{role}.{choice}"


def _of_role(role: str, choice: Choice) -> Choice:
    when = choice.when and replace(choice.when, name=_name(role, choice.when.name))
    return replace(choice, name=_name(role, choice.name), when=when)
