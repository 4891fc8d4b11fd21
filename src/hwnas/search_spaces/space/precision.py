"""Number format of a network as a part of the candidate, searched jointly with the network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from hwnas.search_spaces.space.architecture import Architecture, Candidate
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.space.choices import Choice

__all__ = ["FORMAT_CHOICE", "PRECISION", "PrecisionSpace", "as_trained", "own_format"]

PRECISION = "precision"
"""Role of a candidate that says in which number format its network ships."""
_FORMAT = "number_format"
FORMAT_CHOICE = f"{PRECISION}.{_FORMAT}"
"""Name of the choice in a space of candidates."""


class PrecisionSpace(ChoiceSpace):
    """Space of the number formats that a network may ship in.

    Args:
        formats: Number formats, from the smallest to the largest, at least two.

    Raises:
        ConfigError: A format is given twice.
    """

    name = PRECISION

    def __init__(self, formats: Sequence[str]) -> None:
        self.formats = tuple(formats)

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The number format."""
        return (Choice(_FORMAT, self.formats),)

    def architecture_of(self, number_format: str) -> Architecture:
        """Return the architecture that names a number format."""
        return self.architecture({_FORMAT: number_format})


def own_format(candidate: Candidate) -> str | None:
    """Return the number format that a candidate names; None if it names none."""
    precision = candidate.others.get(PRECISION)
    return None if precision is None else str(precision.as_dict()[_FORMAT])


def as_trained(candidate: Candidate) -> Candidate:
    """Return what the trained weights of a candidate depend on: all roles but its precision."""
    return Candidate(tuple(each for each in candidate.roles if each[0] != PRECISION))
