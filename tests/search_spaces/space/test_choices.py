"""Choices of a search space and their options."""

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import Choice


def test_choice_index_is_the_position_of_an_option() -> None:
    choice = Choice("kernel_size", (3, 5, 7))
    assert [choice.index(option) for option in choice.options] == [0, 1, 2]


def test_choice_index_refuses_an_unknown_option_and_lists_the_allowed() -> None:
    with pytest.raises(ConfigError, match=r"^expand_ratio is 5; this space allows 3, 4, 6$"):
        Choice("expand_ratio", (3, 4, 6)).index(5)


def test_choice_refuses_missing_and_repeated_options() -> None:
    with pytest.raises(ConfigError, match="'depth' has no options"):
        Choice("depth", ())
    with pytest.raises(ConfigError, match=r"'depth' repeats an option: \[1, 1\]"):
        Choice("depth", (1, 1))
