"""Product of several spaces that are searched jointly, such as networks and training settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.cost_model.operator_counts import OperatorCountTable, PartTable
from hwnas.search_spaces.space.architecture import Architecture, Candidate
from hwnas.search_spaces.space.building import Segments, StageOutline
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.space.choices import Choice
from hwnas.search_spaces.space.search_space import SearchSpace
from hwnas.search_spaces.tabular import TabularSpace

__all__ = ["ProductSpace"]

_NETWORK = "network"


class ProductSpace(SearchSpace):
    """Product of a space of networks and a space for each further role of a candidate.

    A point has the choices of all spaces. The names of choices of further roles start with the role
    (``"recipe.learning_rate"``). The workload of a network does not depend on its other roles.

    Args:
        network: Space of the networks.
        roles: Other spaces, by role.

    Raises:
        ConfigError: There is no other role, or one is named like the role of the networks.
    """

    def __init__(self, network: SearchSpace, roles: Mapping[str, ChoiceSpace]) -> None:
        if not roles or _NETWORK in roles:
            raise ConfigError(
                f"a product of spaces has the roles {sorted(roles)} besides {_NETWORK!r}; expected "
                "at least one, with another name"
            )
        self._network, self._roles = network, dict(sorted(roles.items()))
        self.name = "+".join([network.name, *(space.name for space in self._roles.values())])

    @property
    def network(self) -> SearchSpace:
        """Space of the networks."""
        return self._network

    @property
    def roles(self) -> Mapping[str, ChoiceSpace]:
        """Other spaces, by role."""
        return self._roles

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Choices of the networks, then those of each role."""
        found = list(self._network.choices)
        for role, space in self._roles.items():
            found += [_of_role(role, choice) for choice in space.choices]
        return tuple(found)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Fingerprints of all spaces, by role."""
        return {role: space.fingerprint for role, space in self._spaces()}

    def candidate(self, architecture: Architecture) -> Candidate:
        """Return the network and the other roles of a point, each as a point of its own space."""
        values = self.check(architecture).as_dict()
        parts: dict[str, Architecture] = {}
        for role, space in self._spaces():
            names = {choice.name: _name(role, choice.name) for choice in space.choices}
            own = {name: values[joint] for name, joint in names.items() if joint in values}
            parts[role] = space.architecture(own)
        return Candidate(tuple(sorted(parts.items())))

    def point(self, candidate: Candidate) -> Architecture:
        """Return the point of a candidate; the inverse of `candidate`.

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
        """Return the module of a point's network."""
        return self._network.build(self.candidate(architecture).network)

    def segments(self, architecture: Architecture) -> Mapping[str, Segments]:
        """Return the segments of a point's network."""
        return self._network.segments(self.candidate(architecture).network)

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        """Return the input shape of a point's network."""
        return self._network.input_shape(self.candidate(architecture).network)

    def outline(self, architecture: Architecture) -> tuple[StageOutline, ...]:
        """Return the stages of a point's network."""
        return self._network.outline(self.candidate(architecture).network)

    def parts(self, codes: npt.NDArray[np.int64]) -> tuple[PartTable, npt.NDArray[np.int64]] | None:
        """Return the parts of the points' networks."""
        return self._network.parts(self._of_networks(codes))

    def steps(self, codes: npt.NDArray[np.int64]) -> OperatorCountTable | None:
        """Return the operator counts of the points' networks."""
        return self._network.steps(self._of_networks(codes))

    def counted(self, codes: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the exact costs of the points' networks."""
        return self._network.counted(self._of_networks(codes))

    def depth(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the depths of the points' networks."""
        return self._network.depth(self._of_networks(codes))

    def published(
        self, codes: npt.NDArray[np.int64]
    ) -> tuple[TabularSpace, npt.NDArray[np.int64]] | None:
        """Return the published space of the points' networks, and their codes there."""
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
