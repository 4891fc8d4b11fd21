"""Architectures and candidates as values: ids, order, and JSON."""

import json
import random

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, Candidate, mobilenet

A = Architecture("space-1", (("depth", 2), ("kernel_size", 3)))
B = Architecture("space-1", (("depth", 2), ("kernel_size", 5)))


def test_architecture_id_never_changes() -> None:
    """A saved study refers to architectures by id: changing this breaks every user's runs."""
    assert A.id == "fe45f55f128b"


def test_architecture_id_depends_on_values_and_space() -> None:
    assert len({A.id, B.id, Architecture("space-2", A.values).id}) == 3


def test_architectures_can_be_sorted_and_used_as_keys() -> None:
    assert sorted([B, A]) == [A, B]
    assert {A: 1}[Architecture("space-1", (("depth", 2), ("kernel_size", 3)))] == 1


@pytest.mark.parametrize("damaged", [None, [], {}, {"schema": 1, "space": "s"}, "text"])
def test_architecture_from_json_refuses_damaged_objects(damaged: object) -> None:
    with pytest.raises(ConfigError, match="expected the keys schema, space and values"):
        Architecture.from_json(damaged)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [[1, 2], "text", {"depth": [1]}, {"depth": None}])
def test_architecture_from_json_refuses_values_that_are_no_options(values: object) -> None:
    with pytest.raises(ConfigError, match="values must map each choice"):
        Architecture.from_json({"schema": 1, "space": "s", "values": values})


def test_architecture_from_json_refuses_a_newer_schema() -> None:
    with pytest.raises(ConfigError, match="has schema 2, but this version of hwnas reads 1"):
        Architecture.from_json({**A.to_json(), "schema": 2})


def test_check_accepts_json_with_keys_in_another_order() -> None:
    space = mobilenet((8, 8, 1), 10)
    architecture = space.sample(random.Random(0))
    text = json.dumps(architecture.to_json(), sort_keys=True)
    assert space.check(Architecture.from_json(json.loads(text))) == architecture


def test_candidate_of_a_network_alone_has_the_id_of_the_network() -> None:
    candidate = Candidate.of(A)
    assert candidate.network == A
    assert candidate.id == A.id


def test_candidate_id_depends_on_roles_but_not_on_their_order() -> None:
    joint = Candidate.of(A, recipe=B, accelerator=A)
    assert joint == Candidate.of(A, accelerator=A, recipe=B)
    assert joint["recipe"] == B
    assert len({joint.id, Candidate.of(A).id, Candidate.of(A, accelerator=B, recipe=A).id}) == 3
