"""Lists of options in the configurations of spaces."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hwnas.errors import ConfigError

__all__ = ["increasing_options"]


def increasing_options(name: str, options: Sequence[float]) -> tuple[float, ...]:
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
