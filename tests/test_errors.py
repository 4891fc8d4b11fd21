"""The exception classes."""

import pickle

import pytest

from hwnas import errors
from hwnas.errors import DivergedError, HwnasError

ALL = [getattr(errors, name) for name in errors.__all__ if name != "HwnasError"]
CHILDREN = HwnasError.__subclasses__()


def test_error_tree_has_fewer_than_ten_children_all_documented() -> None:
    assert len(CHILDREN) < 10
    assert set(CHILDREN) <= set(ALL)
    for error in ALL:
        assert f"── {error.__name__}" in (errors.__doc__ or "")


@pytest.mark.parametrize("error", CHILDREN)
def test_error_classes_are_builtins_as_documented(error: type[HwnasError]) -> None:
    (builtin,) = (base for base in error.__bases__ if base is not HwnasError)
    assert builtin in (ValueError, RuntimeError, OSError)
    assert f"{error.__name__:<16} ({builtin.__name__})" in (errors.__doc__ or "")


@pytest.mark.parametrize(
    "error",
    [error("what was given; what to do") for error in ALL if error is not DivergedError]
    + [DivergedError(7, 0.5)],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: HwnasError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert "\n" not in str(error)


def test_diverged_error_names_step_and_learning_rate() -> None:
    error = DivergedError(step=120, learning_rate=0.05)
    assert (error.step, error.learning_rate) == (120, 0.05)
    assert "step 120 (learning rate 0.05)" in str(error)
    assert "Lower train.learning_rate" in str(error)
