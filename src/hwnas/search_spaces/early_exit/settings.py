"""Options of the early exits that a space offers."""

from __future__ import annotations

from dataclasses import dataclass

from hwnas.errors import ConfigError

__all__ = ["EarlyExitConfig"]


@dataclass(frozen=True)
class EarlyExitConfig:
    """Options of the early exit of each network.

    Attributes:
        exit_share: Options for the share of images that leave early, in [0, 1), in rising order; a
            network with 0 has no exit.
        places: Largest number of places for the exit, at least 1. They are spread evenly over the
            places that all networks have.

    Raises:
        ConfigError: An option is out of range, given twice or out of order, or no network could
            have an exit.
    """

    exit_share: tuple[float, ...] = (0, 0.3, 0.5, 0.7)
    places: int = 3

    def __post_init__(self) -> None:
        numbers = all(isinstance(each, int | float) for each in self.exit_share)
        if not numbers or any(
            isinstance(each, bool) or not 0 <= each < 1 for each in self.exit_share
        ):
            raise ConfigError(
                f"space.exit_share is {list(self.exit_share)}; expected shares from 0 up to, but "
                "not including, 1, such as [0, 0.3, 0.5, 0.7]"
            )
        if list(self.exit_share) != sorted(set(self.exit_share)) or not any(self.exit_share):
            raise ConfigError(
                f"space.exit_share is {list(self.exit_share)}; expected shares in rising order, at "
                "least one of them above 0"
            )
        if isinstance(self.places, bool) or not isinstance(self.places, int) or self.places < 1:
            raise ConfigError(f"space.places is {self.places!r}; expected a whole number above 0")

    @property
    def shares(self) -> tuple[float, ...]:
        """Options for the share, from the least cost to the greatest: in falling order."""
        return tuple(0 if each == 0 else float(each) for each in reversed(self.exit_share))
