from dataclasses import dataclass

from hwnas.content import content_hash


@dataclass(frozen=True)
class Value:
    size: int


def test_equal_contents_have_equal_hashes() -> None:
    assert content_hash(1, ["a"], Value(2)) == content_hash(1, ["a"], Value(2))
    assert content_hash(1, ["a"], Value(2)) != content_hash(1, ["a"], Value(3))
    assert content_hash(1, ["a"]) != content_hash(1, ["b"])
    assert content_hash("ab", "c") != content_hash("a", "bc")
