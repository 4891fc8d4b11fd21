"""Named discrete choices, and the conditions under which they have an effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.errors import ConfigError

__all__ = ["Choice", "ChoiceCondition", "Option", "checked_options", "checked_whole"]

Option = int | float | str


@dataclass(frozen=True)
class ChoiceCondition:
    """Condition that the choice ``name`` has an effect and its option is one of ``values``."""

    name: str
    values: tuple[Option, ...]

    @classmethod
    def deeper(cls, name: str, depths: Sequence[int], position: int) -> ChoiceCondition | None:
        """Return the condition that a row is deep enough to contain the block at a position.

        Args:
            name: Name of the choice of the row's depth.
            depths: Options of that choice.
            position: Position of the block in the row, counted from 0.

        Returns:
            The condition; None if the row contains the block at every depth.
        """
        deep_enough = tuple(depth for depth in depths if depth > position)
        return None if len(deep_enough) == len(depths) else cls(name, deep_enough)


@dataclass(frozen=True)
class Choice:
    """Discrete decision: a name, options, and the condition for an effect.

    Attributes:
        name: Name, unique in its space, e.g. ``"stage2.block1.kernel_size"``.
        options: Distinct options, at least one, ordered from the smallest network to the largest.
        when: Condition without which the choice has no effect; None if it always has one.
    """

    name: str
    options: tuple[Option, ...]
    when: ChoiceCondition | None = None

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError(f"choice {self.name!r} has no options; give at least one")
        if len(set(self.options)) != len(self.options):
            raise ConfigError(f"choice {self.name!r} repeats an option: {list(self.options)}")

    def index(self, option: Option) -> int:
        """Return the position of an option.

        Raises:
            ConfigError: The choice has no such option.
        """
        try:
            return self.options.index(option)
        except ValueError:
            raise ConfigError(
                f"{self.name} is {option!r}; this space allows {', '.join(map(str, self.options))}"
            ) from None


def checked_options(name: str, options: Sequence[float]) -> tuple[float, ...]:
    """Return the options, with whole numbers as integers.

    The conversion gives equal configurations equal hashes.

    Args:
        name: Name of the field, for the message.
        options: Options in increasing order.

    Raises:
        ConfigError: There are no options, one is not positive and finite, or they do not increase.
    """
    sensible = all(0 < option < math.inf for option in options)
    if not options or not sensible or list(options) != sorted(set(options)):
        raise ConfigError(
            f"{name} is {list(options)}; expected positive options, increasing, none twice"
        )
    return tuple(int(option) if option == int(option) else option for option in options)


def checked_whole(name: str, options: Sequence[float]) -> tuple[int, ...]:
    """Return the options as integers, checked as by `checked_options`.

    Raises:
        ConfigError: An option is not a whole number, or `checked_options` raises.
    """
    checked = checked_options(name, options)
    if any(option != int(option) for option in checked):
        raise ConfigError(f"{name} is {list(options)}; expected whole numbers")
    return tuple(int(option) for option in checked)
