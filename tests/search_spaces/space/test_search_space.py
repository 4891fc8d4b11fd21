"""Search spaces: errors of invalid choices, and fingerprints."""

import pytest
from torch import nn

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, Choice, ChoiceCondition, SearchSpace


class Given(SearchSpace):
    """Search space with given choices."""

    name = "given"
    choices: tuple[Choice, ...] = ()

    def __init__(self, *choices: Choice) -> None:
        self.choices = choices

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        return 1, 1, 1

    def build(self, architecture: Architecture) -> nn.Module:
        return nn.Identity()


DEPTH = Choice("depth", (1, 2))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ((DEPTH, DEPTH), "given has two choices called 'depth'; rename one"),
        (
            (Choice("kernel", (3, 5), ChoiceCondition("depth", (2,))), DEPTH),
            "kernel depends on 'depth', which is not an earlier choice",
        ),
        (
            (DEPTH, Choice("kernel", (3, 5), ChoiceCondition("depth", (3,)))),
            "depth is 3; this space allows 1, 2",
        ),
    ],
)
def test_search_space_refuses_invalid_choices(choices: tuple[Choice, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Given(*choices).largest()


def test_search_space_fingerprint_depends_on_choices_and_conditions() -> None:
    kernel = Choice("kernel", (3, 5))
    spaces = [
        Given(DEPTH),
        Given(DEPTH, kernel),
        Given(kernel, DEPTH),
        Given(DEPTH, Choice("kernel", (3, 5), ChoiceCondition("depth", (2,)))),
    ]
    assert len({space.fingerprint for space in spaces}) == len(spaces)
    assert Given(DEPTH, kernel).fingerprint == Given(DEPTH, kernel).fingerprint
