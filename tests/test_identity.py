"""Identities of stored results: their inputs, their changes, and when results can be reused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.hashing import content_hash
from hwnas.identity import Identity, InputChange, may_reuse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
INPUTS = st.dictionaries(st.sampled_from(["data", "train.epochs", "seed", "space"]), VALUES)


@pytest.mark.slow
@given(INPUTS, INPUTS)
def test_may_reuse_is_true_only_without_changed_inputs(one: Any, other: Any) -> None:
    stored, wanted = Identity(one), Identity(other)
    assert may_reuse(stored, wanted) == (not wanted.changes_since(stored))
    assert may_reuse(stored.key, wanted) == may_reuse(stored, wanted)
    assert may_reuse(stored, stored)
    assert not may_reuse(None, wanted)


def test_changes_since_describes_changes_in_words() -> None:
    stored = Identity({"train.epochs": 5, "data": "1 2", "seed": 0})
    now = Identity({"train.epochs": 6, "data": "1 3", "train.ema": 0.9, "code of own.parts": "a"})
    assert [change.text for change in now.changes_since(stored)] == [
        "code of own.parts changed",
        "data changed",
        "seed was 0, is the default",
        "train.ema was the default, is 0.9",
        "train.epochs was 5, is 6",
    ]


def test_input_change_of_a_long_value_says_only_changed() -> None:
    before, now = {"stages": ["a" * 150]}, {"stages": ["b" * 150]}
    assert InputChange("space.options", before, now).text == "space.options changed"


def test_content_hash_depends_on_every_element_of_an_array() -> None:
    """The repr of a large array leaves out its middle."""
    one = np.arange(5000)
    other = one.copy()
    other[2500] += 1
    assert repr(one) == repr(other)
    assert content_hash({"a": one}) != content_hash({"a": other})
    assert content_hash(one) == content_hash(one.copy())
    assert content_hash(one) != content_hash(one.astype(np.int32))


def test_content_hash_ignores_new_fields_with_their_default() -> None:
    before = make_dataclass("Settings", [("size", int), ("fast", bool, field(default=False))])
    after = make_dataclass(
        "Settings",
        [
            ("size", int),
            ("fast", bool, field(default=False)),
            ("names", tuple, field(default=())),
            ("more", dict, field(default_factory=dict)),
        ],
    )
    assert content_hash(before(3)) == content_hash(after(3))
    assert content_hash(after(3)) != content_hash(after(3, names=("a",)))
    assert content_hash(after(3)) != content_hash(after(3, more={"a": 1}))
    assert content_hash(before(3)) != content_hash(before(3, fast=True))


def test_content_hash_refuses_objects_without_a_repr() -> None:
    with pytest.raises(ConfigError, match=r"object cannot be distinguished: .* give it a __repr__"):
        content_hash(object())


@dataclass(frozen=True)
class Part:
    names: frozenset[str]
    call: Any = len


@pytest.mark.slow
def test_content_hash_is_equal_in_other_processes() -> None:
    part = Part(frozenset("abcdef"))
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_identity import Part\n"
        "from hwnas.hashing import content_hash\n"
        "print(content_hash(Part(frozenset('abcdef'))))\n"
    )
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script, __file__.rpartition("/")[0]],
            capture_output=True,
            text=True,
            check=True,
            env={**__import__("os").environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == content_hash(part)
