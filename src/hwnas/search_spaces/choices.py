"""Named discrete decisions and when they matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.errors import ConfigError

__all__ = ["Choice", "Option", "When", "checked_options", "checked_whole"]

Option = int | float | str


@dataclass(frozen=True)
class When:
    """A condition: the choice called ``name`` has an effect and its value is one of ``values``."""

    name: str
    values: tuple[Option, ...]

    @classmethod
    def deeper(cls, name: str, depths: Sequence[int], position: int) -> When | None:
        """That a row, whose depth is the choice ``name``, goes beyond a position counted from 0.

        Args:
            name: Of the choice.
            depths: Its options.
            position: Of a block.

        Returns:
            None where the row always does.
        """
        deep_enough = tuple(depth for depth in depths if depth > position)
        return None if len(deep_enough) == len(depths) else cls(name, deep_enough)


@dataclass(frozen=True)
class Choice:
    """One discrete decision.

    Attributes:
        name: Unique in its space, e.g. ``"stage2.block1.kernel_size"``.
        options: At least one, distinct, ordered from the smallest network to the largest.
        when: The choice has no effect unless this holds; ``None`` means that it always has one.
    """

    name: str
    options: tuple[Option, ...]
    when: When | None = None

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError(f"choice {self.name!r} has no options; give at least one")
        if len(set(self.options)) != len(self.options):
            raise ConfigError(f"choice {self.name!r} repeats an option: {list(self.options)}")

    def index(self, option: Option) -> int:
        """Position of an option.

        Raises:
            ConfigError: It is not among the options.
        """
        try:
            return self.options.index(option)
        except ValueError:
            raise ConfigError(
                f"{self.name} is {option!r}; this space allows {', '.join(map(str, self.options))}"
            ) from None


def checked_options(name: str, options: Sequence[float]) -> tuple[float, ...]:
    """The options, whole numbers as integers, so that equal configurations have equal hashes.

    Args:
        name: Of the field, for the message.
        options: From small to large.

    Raises:
        ConfigError: There are none, one is not positive and finite, or they do not increase.
    """
    sensible = all(0 < option < math.inf for option in options)
    if not options or not sensible or list(options) != sorted(set(options)):
        raise ConfigError(
            f"{name} is {list(options)}; expected positive options, increasing, none twice"
        )
    return tuple(int(option) if option == int(option) else option for option in options)


def checked_whole(name: str, options: Sequence[float]) -> tuple[int, ...]:
    """As `checked_options`, of what is counted.

    Raises:
        ConfigError: Beside that, an option is no whole number.
    """
    checked = checked_options(name, options)
    if any(option != int(option) for option in checked):
        raise ConfigError(f"{name} is {list(options)}; expected whole numbers")
    return tuple(int(option) for option in checked)
