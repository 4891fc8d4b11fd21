"""The tree of exceptions."""

import pickle

import pytest

from hwnas import errors
from hwnas.errors import DivergedError, HwnasError

ALL = [getattr(errors, name) for name in errors.__all__ if name != "HwnasError"]
CHILDREN = HwnasError.__subclasses__()


def test_there_are_few_enough_to_tell_apart() -> None:
    assert len(CHILDREN) < 10
    assert set(CHILDREN) <= set(ALL)
    for error in ALL:
        assert f"── {error.__name__}" in (errors.__doc__ or "")


@pytest.mark.parametrize("error", CHILDREN)
def test_each_is_also_a_builtin_as_the_tree_says(error: type[HwnasError]) -> None:
    (builtin,) = (base for base in error.__bases__ if base is not HwnasError)
    assert builtin in (ValueError, RuntimeError, OSError)
    assert f"{error.__name__:<16} ({builtin.__name__})" in (errors.__doc__ or "")


@pytest.mark.parametrize(
    "error",
    [error("what was given; what to do") for error in ALL if error is not DivergedError]
    + [DivergedError(7, 0.5)],
    ids=lambda error: type(error).__name__,
)
def test_each_survives_the_way_from_a_worker(error: HwnasError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert "\n" not in str(error)


def test_divergence_says_where() -> None:
    error = DivergedError(step=120, learning_rate=0.05)
    assert (error.step, error.learning_rate) == (120, 0.05)
    assert "step 120 (learning rate 0.05)" in str(error)
    assert "Lower train.learning_rate" in str(error)
