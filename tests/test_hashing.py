from dataclasses import dataclass, field

import numpy as np

from hwnas.hashing import content_hash


@dataclass(frozen=True)
class Value:
    size: int


def test_content_hash_is_equal_only_for_equal_contents() -> None:
    assert content_hash(1, ["a"], Value(2)) == content_hash(1, ["a"], Value(2))
    assert content_hash(1, ["a"], Value(2)) != content_hash(1, ["a"], Value(3))
    assert content_hash(1, ["a"]) != content_hash(1, ["b"])
    assert content_hash("ab", "c") != content_hash("a", "bc")


def test_content_hash_distinguishes_arrays_by_shape_from_their_default() -> None:
    @dataclass(frozen=True)
    class Rows:
        values: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))

    assert content_hash(Rows(np.ones((4, 3)))) != content_hash(Rows())
    assert content_hash(Rows(np.zeros((0, 3)))) == content_hash(Rows())
