from dataclasses import dataclass

from hwnas.content import content_hash


@dataclass(frozen=True)
class Value:
    size: int


def test_content_hash_is_equal_only_for_equal_contents() -> None:
    assert content_hash(1, ["a"], Value(2)) == content_hash(1, ["a"], Value(2))
    assert content_hash(1, ["a"], Value(2)) != content_hash(1, ["a"], Value(3))
    assert content_hash(1, ["a"]) != content_hash(1, ["b"])
    assert content_hash("ab", "c") != content_hash("a", "bc")
